"""What is listed of notices: documented, observed by this fleet, and the least of both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spotd.api.request.request import ApiRequest
from spotd.api.routes.notice_times import providers
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason
from spotd.store.journal import JournalBatch
from spotd.wire import JournalEntry
from tests.spotd.api.rig import SPOT, Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def told(rig: Rig) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = providers(ApiRequest(rig.context()))["items"]
    return found


def notices(rig: Rig) -> dict[str, Any]:
    return {one["name"]: one["notice_s"] for one in told(rig)}


@pytest.mark.req("PRE-04")
def test_before_anything_was_seen(rig: Rig) -> None:
    found = notices(rig)
    assert {name: one["planned"] for name, one in found.items()} == {
        "aws": 120, "azure": 30, "gcp": 30, "lambda": None, "lyceum": None, "runpod": 5, "vast": 0,
    }  # fmt: skip
    assert found["aws"]["count"] == 0
    assert found["aws"]["observed_p10"] is None
    assert "docs.aws.amazon.com" in found["aws"]["source"]
    assert found["lambda"]["claimed"] == [60, 90]
    items = {one["name"]: one for one in providers(ApiRequest(rig.context()))["items"]}
    assert items["aws"]["providers"] == ["aws"]
    assert items["gcp"]["providers"] == [], "a local cloud is none"


def warn(rig: Rig, node: Node, ago_s: float, had_s: float) -> None:
    """A notice `ago_s` ago; the machine speaks until its deadline, `had_s` later."""
    told = {"notice_id": f"n{ago_s}", "kind": "preempt", "source": "imds"}
    for number, at_s, kind, data in (
        (1000, ago_s, "notice", {**told, "remaining_s": had_s}),
        (1001, ago_s - had_s, "draining", {"reason": "notice", "plan": "save"}),
    ):
        at_us = rig.ago(at_s)
        entry = JournalEntry(number, at_us, node.generation, kind, data)
        rig.store.journal.record([JournalBatch(node.id, (entry,), at_us)])


@pytest.mark.req("PRE-04")
def test_what_was_observed_counts_where_it_is_less(rig: Rig) -> None:
    job_id = rig.submit(ago_s=9000)
    for at_s, had_s in ((8000, 90.0), (6000, 40.0), (4000, 118.0)):
        node = rig.launch(job_id, SPOT, ago_s=at_s)
        rig.train(node, ago_s=at_s - 60, until_s=at_s - 900, first=0, last=9)
        warn(rig, node, at_s - 1000, had_s)
        rig.leave(node, at_s - 1000 - had_s, LeaveReason.PREEMPTED, "preempt notice")
    found = notices(rig)["aws"]
    assert found["count"] == 3
    # Half way from the least to the middle one, at two tenths of it.
    assert found["observed_p10"] == pytest.approx(40 + 0.2 * 50, abs=1)
    assert found["observed_p50"] == pytest.approx(90, abs=1)
    assert found["planned"] == found["observed_p10"] < found["documented"]


@pytest.mark.req("DAT-05")
def test_who_takes_nothing_for_bytes_that_leave(rig: Rig) -> None:
    """An attribute of each cloud, with its day and source; where nothing is on file nothing is
    said."""
    found = {one["name"]: one["egress"] for one in told(rig)}
    assert {name for name, one in found.items() if one and one["zero"]} == {"lyceum", "runpod"}
    assert {name: one["usd_per_gb"] for name, one in found.items() if one} == {
        "aws": 0.09, "azure": 0.0875, "gcp": 0.12, "lyceum": 0.0, "runpod": 0.0,
    }  # fmt: skip
    assert found["vast"] is None
    for one in found.values():
        assert one is None or (one["source"] and one["dated"] >= "2026-01-01")
