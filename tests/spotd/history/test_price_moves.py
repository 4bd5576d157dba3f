"""How far a price has moved in a day."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spotd.domain.units import S
from spotd.history.price_moves import price_move

NOW = 1_000_000 * S
H = 3600 * S


def points(*rows: tuple[float, int]) -> list[tuple[int, int]]:
    """(hours ago, price), the oldest first."""
    return [(NOW - round(ago * H), price) for ago, price in rows]


@pytest.mark.req("PLC-04")
@pytest.mark.parametrize(
    ("rows", "change", "z_score"),
    [
        # Half a day at 10, half at 20: a mean of 15 and a deviation of 5.
        ([(30, 10), (12, 20)], 1.0, 1.0),
        ([(30, 20), (12, 10)], -0.5, -1.0),
        # 18 h at 10, 6 h at 30: a mean of 15, and sqrt((18 * 25 + 6 * 225) / 24) = sqrt(75).
        ([(48, 99), (24, 10), (6, 30)], 2.0, 15 / 75**0.5),
        # There and back: no change, and below its mean of 20 by one deviation.
        ([(24, 10), (18, 30), (6, 10)], 0.0, -1.0),
        ([(40, 10)], 0.0, 0.0),
    ],
)
def test_the_change_and_the_distance(
    rows: Sequence[tuple[float, int]], change: float, z_score: float
) -> None:
    result = price_move(points(*rows), NOW)
    assert result is not None
    assert (result.change, result.z_score) == pytest.approx((change, z_score))


@pytest.mark.parametrize("rows", [[], [(23.9, 10)], [(30, 0), (5, 10)]])
def test_of_less_than_a_day_nothing_is_said(rows: list[tuple[float, int]]) -> None:
    assert price_move(points(*rows), NOW) is None


def test_what_comes_after_now_does_not_count() -> None:
    assert price_move(points((30, 10), (-1, 99)), NOW) == price_move(points((30, 10)), NOW)


def test_another_window() -> None:
    result = price_move(points((3, 10), (1, 20)), NOW, window_s=7200)
    assert result is not None
    assert (result.change, result.z_score) == pytest.approx((1.0, 1.0))
