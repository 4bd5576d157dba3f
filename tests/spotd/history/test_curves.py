"""Curves are bounded, and hide no spike and no attempt."""

from __future__ import annotations

import math

import pytest

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
    assert len(curves.loss) <= 100
    assert (7775, 99.0) in curves.loss
    assert len(curves.steps_per_s) <= 60
    assert all(math.isclose(value, 5.0) for _, value in curves.steps_per_s)
    assert all(math.isclose(value, 50.0) for _, value in curves.tokens_per_s)


@pytest.mark.parametrize("most", [400, 110])
def test_many_attempts_share_the_points_and_each_keeps_its_ends(most: int) -> None:
    """Fifty attempts, each of which trains a third of the steps before it again."""
    rows = [row for n in range(50) for row in reports(n + 1, 1 + n * 2000, 300)]
    curves = curves_of(rows, most)
    assert len(curves) == 50
    for points in ("loss", "steps_per_s", "tokens_per_s"):
        assert sum(len(getattr(curve, points)) for curve in curves) <= most
    for n, curve in enumerate(curves):
        assert curve.loss[0][0] == 1 + n * 2000
        assert curve.loss[-1][0] == 3000 + n * 2000
        assert curve.steps_per_s[-1][0] == 3000 + n * 2000


def test_attempts_that_are_more_than_the_points_are_thinned_evenly() -> None:
    rows = [row for n in range(50) for row in reports(n + 1, 1 + n * 20, 2)]
    curves = curves_of(rows, 20)
    left = [(curve.generation, step) for curve in curves for step, _ in curve.loss]
    assert len(left) == 20
    assert (left[0], left[-1]) == ((1, 1), (50, 1000))
    assert sum(len(curve.steps_per_s) for curve in curves) <= 20


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
