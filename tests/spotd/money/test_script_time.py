"""What the time of a program that reports no steps went into, by what of it was saved."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.domain.lost_work import LostWork, TrainedAttempt
from spotd.domain.units import S
from spotd.money.hour_breakdown import TimeUse
from spotd.money.script_time import script_spans

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
