"""When it is done at what cost: by hand where that can be reckoned, and how often it holds."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from spotd.history.completion_interval import (
    COVERAGE,
    Measurements,
    completion,
    interruptions,
    quantiles,
)

# Ten hours left at $20 an hour, on machines that nobody has seen taken away in 100 hours.
CALM = Measurements(36_000.0, [1.0], [600.0], [20.0], 1, 0, 100.0, 4.0)


def test_what_nothing_interrupts_takes_what_is_left() -> None:
    result = completion(replace(CALM, hours=1e9))
    assert result is not None
    assert (result.hours.low, result.hours.middle, result.hours.high) == (10.0, 10.0, 10.0)
    assert result.cost.middle == 200.0
    assert result.interruptions.high == 0


def test_how_many_interruptions_by_hand() -> None:
    """A hazard of Gamma(1, 4): the Poisson of it in 4 hours is geometric with 1/2."""
    result = dict(interruptions(1.0, 4.0, 4.0))
    assert [round(result[n], 6) for n in range(4)] == [0.5, 0.25, 0.125, 0.0625]
    assert sum(result.values()) == pytest.approx(1, abs=1e-3)


def test_many_are_told_by_their_quantiles() -> None:
    """Gamma(100, 1) and 10 hours: 1,000 in the mean, with sqrt(1000 + 1000^2 / 100)."""
    result = interruptions(100.0, 1.0, 10.0)
    assert len(result) == 41
    mean = sum(count * weight for count, weight in result)
    assert mean == pytest.approx(1000, rel=0.01)
    low, high = quantiles(result, (0.05, 0.95))
    deviation = math.sqrt(1000 + 1000**2 / 100)
    assert (high - low) / 2 == pytest.approx(1.645 * deviation, rel=0.07)
    assert interruptions(1.0, 4.0, 0.0) == [(0, 1.0)]


@pytest.mark.parametrize(
    ("change", "later"),
    [
        ({"losses": 300}, True),
        ({"losses_s": [36_000.0]}, True),
        ({"num_nodes": 64}, True),
        ({"starts": True}, True),
        ({"paces": [1.0, 2.0]}, True),
        ({"rates": [20.0, 40.0]}, False),
    ],
)
def test_each_term_counts(change: dict[str, object], later: bool) -> None:
    before, after = completion(CALM), completion(replace(CALM, **change))  # type: ignore[arg-type]
    assert before is not None
    assert after is not None
    assert (after.hours.high > before.hours.high) is later
    assert after.cost.high > before.cost.high


def test_what_is_interrupted_all_the_time_is_never_done() -> None:
    assert completion(replace(CALM, losses=10_000, losses_s=[360.0])) is None


def test_without_any_measurement_there_is_nothing_to_say() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        completion(replace(CALM, paces=[]))


def _run(chance: random.Random, left_h: float, hazard: float) -> float:
    """Hours of a job that is interrupted by chance, each time for 6 to 33 minutes."""
    passed = 0.0
    while True:
        lives = chance.expovariate(hazard)
        if lives >= left_h:
            return passed + left_h
        passed, left_h = passed + lives + _lost_h(chance), left_h - lives


def _lost_h(chance: random.Random) -> float:
    return chance.uniform(0.1, 0.3) + chance.uniform(0.0, 0.25)


def test_nine_of_ten_lie_between() -> None:
    """600 jobs whose pools' hazards are anything, with records of 2 to 200 hours. The planned
    interruption, which comes to each record, is one of 15 minutes."""
    chance, held, above, jobs = random.Random(7), 0, 0, 600
    for _ in range(jobs):
        hazard = min(max(chance.gammavariate(1, 0.25), 1e-4), 2.5)
        hours, left_h = chance.choice((2.0, 10.0, 50.0, 200.0)), chance.choice((2.0, 10.0, 40.0))
        losses, at = 0, chance.expovariate(hazard)
        while at < hours:
            losses, at = losses + 1, at + chance.expovariate(hazard)
        took = [3600 * _lost_h(chance) for _ in range(min(losses, 8))]
        known = Measurements(3600 * left_h, [1.0], [*took, 900.0], [1.0], 1, losses, hours, 4.0)
        result, true = completion(known), _run(chance, left_h, hazard)
        held += result is not None and result.hours.low - 1e-9 <= true <= result.hours.high + 1e-9
        above += result is not None and true > result.hours.high + 1e-9
    assert abs(held / jobs - COVERAGE) < 0.05, "of 600, four deviations are 0.05"
    assert above / jobs < 0.1
