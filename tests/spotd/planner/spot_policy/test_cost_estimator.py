"""What an hour of work costs in a pool that comes and goes, and what a table is made for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotd.planner.spot_policy.cost_estimator import POOLS, CostEstimator, paid_per_done
from tests.spotd.planner.spot_policy.build import H, pool, situation


def test_starts_that_fail_are_paid_for() -> None:
    assert paid_per_done(1.0, 0.0) == pytest.approx(1.0)
    dear = [paid_per_done(ends, 0.2) for ends in (0.1, 1.0, 3.0, 10.0)]
    assert dear == sorted(dear)
    assert dear[0] < 1.1
    assert dear[-1] > 2
    assert paid_per_done(1.0, 0.4) > paid_per_done(1.0, 0.2)


def test_situations_that_are_alike_share_a_table() -> None:
    one, other = CostEstimator(situation()), CostEstimator(situation(now_s=600.0, left_s=39.9 * H))
    assert one.table is other.table


@pytest.mark.parametrize("hours", [0.1, 3.0, 40.0, 700.0, 20000.0])
def test_a_table_holds_all_of_the_work(hours: float) -> None:
    outlook = CostEstimator(situation(left_s=hours * H, deadline_s=1.5 * hours * H + H))
    assert outlook.table.step_h * 96 >= hours * (1 - 1e-9)
    assert outlook.table.step_h * 192 >= min(1.5 * hours + 1, 2 * hours) * (1 - 1e-9)


def test_of_many_pools_the_best_are_looked_at() -> None:
    many = [pool(f"p{n:03}", spot_usd_per_h=1 + n / 1000) for n in range(100)]
    outlook = CostEstimator(situation(*many))
    assert list(outlook.places) == [f"p{n:03}" for n in range(POOLS)]


def test_spot_as_dear_as_on_demand_is_taken_only_where_it_is_all() -> None:
    dear = pool("dear", spot_usd_per_h=2.9)
    assert list(CostEstimator(situation(dear, pool("a"))).places) == ["a"]
    assert list(CostEstimator(situation(dear)).places) == ["dear"]


def test_a_faster_machine_costs_the_dollars_of_the_work() -> None:
    slow, fast = (
        situation(),
        situation(pool(spot_usd_per_h=2.0, on_demand_usd_per_h=6.0, speed=2.0)),
    )
    here = CostEstimator(slow).start("a", 1.0)
    there = CostEstimator(fast).start("a", 1.0)
    assert there.score_usd == pytest.approx(here.score_usd, rel=0.1)
    assert CostEstimator(fast).hourly == pytest.approx(CostEstimator(slow).hourly)


def test_the_way_there_is_in_the_price_of_a_start() -> None:
    near, far = (
        CostEstimator(situation(pool(egress_usd=usd))).start("a", 1.0) for usd in (0.0, 9.0)
    )
    assert far.egress_usd == 9.0
    assert far.score_usd > near.score_usd + 8.9
    slow = CostEstimator(situation(pool(transfer_s=1800.0))).start("a", 1.0)
    assert slow.start_usd > replace(near).start_usd * 2
