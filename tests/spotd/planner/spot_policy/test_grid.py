"""Rounding keeps what it says: near the value, and never below what is needed."""

from __future__ import annotations

import pytest

from spotd.planner.spot_policy.grid import doubled, rounded


@pytest.mark.parametrize(
    ("value", "ratio", "told"),
    [(1.0, 1.5, 1.0), (1.2, 1.5, 1.0), (1.3, 1.5, 1.5), (0.7, 1.5, 1 / 1.5), (0.0, 10.0, 1e-3)],
)
def test_a_value_is_rounded_to_a_power(value: float, ratio: float, told: float) -> None:
    assert rounded(value, ratio) == pytest.approx(told)


@pytest.mark.parametrize(
    ("least", "told"),
    [(0.25, 0.25), (0.26, 0.5), (0.5, 0.5), (1.9, 2.0), (0.1, 0.125), (3e3, 4096)],
)
def test_a_step_is_doubled_until_it_is_enough(least: float, told: float) -> None:
    assert doubled(least, 0.25) == told
