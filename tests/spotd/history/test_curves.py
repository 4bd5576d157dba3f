"""Curves are bounded, and hide no spike and no attempt."""

from __future__ import annotations

import math

from spotd.history.curves import StepReport, curves_of


def reports(generation: int, first: int, count: int, each: int = 10) -> list[StepReport]:
    return [
        StepReport(generation, at, at + each - 1, [1 + n / 1e6 for n in range(each)], 100, 2.0)
        for at in range(first, first + count * each, each)
    ]  # fmt: skip


def test_a_spike_survives_any_thinning() -> None:
    rows = reports(1, 1, 20_000)
    rows[777] = StepReport(1, 7771, 7780, [1.0] * 4 + [99.0] + [1.0] * 5, 100, 2.0)
    (curves,) = curves_of(rows, 100)
    assert len(curves.loss) <= 110
    assert (7775, 99.0) in curves.loss
    assert len(curves.steps_per_s) <= 60
    assert all(math.isclose(value, 5.0) for _, value in curves.steps_per_s)
    assert all(math.isclose(value, 50.0) for _, value in curves.tokens_per_s)


def test_each_attempt_has_its_own() -> None:
    curves = curves_of([*reports(1, 1, 10), *reports(2, 81, 10)], 100)
    assert [(one.generation, one.loss[0][0]) for one in curves] == [(1, 1), (2, 81)]
    assert curves[0].loss[-1][0] >= 99, "the steps that were trained again stay"


def test_thinned_losses_are_spread_over_their_steps() -> None:
    (curves,) = curves_of([StepReport(1, 1, 100, [3.0, 2.0], 0, 0.0)], 1000)
    assert curves.loss == [(1, 3.0), (51, 2.0)]
    assert curves.steps_per_s == []
    assert curves_of([], 10) == []


def test_what_is_no_number_hides_no_other_loss() -> None:
    losses = [math.nan, *[2.0] * 100, 50.0, *[2.0] * 100, math.nan, *[2.0] * 100]
    (curves,) = curves_of([StepReport(1, 1, len(losses), losses, 0, 0.0)], 20)
    assert (102, 50.0) in curves.loss
    assert sum(math.isnan(loss) for _, loss in curves.loss) == 2
