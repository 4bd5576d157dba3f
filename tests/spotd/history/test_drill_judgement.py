"""A drill is judged by what is on record: each thing that can be wrong, alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.fault_drill import SLACK_S, DrillEnd, DrillKind, FaultDrill
from spotd.domain.job import CheckpointSpec
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.history.drill_judgement import (
    LEAST,
    DrillRecord,
    Report,
    Save,
    judge,
    seam_of,
    sigmas_off,
)
from tests.spotd.planner.build import NOW, job, node, spec

R, G, T = NodeState.RUNNING, NodeState.GONE, NodeState.TERMINATING
STRUCK = NOW - 100 * S
OLD = node(G, last_step=100, gone_at_us=STRUCK + 8 * S, leave_reason=LeaveReason.DRILL, drill="x")
NEW = node(R, generation=2, first_step_at_us=STRUCK + 12 * S)
DRILL = FaultDrill(
    "d", "j0", DrillKind.SIGTERM, "ada", STRUCK - 2 * S, 60.0, OLD.id, STRUCK, STRUCK
)
KILL = replace(DRILL, kind=DrillKind.KILL)


def loss(step: int) -> float:
    """Falls slowly, and is noisy in a way that is the same each time."""
    return 3 - step / 1000 + (step * 7919 % 13 - 6) / 100


def reports(generation: int, first: int, last: int, at_us: int, off: float = 0.0) -> list[Report]:
    return [
        Report(generation, at, at + 9, tuple(loss(s) + off for s in range(at, at + 10)), at_us)
        for at in range(first, last, 10)
    ]


def record(resumed: int = 100, **fields: Any) -> DrillRecord:
    base = DrillRecord(
        job(spec=spec(checkpoint=CheckpointSpec("file:///c", "spotd", every_s=30.0))),
        [OLD, NEW],
        reports(1, 1, 100, STRUCK - S) + reports(2, resumed + 1, resumed + 40, NOW),
        [Save(1, 100, STRUCK + 2 * S, 1.0), Save(1, 90, STRUCK - 10 * S, 1.0)],
        {NEW.id: resumed},
        [(STRUCK - 3600 * S, STRUCK + 8 * S, 9_000_000), (STRUCK + 2 * S, 0, 18_000_000)],
        30.0,
    )
    return replace(base, **fields)


def ended(drill: FaultDrill, result: DrillRecord, now_us: int = NOW) -> tuple[DrillEnd | None, str]:
    done = judge(drill, result, now_us)
    return (None, "") if done is None else (done.end, done.text)


@pytest.mark.req("DRL-02")
def test_one_that_lost_nothing_passes_with_its_figures() -> None:
    done = judge(DRILL, record(), NOW)
    assert done is not None
    assert (done.end, done.text, done.ended_at_us) == (DrillEnd.PASSED, "", NOW)
    result = done.found
    assert (result.reached_step, result.resumed_step, result.lost_steps) == (100, 100, 0)
    assert result.first_step_s == 12.0
    assert result.sigmas is not None
    assert result.sigmas < 3
    # 8 s of the old machine at $9/h, 10 s of the new one at $18/h.
    assert result.cost_microusd == 20_000 + 50_000


@pytest.mark.req("DRL-02")
@pytest.mark.parametrize(
    ("why", "drill", "result"),
    [
        ("10 steps were lost, and it had time", DRILL, record(90)),
        (
            "saved nothing",
            DRILL,
            record(0, nodes=[changed(OLD, last_step=0), NEW], reports=[], saves=[]),
        ),
        ("not on record", DRILL, record(claims={})),
        (
            "sigma off",
            DRILL,
            record(reports=[*reports(1, 1, 100, STRUCK), *reports(2, 101, 140, NOW, 0.5)]),
        ),
        (
            "no longer finite",
            DRILL,
            record(reports=[*reports(1, 1, 100, STRUCK), *reports(2, 101, 140, NOW, math.nan)]),
        ),
        ("first step came after", replace(DRILL, within_s=11.0), record()),
        (
            "more than one machine",
            DRILL,
            record(nodes=[OLD, node(T, generation=2, candidate=1), NEW]),
        ),
        ("before its checkpoint 90", KILL, record(80)),
        ("no checkpoint to resume from", KILL, record(90, saves=[])),
        (
            "its checkpoint was 60 s old",
            KILL,
            record(90, saves=[Save(1, 90, STRUCK - 60 * S, 1.0)]),
        ),
    ],
)
def test_each_thing_that_is_wrong(why: str, drill: FaultDrill, result: DrillRecord) -> None:
    end, text = ended(drill, result)
    assert end is DrillEnd.FAILED
    assert why in text


def test_a_kill_may_lose_what_its_cadence_allows() -> None:
    assert ended(KILL, record(90)) == (DrillEnd.PASSED, "")
    steps = job(spec=spec(checkpoint=CheckpointSpec("file:///c", "spotd", 5, 0.0)))
    assert "it saves every 5" in ended(KILL, record(90, job=steps))[1]
    steps = job(spec=spec(checkpoint=CheckpointSpec("file:///c", "spotd", 10, 0.0)))
    assert ended(KILL, record(90, job=steps))[0] is DrillEnd.PASSED


def test_what_the_machine_before_had_saved_is_as_old_as_the_training_since() -> None:
    third = node(R, generation=3, first_step_at_us=STRUCK + 12 * S)
    old = changed(OLD, id="g2", generation=2, first_step_at_us=STRUCK - 20 * S)
    result = record(
        nodes=[node(G), old, third],
        reports=[*reports(1, 1, 90, STRUCK - 80 * S), *reports(2, 91, 100, STRUCK)]
        + reports(3, 91, 140, NOW),
        saves=[Save(1, 90, STRUCK - 90 * S, 1.0)],
        claims={third.id: 90},
    )
    done = judge(replace(KILL, node_id="g2"), result, NOW)
    assert done is not None
    assert (done.end, done.text) == (DrillEnd.PASSED, "")
    assert done.found.sigmas is not None, "the losses before are those of the first machine"
    late = changed(old, first_step_at_us=STRUCK - 60 * S)
    result = replace(result, nodes=[node(G), late, third])
    assert "60 s old" in ended(replace(KILL, node_id="g2"), result)[1]


def test_machines_that_others_replaced_with_reason_were_not_asked_for_twice() -> None:
    hedged = node(G, generation=2, candidate=1, leave_reason=LeaveReason.HEDGE_LOST)
    assert ended(DRILL, record(nodes=[OLD, hedged, NEW]))[0] is DrillEnd.PASSED


def test_it_waits_for_the_first_step_and_the_end_of_the_old_machine() -> None:
    end_us = STRUCK + 60 * S
    coming = record(nodes=[OLD, changed(NEW, first_step_at_us=0)], claims={})
    assert judge(DRILL, coming, end_us) is None
    assert ended(DRILL, coming, end_us + 1) == (
        DrillEnd.FAILED,
        "it did not train again, within 60 s",
    )
    there = record(nodes=[changed(OLD, state=T, gone_at_us=0), NEW])
    last_us = end_us + int(SLACK_S * S)
    assert judge(DRILL, there, last_us) is None
    assert "old machine is still there" in ended(DRILL, there, last_us + 1)[1]
    few = record(reports=[*reports(1, 1, 100, STRUCK), *reports(2, 101, 120, NOW)])
    assert judge(DRILL, few, last_us) is None, "there may be more losses to judge by"
    assert ended(DRILL, few, last_us + 1)[0] is DrillEnd.PASSED
    over = replace(coming, job=replace(coming.job, outcome=Outcome.CANCELLED))
    assert "the job ended before that" in ended(DRILL, over)[1]


AGENT = replace(DRILL, kind=DrillKind.AGENT)
HERE = changed(OLD, state=R, gone_at_us=0, booted_at_us=STRUCK + S)
TOLD = reports(1, 1, 100, STRUCK - S)
ON = [*TOLD, *reports(1, 101, 140, STRUCK + 3 * S)]


def test_an_agent_that_is_killed_leaves_the_program_training() -> None:
    done = judge(AGENT, record(nodes=[HERE], reports=ON), NOW)
    assert done is not None
    assert (done.end, done.found.lost_steps, done.found.first_step_s) == (DrillEnd.PASSED, 0, 3.0)
    assert done.found.cost_microusd == 0
    assert judge(AGENT, record(nodes=[HERE], reports=TOLD), STRUCK + 60 * S) is None
    assert "no other agent" in ended(AGENT, record(nodes=[HERE], reports=TOLD))[1]
    gone = changed(HERE, state=G, leave_reason=LeaveReason.DRILL)
    assert "its machine was left" in ended(AGENT, record(nodes=[gone], reports=TOLD))[1]
    twice = [*TOLD, *reports(1, 91, 130, STRUCK + 3 * S)]
    assert "10 steps were trained twice" in ended(AGENT, record(nodes=[HERE], reports=twice))[1]


def test_a_trend_that_bends_is_no_seam_and_a_jump_is_one() -> None:
    early = [5 * 0.97**step + loss(step) / 50 for step in range(80)]
    off = sigmas_off(early[:40], early[40:])
    assert off is not None
    assert off > 3, "by a straight line alone it would be one"
    seam = seam_of(early[:40], early[40:])
    assert seam is not None
    assert seam[0] <= seam[1]
    anew = seam_of(early[40:], early[:40])
    assert anew is not None
    assert anew[0] > anew[1], "one that began anew is seen"


def test_of_too_few_or_none_nothing_is_said() -> None:
    few = [1.0] * (LEAST - 1)
    assert sigmas_off(few, [1.0] * 9) is sigmas_off([1.0] * 9, few) is None
    assert sigmas_off([1.0] * 9, [float("nan")] * 9) is None
    assert sigmas_off([1.0] * 9, [1.0] * 9) == 0.0


def test_losses_that_no_square_can_be_reckoned_of_are_none() -> None:
    wild = [1e308, -1e308] * 10
    assert seam_of(wild, wild) is None
    assert seam_of([1.0] * 20, wild) is None
