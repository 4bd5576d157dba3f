"""The clouds' part of the doctor: what they are asked about, how it is told, and that a quota which
is there by now lets machines be asked for again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from providers.base import CapacityType, Scope
from providers.readiness import CapacityNeed, Finding, Grade, failed, need_of, passed, warning
from spotd.api.doctor.cloud_readiness import lifted_refusals
from spotd.api.doctor.health import doctor
from spotd.api.request.request import ApiRequest
from spotd.domain.job import Attempt
from spotd.domain.market import Refusal
from spotd.domain.node import Node
from spotd.domain.plan import AddNode, ChangeJob, OpenAttempt
from spotd.domain.states import NodeState
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig

P5 = need_of(SPOT)
PLAIN = CapacityNeed(**(vars(P5) | {"capacity_type": CapacityType.ON_DEMAND}))


@pytest.fixture
def rig() -> Iterator[Rig]:
    found = Rig()
    yield found
    found.close()


def asked(rig: Rig) -> dict[str, Any]:
    return doctor(ApiRequest(rig.context()))


def of_aws(rig: Rig) -> list[tuple[str, bool, bool]]:
    told = [check for check in asked(rig)["checks"] if check["name"].startswith("aws")]
    return [(check["name"], check["ok"], check["doubtful"]) for check in told]


def test_clouds_are_asked_for_what_the_jobs_need(rig: Rig) -> None:
    asked(rig)
    assert {need.job_name for need in rig.needs["aws"]} == {""}, "no job: whatever is on sale"
    text = JOB_FILE.replace("resources:", "num_nodes: 2\nresources:\n  use_spot: true")
    rig.submit("one", text=JOB_FILE.replace("resources:", "resources:\n  use_spot: true"))
    rig.submit("two", text=text)
    asked(rig)
    [need] = rig.needs["aws"]  # one, for both zones of the region
    assert (need.instance_type, need.count, need.job_name) == ("p5.48xlarge", 2, "two")
    assert [need.region for need in rig.needs["toy-gcp"]] == ["us-central1"]


def test_what_needs_a_look_is_no_failure(rig: Rig) -> None:
    rig.findings["aws"] = [passed("credentials", "me"), warning("network", "open", "close it", "r")]
    assert asked(rig)["ok"]
    assert of_aws(rig) == [("aws credentials", True, False), ("aws r network", True, True)]
    rig.findings["aws"].append(failed("image", "gone", "another", "r"))
    assert not asked(rig)["ok"]


def test_a_small_quota_fails_only_where_there_is_no_other(rig: Rig) -> None:
    small = Finding("quota", Grade.FAIL, "0 vCPUs", "ask for more", "a", lacks=(P5,))
    rig.findings["aws"] = [small]
    assert of_aws(rig) == [("aws a quota", False, False)]
    rig.findings["aws"].append(Finding("quota", Grade.OK, "192 vCPUs", region="b", serves=(P5,)))
    assert of_aws(rig) == [("aws a quota", True, True), ("aws b quota", True, False)]


def refusal(code: str = "NoQuotaError", zone: str = "us-east-1a", kind: str = "spot") -> Refusal:
    key = f"aws/us-east-1/{zone}/p5.48xlarge/{kind}"
    return Refusal(key, Scope.REGION, code, 1, "n")


def quota(*serves: CapacityNeed, lacks: tuple[CapacityNeed, ...] = ()) -> Finding:
    return Finding("quota", Grade.OK if serves else Grade.FAIL, "", serves=serves, lacks=lacks)


@pytest.mark.parametrize(
    ("findings", "refusals", "keys"),
    [
        ([quota(P5)], [refusal()], ["aws/us-east-1/us-east-1a/p5.48xlarge/spot"]),
        ([quota(P5)], [refusal(zone="us-east-1b")], ["aws/us-east-1/us-east-1b/p5.48xlarge/spot"]),
        ([quota(lacks=(P5,))], [refusal()], []),
        ([quota(PLAIN)], [refusal()], []),  # another quota
        ([quota(P5)], [refusal("QuotaError"), refusal("CapacityError")], []),
        ([quota(P5), quota(lacks=(P5,))], [refusal()], []),  # of two that count it one is short
        (
            [quota(PLAIN, lacks=(P5,))],
            [refusal(kind="on_demand")],
            [refusal(kind="on_demand").offer_key],
        ),
        ([passed("quota", "no word of a machine")], [refusal()], []),
    ],
)
def test_what_is_mended(findings: list[Finding], refusals: list[Refusal], keys: list[str]) -> None:
    assert lifted_refusals({"aws": findings}, refusals) == keys
    assert lifted_refusals({"gcp": findings}, refusals) == []


def test_a_quota_that_is_there_by_now_is_used_at_once(rig: Rig) -> None:
    job = rig.submit("gpt")
    at_us = rig.clock.now_us()
    node = Node("n1", job, 1, 0, 0, "t1", SPOT, NodeState.LAUNCHING, requested_at_us=at_us)
    opening = OpenAttempt(Attempt(job, 1, at_us, "test"))
    rig.commit(job, at_us, opening, ChangeJob({"generation": 1}), AddNode(node))
    rig.store.nodes.record_launch_refused(
        node.id, "NoQuotaError", "limit of 0", Scope.REGION, at_us
    )
    rig.findings["aws"] = [quota(lacks=(P5,))]
    asked(rig)
    assert len(rig.store.market.load(at_us).refusals) == 1, "as it was"
    rig.findings["aws"] = [quota(P5)]
    assert asked(rig)["checks"][-1]["text"] == f"there is quota now: {SPOT.key} is tried again"
    assert rig.store.market.load(at_us).refusals == ()
    assert [check["text"] for check in asked(rig)["checks"] if "by now" in check["text"]] == []
