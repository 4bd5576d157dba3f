"""The table of one place keeps to what must hold whatever spot does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spotd.planner.spot_policy.single_pool_mdp import (
    SLACK_STEPS,
    START_STEPS,
    STEP_H,
    WORK_STEPS,
    MdpParameters,
    MdpTable,
    age_class,
    exact,
    step_h,
)
from tests.spotd.planner.spot_policy.build import WORSE

USUAL = MdpParameters(3.0, 0.2, 0.0, 1.0, 1.0, STEP_H)
RARE = replace(USUAL, ends=1e-9)
WORK_H = np.arange(WORK_STEPS + 1) * STEP_H


@pytest.fixture(scope="module")
def usual() -> MdpTable:
    return exact(USUAL)


def test_more_time_costs_no_more_and_more_work_no_less(usual: MdpTable) -> None:
    """As long as there is time for it: what begins too late is not fined."""
    for kind in (usual.wait_up, usual.wait_down, usual.spot, usual.goes_on, usual.lasts_down):
        values = kind[4:]  # of that much slack and more
        assert (np.diff(values, axis=2) >= -1e-3).all()
        assert (np.diff(values, axis=0) <= 1e-4).all()
        more_time = values[1:, :, :-1] - values[:-1, :, 1:]  # in place of a step of work
        assert (more_time <= 1e-4).all()


def test_nothing_that_is_begun_in_time_costs_more_than_on_demand_until_the_end(
    usual: MdpTable,
) -> None:
    late = 3.0 * (WORK_H + 0.2 + STEP_H)  # the last step is paid whole
    for kind in (usual.on_demand_up, usual.on_demand_down, usual.wait_up, usual.wait_down):
        assert (kind <= late + 1e-3).all()
    assert (usual.lasts_up <= 3.0 * (WORK_H + STEP_H) + 1e-3).all()


def test_without_time_to_spare_it_is_on_demand_until_the_end(usual: MdpTable) -> None:
    for kind in (usual.wait_up, usual.wait_down):
        assert usual.at(kind, 10.3, 10.0, 0.0) == pytest.approx(3 * 10.2, rel=1e-3)
    assert usual.at(usual.lasts_down, 10.2, 10.0, 0.0) == pytest.approx(3 * 10.0, rel=1e-3)


def test_spot_that_never_ends_costs_its_price() -> None:
    lasts = exact(RARE)
    assert lasts.at(lasts.goes_on, 40.0, 20.0, 0.0) == pytest.approx(20.0, rel=1e-3)
    assert lasts.at(lasts.spot, 40.0, 20.0, 0.0) == pytest.approx(20.2, rel=1e-2)
    assert lasts.at(lasts.wait_up, 40.0, 20.0, 0.0) == pytest.approx(20.2, rel=1e-2)


@pytest.mark.parametrize("worse", WORSE, ids=lambda change: next(iter(change)))
def test_what_is_worse_costs_more(usual: MdpTable, worse: dict[str, float]) -> None:
    other = MdpTable(replace(USUAL, **worse))
    for kind, theirs in ((usual.wait_down, other.wait_down), (usual.spot, other.spot)):
        assert other.at(theirs, 60.0, 40.0, 1.0) > usual.at(kind, 60.0, 40.0, 1.0)


def test_old_spot_is_worth_more_and_what_is_long_gone_comes_back_late(usual: MdpTable) -> None:
    ages = (0.0, 0.2, 0.4, 0.7, 1.5, 4.0, 8.0, 20.0, 48.0)
    spot = [usual.at(usual.spot, 50.0, 40.0, age) for age in ages]
    gone = [usual.at(usual.wait_down, 50.0, 40.0, age) for age in ages]
    assert spot == sorted(spot, reverse=True)
    assert gone == sorted(gone)
    assert len(set(spot)) == len(set(gone)) == len(ages)


def test_an_end_loses_half_of_what_lies_between_two_saves_and_an_end_of_a_start_nothing() -> None:
    """One step of work left: with ends as good as sure, a step of training leads to an end."""
    sure = replace(USUAL, ends=1e6, restart_h=STEP_H)
    kept, loses = MdpTable(sure), MdpTable(replace(sure, loss_h=4 * STEP_H))
    at = {"time_h": 40.0, "work_h": 20.0, "age_h": 0.0}
    lost = loses.at(loses.goes_on, **at) - kept.at(kept.goes_on, **at)
    assert lost == pytest.approx(2 * STEP_H * 3.0, rel=0.05)  # spot never stays: on demand
    # A start that ends before it trains leads to the same as a wait.
    assert loses.at(loses.spot, **at) == pytest.approx(
        STEP_H + kept.at(kept.wait_down, 40.0 - STEP_H, 20.0, 0.0), rel=1e-3
    )


def test_a_start_is_lived_through_step_by_step() -> None:
    """Of 2.5 steps on spot that never ends: three are paid, half of the last is work."""
    place = replace(RARE, restart_h=2.5 * STEP_H)
    lasts = MdpTable(place)
    begun = lasts.at(lasts.spot, 40.0, 20.0, 0.0)
    assert begun == pytest.approx(3 * STEP_H + 20.0 - STEP_H / 2, rel=1e-3)


def test_between_steps_it_is_linear_and_beyond_the_table_its_edge(usual: MdpTable) -> None:
    low = usual.at(usual.spot, 30.0, 10.0, 0.0)
    high = usual.at(usual.spot, 30.0, 10.0 + STEP_H, 0.0)
    assert usual.at(usual.spot, 30.0, 10.0 + STEP_H / 2, 0.0) == pytest.approx((low + high) / 2)
    most_h = 10.0 + SLACK_STEPS * STEP_H
    edge = usual.at(usual.spot, most_h, 10.0, 0.0)
    assert usual.at(usual.spot, 10 * most_h, 10.0, 0.0) == pytest.approx(edge, rel=1e-4)
    assert usual.at(usual.spot, 60.0, 1e4, 0.0) == usual.at(usual.spot, 60.0, 48.0, 0.0)


def test_ages_fall_into_classes() -> None:
    ages = (0.0, 0.16, 1 / 6, 0.34, 0.5, 1.0, 2.0, 6.0, 12.0, 24.0, 500.0)
    assert [age_class(age) for age in ages] == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8]


@pytest.mark.parametrize("look_s", [15.0, 195.0, 600.0])
@pytest.mark.parametrize("hours", [0.01, 0.1, 3.0, 40.0, 700.0, 20000.0])
@pytest.mark.parametrize("restart_h", [0.02, 0.4, 6.0])
def test_a_table_holds_all_of_the_work_in_few_steps_for_a_start_and_none_shorter_than_a_look(
    hours: float, look_s: float, restart_h: float
) -> None:
    step = step_h(hours, restart_h, look_s / 3600)
    assert step * WORK_STEPS >= hours * (1 - 1e-9)
    assert step * START_STEPS >= restart_h * (1 - 1e-9)
    assert step >= look_s / 3600 * (1 - 1e-9)
    least = max(hours / WORK_STEPS, restart_h / START_STEPS, look_s / 3600)
    assert step / 2 < least * (1 + 1e-9)
