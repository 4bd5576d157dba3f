"""Duration of each hand-over, part by part, and the steps that it cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import NoticeKind
from spotd.api.views.lost_work import RecoveryCounts, count_recoveries, losses, lost_in_all
from spotd.api.views.recoveries import MOST_SAVES, PARTS, hand_overs, saves
from spotd.domain.job import CheckpointSpec
from spotd.domain.node import Node, NoticeRecord
from spotd.domain.states import LeaveReason
from spotd.domain.units import S
from spotd.store.checkpoints import CheckpointRow
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import OFFERS, SPOT, Rig, story
from tests.spotd.planner.build import job, spec
from tests.spotd.store import build


def trained(generation: int, start_s: int, **fields: Any) -> Node:
    """Asked for at `start_s`, and a second later with each part."""
    times = {
        name: (start_s + number) * S
        for number, name in enumerate(
            (
                "requested_at_us",
                "launched_at_us",
                "hello_at_us",
                "ready_at_us",
                "claimed_at_us",
                "first_step_at_us",
            )
        )
    }
    return build.new_node(generation=generation, **(times | fields))


def found_in(*nodes: Node, **fields: Any) -> list[dict[str, Any]]:
    """The hand-overs of a job that reports its steps."""
    saving = job(spec=spec(checkpoint=CheckpointSpec("s3://b/x", "spotd")))
    return hand_overs(nodes, losses(saving, nodes, []), {}, **fields)


def test_a_death_costs_what_was_not_saved_and_the_time_to_hear_of_it() -> None:
    old = trained(1, 10, heard_at_us=100 * S, left_at_us=103 * S, last_step=140,
                  leave_reason=LeaveReason.LOST)  # fmt: skip
    new = trained(2, 104, resumed_step=120)
    (found,) = found_in(old, new)
    assert found["parts"] == dict(zip(PARTS, (3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), strict=True))
    assert found["total_s"] == sum(found["parts"].values()) == 9.0
    assert (found["resumed_step"], found["steps_lost"]) == (120, 20)
    assert (found["reason"], found["noticed"], found["overlap"]) == ("lost", False, False)


def test_parts_that_overlap_are_counted_once() -> None:
    """The new machine claims HEAD before it is ready, and its clock is set back."""
    old = trained(1, 10, heard_at_us=100 * S, left_at_us=101 * S)
    new = trained(2, 102, claimed_at_us=104 * S, ready_at_us=106 * S, hello_at_us=50 * S)
    (found,) = found_in(old, new)
    assert min(found["parts"].values()) >= 0
    assert sum(found["parts"].values()) == pytest.approx(found["total_s"])
    assert found["total_s"] == 7.0
    assert found["parts"]["claim_s"] == 0.0
    assert found["steps_lost"] is None


def test_with_a_notice_time_begins_with_it() -> None:
    notice = NoticeRecord("n1", NoticeKind.PREEMPT, 100 * S, 130 * S)
    old = trained(1, 10, heard_at_us=110 * S, last_step=50, notices=(notice,))
    new = trained(2, 101, resumed_step=50)
    (found,) = found_in(old, new)
    assert found["noticed"]
    assert found["overlap"]
    assert (found["total_s"], found["steps_lost"]) == (6.0, 0)
    assert found["parts"]["detect_s"] == 0.0


def test_machines_that_never_trained_and_other_ranks_hand_nothing_over() -> None:
    old, new = trained(1, 10, heard_at_us=90 * S), trained(3, 101)
    refused = trained(2, 95, first_step_at_us=0)
    other = replace(trained(1, 11), id="j1-g1-r1", rank=1)
    found = found_in(new, refused, other, old)
    assert [(one["from_generation"], one["to_generation"]) for one in found] == [(1, 3)]
    assert found_in(old) == []


def test_only_the_newest_saves_are_told_and_those_that_were_gone_on_from() -> None:
    def row(step: int, size: int = 1) -> CheckpointRow:
        return CheckpointRow("j1", 1, step, f"m{step}", size, "", False, False, step * S, 0, 0)

    rows = [row(step) for step in range(1, MOST_SAVES + 51)] + [row(9999, 0)]
    found = saves(rows, [{"resumed_step": 7}])
    steps = [one["step"] for one in found]
    assert steps == [7, *range(51, MOST_SAVES + 51)]


def test_the_api_tells_them(rig: Rig, client: PathClient) -> None:
    job_id = rig.submit("lost", ago_s=4000)
    first = rig.launch(job_id, SPOT, ago_s=3900)
    rig.train(first, ago_s=3800, until_s=1000, first=0, last=100)
    rig.say(first, 950, "progress", from_step=101, to_step=130, losses=[],
            first_at_us=rig.ago(1000), last_at_us=rig.ago(950), tokens=1, busy_s=1.0)  # fmt: skip
    rig.leave(first, 940, LeaveReason.LOST, "gone")
    second = rig.launch(job_id, OFFERS[2], ago_s=930)
    rig.train(second, ago_s=900, until_s=60, first=100, last=300)
    data = client.get(f"/v1/jobs/{job_id}")
    (found,) = data["hand_overs"]
    assert (found["resumed_step"], found["steps_lost"], data["steps_lost"]) == (100, 30, 30)
    assert found["total_s"] == pytest.approx(50, abs=0.1)
    assert [one["step"] for one in data["saves"]] == [100, 300]
    assert client.get(f"/v1/jobs/{story(rig)}")["steps_lost"] == 0


def test_what_a_script_loses_adds_up_over_its_attempts() -> None:
    """It resumed once, from a save 20 s before the end, and then began anew."""
    script = job(spec=spec(checkpoint=CheckpointSpec("s3://b/x", directory="out")))

    def attempt(generation: int, start_s: int, **fields: Any) -> Node:
        end_s = start_s + 105
        return trained(generation, start_s, heard_at_us=end_s * S, resumed_step=1, **fields)

    nodes = [attempt(1, 10), attempt(2, 200), attempt(3, 400, anew_at_us=450 * S)]
    saves = [
        CheckpointRow("j1", generation, 1, f"m{generation}", 1, "", False, False, at_s * S, 0, 0)
        for generation, at_s in ((1, 95), (2, 305))
    ]
    lost = losses(script, nodes, saves)
    assert [(lost[g].seconds, lost[g].anew) for g in (2, 3)] == [(20.0, False), (180.0, True)]
    assert lost_in_all(lost.values())["lost_s"] == 200.0
    assert lost_in_all(lost.values())["steps_lost"] is None
    assert count_recoveries(nodes, lost) == RecoveryCounts(0, 0), "none was taken away"
    gone = [
        replace(n, departure=replace(n.departure, leave_reason=LeaveReason.LOST)) for n in nodes
    ]
    assert count_recoveries(gone, lost) == RecoveryCounts(resumed=1, anew=1)
