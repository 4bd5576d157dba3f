"""Every billed microsecond is of one use, and so is every micro-dollar."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotd.domain.lost_work import LostWork, TrainedAttempt
from spotd.domain.units import S
from spotd.money.hour_breakdown import (
    END_US,
    Machine,
    Save,
    Segment,
    Steps,
    TimeUse,
    script_spans,
    split_segment,
    trained,
)
from spotd.money.report import report_of, timed
from tests.spotd.money.build import H, account, machine, save, steps, stretch


def hours(*machines: Machine, **fields: object) -> dict[str, float]:
    result = report_of(account(*machines, **fields))
    return {use.value: round(time.hours, 6) for use, time in result.uses.items()}


def test_a_life() -> None:
    """Booted, set up, waited for the one before, restored, trained with a save, saved, idled."""
    item = machine(
        stretch(0, 4),
        ready_at_us=H // 4,
        claimed_at_us=H // 2,
        ended_at_us=int(3.75 * H),
    )
    rows = [steps(1, (1, 100), (1, 2), 1.0), steps(1, (101, 200), (2.2, 3.25), 1.0)]
    saves = [save(1, 100, 0.125), save(1, 200, 0.125, 0.25)]
    assert hours(item, steps=tuple(rows), saves=tuple(saves)) == {
        "startup": 0.75,  # a quarter until it was ready, a half from its claim to the first step
        "waiting": 0.25,
        "useful": 2.0,
        "checkpoint": 0.5,  # 0.125 between the reports, and the last one, until it was stored
        "idle": 0.5,  # 0.125 between the reports, that no save took, and the end
    }


@pytest.mark.req("CST-07")
def test_steps_that_were_made_again_are_replayed() -> None:
    """100 steps in an hour, of which the next machine makes the last 25 again."""
    first = machine(stretch(0, 1.5), claimed_at_us=0)
    second = machine(stretch(1.5, 3), generation=2)
    rows = (steps(1, (1, 100), (0.25, 1.25), 1.0), steps(2, (76, 175), (2, 3), 1.0))
    result = hours(first, second, steps=rows)
    assert result == {"startup": 0.75, "useful": 1.75, "replayed": 0.25, "idle": 0.25}


def test_a_machine_that_was_never_chosen_only_started() -> None:
    lost = machine(stretch(0, 0.5), chosen=False, hedge_lost=True, rank=1, ready_at_us=H // 4)
    result = report_of(account(machine(stretch(0, 1)), lost, steps=(steps(1, (1, 9), (0.5, 1)),)))
    assert result.uses[TimeUse.STARTUP].hours == 1.0
    assert (result.hedge_losers, result.hedge.hours, result.hedge_microusd) == (1, 0.5, 1_000_000)


def test_without_reports_nothing_is_called_useful() -> None:
    item = machine(stretch(0, 4), ready_at_us=H, claimed_at_us=2 * H, ended_at_us=3 * H)
    assert hours(item) == {"startup": 1.0, "waiting": 1.0, "untold": 1.0, "idle": 1.0}
    assert report_of(account(item)).microusd_per_useful_gpu_h is None


def test_a_gang_trains_together() -> None:
    ranks = [machine(stretch(0, 2), rank=rank) for rank in range(2)]
    result = hours(*ranks, steps=(steps(1, (1, 9), (1, 2), 1.0),), num_nodes=2)
    assert result == {"startup": 2.0, "useful": 2.0}


@pytest.mark.parametrize("ahead_h", [0.0, 0.5, -0.25, 100.0])
def test_a_node_may_have_any_time(ahead_h: float) -> None:
    ahead_us = int(ahead_h * H)
    row = steps(1, (1, 100), (1, 2), 1.0)
    row = replace(row, first_at_us=H + ahead_us, last_at_us=2 * H + ahead_us)
    assert hours(machine(stretch(0, 3)), steps=(row,)) == {
        "startup": 1.0,
        "useful": 1.0,
        "idle": 1.0,
    }


def test_a_program_that_does_not_say_how_busy_it_was() -> None:
    row = steps(1, (1, 100), (1, 3))
    spans = trained([row], [save(1, 50, 0.5)])[1]
    assert [(use, (to - since) / H) for since, to, use in spans] == [
        (TimeUse.USEFUL, 1.5),
        (TimeUse.CHECKPOINT, 0.5),
    ]


def test_money_by_use_of_one_stretch() -> None:
    spans = [(0, H // 3, TimeUse.STARTUP), (H // 3, END_US, TimeUse.USEFUL)]
    times, costs = split_segment(stretch(0, 1, 1_000_001), spans, 0, END_US)
    assert sum(times.values()) == H
    assert sum(costs.values()) == 1_000_001


minutes = st.integers(0, 600)
rates = st.integers(0, 9_999_999)


@st.composite
def lives(draw: st.DrawFn) -> tuple[Machine, ...]:
    """Machines whose record may say anything, in any order."""
    result = []
    for number in range(draw(st.integers(1, 3))):
        ends = sorted(draw(st.lists(minutes, min_size=2, max_size=5, unique=True)))
        cut = [
            Segment(a * H // 60 + number, b * H // 60 + number, draw(rates))
            for a, b in pairwise(ends)
        ]
        ready, claimed, ended = (draw(minutes) * H // 60 for _ in range(3))
        chosen = draw(st.booleans())
        result.append(
            Machine(
                f"n{number}",
                draw(st.integers(1, 2)),
                tuple(cut),
                gpus=8,
                chosen=chosen,
                ready_at_us=ready,
                claimed_at_us=claimed,
                ended_at_us=ended,
            )
        )
    return tuple(result)


@st.composite
def reports(draw: st.DrawFn) -> Steps:
    first, last = sorted((draw(st.integers(1, 50)), draw(st.integers(1, 50))))
    begun, done = sorted((draw(minutes) * H // 60, draw(minutes) * H // 60))
    busy, at = draw(minutes) * H // 60, draw(minutes) * H // 60
    return Steps(draw(st.integers(1, 2)), first, last, begun, done, busy, at)


saved = st.builds(Save, st.integers(1, 2), st.integers(0, 50), minutes.map(lambda m: m * H // 60))


@given(lives(), st.lists(reports(), max_size=4), st.lists(saved, max_size=2), minutes)
def test_hours_add_up_to_those_billed_and_money_to_the_ledger(
    machines: tuple[Machine, ...], rows: list[Steps], saves: list[Save], cut: int
) -> None:
    whole = account(*machines, steps=tuple(rows), saves=tuple(saves))
    result = report_of(whole)
    parts = [part for item in machines for part in item.stretches]
    assert result.billed.us == sum(part.end_us - part.start_us for part in parts)
    assert result.gpu_hours.us == 8 * result.billed.us
    ledger = sum(part.spent(0, END_US) for part in parts)
    assert sum(result.costs.values()) == result.total_microusd == ledger
    for _, spans in timed(whole):
        assert all(a[1] == b[0] for a, b in pairwise(spans)), "no overlap"
    at_us = cut * H // 60
    halves = [report_of(whole, 0, at_us), report_of(whole, at_us, END_US)]
    assert sum(half.total_microusd for half in halves) == ledger, "months add up"
    assert sum(half.billed.us for half in halves) == result.billed.us
    for item in result.instead:
        if item.saving is not None and item.discount is not None:
            assert item.saving <= item.discount


USEFUL, REPLAYED, UNTOLD = TimeUse.USEFUL, TimeUse.REPLAYED, TimeUse.UNTOLD


def attempt(generation: int, began_s: int, ended_s: int) -> TrainedAttempt:
    return TrainedAttempt(
        generation=generation,
        began_us=began_s * S,
        ended_us=ended_s * S,
        last_step=0,
        resumed_step=0,
        microusd_per_h=1,
    )


def lost(seconds: float, *, anew: bool = False) -> LostWork:
    return LostWork(None, seconds, 0, anew=anew)


def spans(*attempts: TrainedAttempt, losses: dict[int, LostWork], **given: Any) -> dict[int, Any]:
    values = {"saved_at_us": 0, "succeeded": False} | given
    found = script_spans(attempts, losses, **values)
    return {
        generation: [(start // S, end // S, use) for start, end, use in parts]
        for generation, parts in found.items()
    }


def test_a_success_was_useful_from_its_start_to_its_end() -> None:
    assert spans(attempt(1, 10, 90), losses={}, succeeded=True) == {1: [(10, 90, USEFUL)]}


def test_while_it_runs_its_saves_are_all_that_is_known() -> None:
    running = attempt(1, 10, 90)
    assert spans(running, losses={}) == {1: [(10, 90, UNTOLD)]}
    assert spans(running, losses={}, saved_at_us=50 * S) == {
        1: [(10, 50, USEFUL), (50, 90, UNTOLD)]
    }
    assert spans(running, losses={}, saved_at_us=95 * S) == {1: [(10, 90, USEFUL)]}


def test_what_was_lost_was_made_again() -> None:
    both = (attempt(1, 10, 90), attempt(2, 100, 150))
    assert spans(*both, losses={2: lost(20)}, succeeded=True) == {
        1: [(10, 70, USEFUL), (70, 90, REPLAYED)],
        2: [(100, 150, USEFUL)],
    }


def test_to_begin_anew_loses_what_was_kept_before_as_well() -> None:
    three = (attempt(1, 10, 90), attempt(2, 100, 150), attempt(3, 200, 300))
    losses = {2: lost(20), 3: lost(110, anew=True)}
    assert spans(*three, losses=losses, succeeded=True) == {
        1: [(10, 70, REPLAYED), (70, 90, REPLAYED)],
        2: [(100, 150, REPLAYED)],
        3: [(200, 300, USEFUL)],
    }


@pytest.mark.parametrize("seconds", [80, 500])
def test_more_is_lost_than_an_attempt_took(seconds: float) -> None:
    both = (attempt(1, 10, 90), attempt(2, 100, 150))
    assert spans(*both, losses={2: lost(seconds)}, succeeded=True)[1] == [(10, 90, REPLAYED)]


def test_an_attempt_that_took_no_time_has_none() -> None:
    assert spans(attempt(1, 10, 10), losses={}, succeeded=True) == {}
