"""How a job goes on, from what is on record of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.job import Desired
from spotd.domain.node import Node
from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.preferences import Preferences, Speed
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import US_PER_H, S
from spotd.history.completion_estimate import (
    ANEW,
    ENDED,
    NEVER,
    NO_AMOUNT,
    NO_STEPS,
    PAUSED,
    JobRecord,
    estimate_completion,
    losses_s,
    step_times,
)
from spotd.money.hour_breakdown import Segment, Steps
from spotd.planner.core.remaining_work import START_S
from tests.spotd.planner.build import NOW, head, market, node, spec, view

H = US_PER_H
BEGUN = NOW - 10 * H


def report(generation: int, first: int, last: int, from_h: float, to_h: float) -> Steps:
    """At hours since it began; heard at once."""
    begin_us, end_us = BEGUN + round(from_h * H), BEGUN + round(to_h * H)
    return Steps(generation, first, last, begin_us, end_us, end_us - begin_us, end_us)


def segment(from_h: float, to_h: float, rate: int = 10_000_000, running: bool = False) -> Segment:
    begin_us, end_us = BEGUN + round(from_h * H), BEGUN + round(to_h * H)
    return Segment(begin_us, end_us, rate, 50_000_000, 40_000_000, running=running)


FIRST = node(NodeState.GONE, leave_reason=LeaveReason.PREEMPTED, chosen=True)
SECOND = node(NodeState.RUNNING, generation=2, chosen=True, first_step_at_us=BEGUN + 6 * H)
# Five hours of 180 steps each; taken away; half an hour later it is 45 steps back, and goes on.
STEPS = (
    *(report(1, 180 * n + 1, 180 * n + 180, n, n + 1) for n in range(5)),
    *(report(2, 856 + 180 * n, 1035 + 180 * n, 5.5 + n, 6.5 + n) for n in range(4)),
)


def facts(
    *nodes: Node, steps: tuple[Steps, ...] = STEPS, job: Any = None, **wish: Any
) -> JobRecord:
    preferences = Preferences(**(wish or {"work_steps": 3000}))
    values = {
        "generation": 2,
        "head": head(step=1500),
        "spec": spec(preferences=preferences),
        **(job or {}),
    }
    segments = [segment(0, 5), segment(5, 10, 20_000_000, running=True)]
    mine = nodes or (FIRST, SECOND)
    return JobRecord(view(job=values).job, mine, segments, steps, market(), NOW)


def test_the_pace_is_that_of_its_reports_stalls_included() -> None:
    result = step_times(STEPS)
    assert result is not None
    assert (result.step_s, result.steps) == (20.0, 1620)
    assert result.stretches == [20.0] * 9
    slow = step_times([report(1, 1, 90, 0, 0.5), report(1, 91, 180, 0.75, 1.25)])
    assert slow is not None
    assert slow.step_s == 25.0, "a quarter of an hour between two reports is its, too"
    assert step_times([]) is None


def test_of_what_went_back_the_way_back_is_no_step() -> None:
    rows = [report(1, 1, 180, 0, 1), report(1, 91, 180, 5, 5.5)]
    result = step_times(rows)
    assert result is not None
    assert (result.step_s, result.steps) == (20.0, 270)


def test_an_interruption_takes_until_the_first_new_step() -> None:
    """Half an hour without a step, and 45 steps of 20 s again."""
    assert losses_s(facts()) == [pytest.approx(1800 + 45 * 20, abs=21)]
    paused = changed(FIRST, leave_reason=LeaveReason.CANCELLED)
    assert losses_s(facts(paused, SECOND)) == [], "a pause is its user's"
    assert losses_s(facts(steps=STEPS[:6])) != []
    assert losses_s(facts(steps=(*STEPS[:5], report(2, 856, 890, 5.5, 5.7)))) == [], "not yet"


def test_any_clock_of_a_machine_will_do() -> None:
    off = 7 * H
    steps = tuple(
        replace(row, first_at_us=row.first_at_us + off, last_at_us=row.last_at_us + off)
        if row.generation == 2
        else row
        for row in STEPS
    )
    assert losses_s(facts(steps=steps)) == losses_s(facts())


@pytest.mark.req("BUD-04")
def test_the_whole() -> None:
    """1,575 steps made of 3,000, 20 s each: 7.92 h are left at least, for $20 an hour."""
    result = estimate_completion(facts())
    assert (result.step, result.saved_step, result.steps) == (1575, 1500, 3000)
    assert result.left_s == 1425 * 20.0
    assert (result.spent_microusd, result.microusd_per_h) == (150_000_000, 20_000_000)
    assert result.mean_microusd_per_h == 15_000_000
    assert result.unknown == ""
    known, done = result.known, result.completion
    assert known is not None
    assert done is not None
    assert known.losses_s == [*losses_s(facts()), START_S + 300 / 2]
    assert done.hours.low >= 1425 * 20 / 3600
    assert done.hours.low < done.hours.middle < done.hours.high
    low, middle, high = result.final_microusd or (0, 0, 0)
    assert 150e6 + 10e6 * done.hours.low <= low < middle < high
    assert middle == pytest.approx(150e6 + 20e6 * done.hours.middle, rel=0.25)
    assert result.list_left_microusd == round(50e6 * 1425 * 20 / 3600)
    assert result.best_left_microusd == round(40e6 * 1425 * 20 / 3600)
    assert any("1 of this job" in text for text in result.notes)
    assert not any("does not train now" in text for text in result.notes)


def test_what_does_not_train_now_has_to_start_first() -> None:
    gone = replace(SECOND, state=NodeState.GONE)
    result, before = estimate_completion(facts(FIRST, gone)), estimate_completion(facts())
    assert result.step == 1500, "what was not saved is gone with it"
    assert result.known is not None
    assert result.known.starts
    assert result.completion is not None
    assert before.completion is not None
    assert result.completion.hours.middle > before.completion.hours.middle
    assert any("does not train now" in text for text in result.notes)


def test_a_total_that_the_program_names_counts_where_the_file_has_none() -> None:
    named = replace(SECOND, training=replace(SECOND.training, total_steps=2000))
    nothing = {"job": {"spec": spec(preferences=Preferences())}}
    result = estimate_completion(facts(FIRST, named, **nothing))
    assert (result.steps, result.left_s) == (2000, 425 * 20.0)
    of_file = estimate_completion(facts(FIRST, named))
    assert (of_file.steps, of_file.left_s) == (3000, 1425 * 20.0), "the job file's number counts"
    in_hours = estimate_completion(facts(FIRST, named, work_s=16 * 3600.0))
    assert in_hours.left_s == 16 * 3600 - 1575 * 20


def test_work_in_hours_is_of_the_first_machine_named() -> None:
    """16 h of it: 8.75 h of steps are done, as fast; or all in half the time where it is twice as
    fast."""
    assert estimate_completion(facts(work_s=16 * 3600.0)).left_s == 16 * 3600 - 1575 * 20
    speeds = (Speed(SECOND.offer.accelerator, SECOND.offer.accelerator_count, 2.0),)
    fast = estimate_completion(facts(work_s=24 * 3600.0, speeds=speeds))
    assert fast.left_s == 12 * 3600 - 1575 * 20
    assert estimate_completion(facts(work_s=3600.0)).left_s == 20.0, (
        "a step at least: its end is its own"
    )


@pytest.mark.parametrize(
    ("changed", "unknown"),
    [
        ({"job": {"spec": spec(preferences=Preferences())}}, NO_AMOUNT),
        ({"job": {"desired": Desired.PAUSE}}, PAUSED),
        ({"job": {"outcome": Outcome.SUCCEEDED}}, ENDED),
        ({"steps": ()}, NO_STEPS),
    ],
)
def test_what_cannot_be_told_is_not_told(changed: dict[str, Any], unknown: str) -> None:
    result = estimate_completion(facts(**changed))
    assert (result.unknown, result.completion, result.final_microusd) == (unknown, None, None)
    assert result.spent_microusd == 150_000_000, "what is known is shown"


def test_nothing_is_foretold_by_what_the_file_hopes_of_a_step() -> None:
    assert estimate_completion(facts(steps=(), work_steps=3000, step_s=1.0)).unknown == NO_STEPS


def test_of_what_keeps_nothing_no_end_is_foretold() -> None:
    plain = spec(preferences=Preferences(work_steps=3000))
    bare = replace(plain, checkpoint=replace(plain.checkpoint, engine="none"))
    assert estimate_completion(facts(job={"spec": bare})).unknown == ANEW


def test_what_is_taken_away_all_the_time_is_never_done() -> None:
    stays = tuple(
        NodeLifetime(
            f"x-g{n}-0",
            SECOND.offer.key,
            NOW - 9 * S,
            began_at_us=NOW - 9 * S,
            until_us=NOW,
            left=LeaveReason.PREEMPTED,
        )
        for n in range(2000)
    )
    crowded = replace(facts(), market=changed(market(), history=FleetHistory(stays)))
    result = estimate_completion(crowded)
    assert (result.unknown, result.completion) == (NEVER, None)
