"""Jump hosts at the doors: what the doctor found of them, and the way that a user is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spotd.act.ssh import Address
from spotd.api.doctor.health import doctor
from spotd.api.request.context import ApiContext
from spotd.api.request.request import ApiRequest
from spotd.api.routes.access import ssh_address
from tests.spotd.api.rig import Rig, story

JUMP = Address("bastion.example.com", 2222, "spotd", "ssh-ed25519 AAAA")


@pytest.fixture
def rig() -> Iterator[Rig]:
    found = Rig()
    yield found
    found.close()


def with_clouds(rig: Rig, **services: Any) -> ApiContext:
    """The context of the rig with other services of its clouds."""
    context = rig.context()
    return replace(context, clouds=replace(context.clouds, **services))


@pytest.mark.parametrize("good", [True, False])
def test_the_doctor_tries_each(rig: Rig, good: bool) -> None:
    context = with_clouds(rig, try_jump_hosts=lambda: {"aws": (good, "what was found")})
    [check] = [c for c in doctor(ApiRequest(context))["checks"] if c["name"] == "jump host of aws"]
    assert (check["ok"], check["text"]) == (good, "what was found")
    assert "[providers.aws]" in check["try"]
    assert not [c for c in doctor(ApiRequest(rig.context()))["checks"] if "jump" in c["name"]]


def test_a_user_is_told_the_way(rig: Rig) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[-1]
    rig.address(node, "10.0.0.9", 22)
    assert ssh_address(ApiRequest(rig.context(), {"job": "gpt"}))["jump"] is None
    context = with_clouds(rig, jump_host={node.offer.provider: JUMP}.get)
    found = ssh_address(ApiRequest(context, {"job": "gpt"}))
    known = {"host": JUMP.host, "port": 2222, "host_public_key": "ssh-ed25519 AAAA"}
    assert (found["host"], found["jump"]) == ("10.0.0.9", known)
    assert JUMP.user not in found["jump"].values(), "that account is spotd's"
