"""What an interruption took, in two parts: until training went on, and what was trained again."""

from __future__ import annotations

import pytest

from spotd.money.hour_breakdown import TimeUse
from spotd.money.report import report_of
from tests.spotd.money.build import account, machine, steps, stretch

MINUTES = 60
AGAIN_MIN, UNTIL_MIN, TRAINED_MIN = 25, 11, 1800


@pytest.mark.req("RPV-05")
def test_a_case_studys_seven_interruptions() -> None:
    """36 minutes each, of which 11 until the next step and 25 of steps that were made again: of
    4.2 h, 1.28 h and 2.92 h. A step is a minute; the first machine trains at once."""
    machines, rows, at_min, first = [], [], 0, 1
    for generation in range(1, 9):
        until_min = UNTIL_MIN if generation > 1 else 0
        begin_min, end_min = at_min + until_min, at_min + until_min + TRAINED_MIN
        hours = (begin_min / MINUTES, end_min / MINUTES)
        rows.append(steps(generation, (first, first + TRAINED_MIN - 1), hours, 30))
        rented = stretch(at_min / MINUTES, end_min / MINUTES)
        machines.append(machine(rented, generation=generation, claimed_at_us=1))
        at_min, first = end_min, first + TRAINED_MIN - AGAIN_MIN
    result = report_of(account(*machines, steps=tuple(rows)))
    hours_by_use = {use: round(time.hours, 2) for use, time in result.uses.items()}
    assert hours_by_use == {
        TimeUse.USEFUL: 8 * 30 - 2.92,
        TimeUse.STARTUP: 1.28,
        TimeUse.REPLAYED: 2.92,
    }
    lost = (result.uses[TimeUse.STARTUP].us + result.uses[TimeUse.REPLAYED].us) / 3.6e9
    assert lost == pytest.approx(4.2)
    each_usd = 2.0
    assert result.costs[TimeUse.REPLAYED] / 1e6 == pytest.approx(7 * 25 / 60 * each_usd, abs=1e-4)
    assert result.costs[TimeUse.STARTUP] / 1e6 == pytest.approx(7 * 11 / 60 * each_usd, abs=1e-4)
