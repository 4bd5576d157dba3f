"""What to commit to, against every number that there could be, counted machine by machine."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotd.domain.units import US_PER_H
from spotd.money.commitment import (
    HourlyUse,
    MonthlyBill,
    Pool,
    Prices,
    advice_data,
    advised,
    bill,
    by_hour,
    marginal_value,
    mean_price,
)

YEAR_H = 8760
PRICES = Prices(on_demand=55.04, spot=19.93, committed=33.02)


def year() -> Pool:
    """3 to 5 machines on demand by day, 2 at night; spot searches on weekdays, at least 4."""
    chance, hours = Random(1), []
    for hour in range(YEAR_H):
        day = 8 <= hour % 24 < 18
        working = (hour // 24) % 7 < 5
        dear = chance.randint(3, 5) if day else 2
        hours.append(HourlyUse(dear, 4 + (chance.randint(0, 9) if day and working else 0)))
    return Pool(hours)


def counted(pool: Pool, prices: Prices, machines: int) -> float:
    """USD, machine by machine: the dear ones of an hour are the first to be covered."""
    total = 0.0
    for use in pool.hours:
        each = [prices.on_demand] * int(use.on_demand) + [prices.spot] * int(use.spot)
        total += machines * prices.committed + sum(each[machines:])
    return total


@pytest.mark.req("HYB-09")
@pytest.mark.req("SAV-02")
@pytest.mark.parametrize(
    ("committed", "expected"), [(56.0, 0), (54.0, 2), (33.02, 3), (22.0, 5), (10.0, 6)]
)
def test_a_year_is_committed_to_as_counting_all_numbers_has_it(
    committed: float, expected: int
) -> None:
    """From nothing to all of the baseline, by what a commitment costs: not by a share of it."""
    pool, prices = year(), Prices(55.04, 19.93, committed)
    assert pool.least == pool.most_machines == 6
    costs = [counted(pool, prices, machines) for machines in range(7)]
    best = advised(pool, prices)
    assert best == costs.index(min(costs)) == expected
    assert best <= pool.least
    assert [bill(pool, prices, n).usd for n in range(7)] == pytest.approx(costs)
    data = advice_data(pool, prices)
    plans = {plan["name"]: plan for plan in data["plans"]}  # type: ignore[attr-defined]
    assert plans["advised"]["usd"] == pytest.approx(min(costs))
    assert plans["advised"]["saved_usd"] == pytest.approx(costs[0] - min(costs))
    assert plans["70 % of the baseline"]["machines"] == 4
    assert plans["all of the baseline"]["idle_h"] == 0, "the baseline is in use in every hour"


@given(
    hours=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30),
    prices=st.tuples(*(st.integers(1, 50) for _ in range(3))),
)
def test_nothing_costs_less(hours: list[tuple[int, int]], prices: tuple[int, int, int]) -> None:
    """Also where spot is dearer than on demand."""
    pool, at = Pool([HourlyUse(*pair) for pair in hours]), Prices(*map(float, prices))
    best = advised(pool, at)
    costs = [counted(pool, at, n) for n in range(int(pool.least) + 1)]
    assert costs[best] == min(costs)
    assert best == costs.index(min(costs)), "of several the smallest"
    assert bill(pool, at, best).usd == pytest.approx(costs[best])
    for n in range(1, len(costs)):
        saved = at.committed - (costs[n] - costs[n - 1]) / len(hours)
        assert marginal_value(pool, at, n) == pytest.approx(saved)


@pytest.mark.req("SAV-03")
def test_a_commitment_makes_no_spot_machine_cheaper() -> None:
    """A fleet on spot alone, cheaper than what is committed to: nothing is, and whoever commits all
    the same pays for it and saves the spot machines alone, at their own price."""
    pool = Pool([HourlyUse(0, 5)] * 100)
    prices = Prices(on_demand=10.0, spot=3.0, committed=4.0)
    assert advised(pool, prices) == 0
    assert marginal_value(pool, prices, 1) == 3.0, (
        "no more than spot costs, whatever on demand does"
    )
    two = bill(pool, prices, 2)
    assert two == MonthlyBill(2, 800.0, 0.0, 0.0, 300.0, 900.0, 0.0)
    assert two.spot_usd / two.spot_h == prices.spot
    assert two.usd > bill(pool, prices, 0).usd
    cheaper = Prices(on_demand=10.0, spot=3.0, committed=2.0)
    assert advised(pool, cheaper) == 5, "below the price of spot it takes its place"


def test_hours_of_no_use_leave_no_baseline() -> None:
    pool = Pool([HourlyUse(9, 9), HourlyUse(0.5, 0.4)])
    assert advised(pool, Prices(50.0, 20.0, 1.0)) == 0
    data = advice_data(pool, Prices(50.0, 20.0, 1.0))
    assert (data["worth_first"], data["of_baseline"], data["few"]) == (None, None, True)
    assert advised(Pool(), PRICES) == 0


def test_parts_of_hours_count_as_parts() -> None:
    pool = Pool([HourlyUse(1.5, 0.75)] * 4)
    item, two = (bill(pool, PRICES, n) for n in (1, 2))
    assert (item.on_demand_h, item.spot_h, item.idle_h) == (2.0, 3.0, 0.0)
    assert (two.on_demand_h, two.spot_h, two.idle_h) == (0.0, 1.0, 0.0)
    assert marginal_value(pool, PRICES, 2) == pytest.approx(0.5 * 55.04 + 0.5 * 19.93)
    beyond = bill(pool, PRICES, 3)
    assert (beyond.spot_h, beyond.idle_h) == (0.0, 3.0)


def test_machines_become_hours() -> None:
    h = US_PER_H
    spans = [(h // 2, 3 * h, False), (h, h + h // 4, True), (2 * h, 9 * h, True)]
    result = by_hour(spans, h // 2, 4 * h + h // 2)
    assert result == [HourlyUse(1, 0.25), HourlyUse(1, 1), HourlyUse(0, 1)], (
        "whole hours alone: 1 to 4"
    )
    assert by_hour(spans, 5 * h, 5 * h + 1) == []


def test_a_mean_price_is_by_hours() -> None:
    assert mean_price([(3.0, 10_000_000), (1.0, 20_000_000), (5.0, 0)]) == 12.5
    assert math.isclose(mean_price([]), 0.0)
