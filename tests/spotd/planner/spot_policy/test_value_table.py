"""The table of what is left to pay keeps to what must hold whatever spot does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spotd.planner.spot_policy.value_table import (
    TIME_STEPS,
    WORK_STEPS,
    ValueParameters,
    ValueTable,
    age_class,
    table,
)
from tests.spotd.planner.spot_policy.build import WORSE

USUAL = ValueParameters(3.0, 0.2, 0.0, 1.0, 1.0, 0.4, 0.0, 0.5)
RARE = replace(USUAL, ends=1e-9)


@pytest.fixture(scope="module")
def usual() -> ValueTable:
    return table(USUAL)


def test_more_time_costs_no_more_and_more_work_no_less(usual: ValueTable) -> None:
    for kind in (usual.on, usual.there, usual.gone, usual.lasting):
        assert (np.diff(kind, axis=2) >= -1e-3).all()
        assert (np.diff(kind, axis=0) <= 2e-2).all()


def test_nothing_costs_more_than_on_demand_until_the_end(usual: ValueTable) -> None:
    work = np.arange(WORK_STEPS + 1) * USUAL.step_h
    gone, lasting = np.asarray(usual.gone), np.asarray(usual.lasting)
    assert (gone <= 3.0 * (work + 0.2) + 1e-3).all()
    assert (lasting <= 3.0 * work + 1e-3).all()
    assert (gone[1:, :, 0] == 0).all()


def test_without_time_to_spare_it_is_on_demand_until_the_end(usual: ValueTable) -> None:
    assert usual.at(usual.gone, 10.2, 10.0, 0.0) == pytest.approx(3 * 10.2, rel=1e-3)
    assert usual.at(usual.there, 10.2, 10.0, 0.0) == pytest.approx(3 * 10.2, rel=1e-3)


def test_spot_that_never_ends_costs_its_price() -> None:
    lasts = table(RARE)
    assert lasts.at(lasts.on, 40.0, 20.0, 0.0) == pytest.approx(20.0, rel=1e-3)
    assert lasts.at(lasts.there, 40.0, 20.0, 0.0) == pytest.approx(20.2, rel=1e-3)


@pytest.mark.parametrize(
    "worse", [*WORSE, {"elsewhere": 0.0}, {"egress": 1.0}], ids=lambda change: next(iter(change))
)
def test_what_is_worse_costs_more(usual: ValueTable, worse: dict[str, float]) -> None:
    other = table(replace(USUAL, **worse))
    for kind, theirs in ((usual.gone, other.gone), (usual.on, other.on)):
        assert other.at(theirs, 60.0, 40.0, 1.0) > usual.at(kind, 60.0, 40.0, 1.0)


def test_old_spot_is_worth_more_than_young(usual: ValueTable) -> None:
    values = [usual.at(usual.on, 50.0, 40.0, age) for age in (0.0, 1.0, 4.0, 12.0, 48.0)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1] * 1.05


def test_what_has_been_gone_for_long_comes_back_late(usual: ValueTable) -> None:
    values = [usual.at(usual.gone, 50.0, 40.0, age) for age in (0.0, 1.0, 4.0, 12.0, 48.0)]
    assert values == sorted(values)


def test_between_steps_it_is_linear_and_beyond_the_table_its_edge(usual: ValueTable) -> None:
    low, high = usual.at(usual.on, 30.0, 10.0, 0.0), usual.at(usual.on, 30.0, 10.5, 0.0)
    assert usual.at(usual.on, 30.0, 10.25, 0.0) == pytest.approx((low + high) / 2)
    last = TIME_STEPS * USUAL.step_h
    assert usual.at(usual.on, 10 * last, 10.0, 0.0) == pytest.approx(
        usual.at(usual.on, last, 10.0, 0.0), rel=1e-4
    )


def test_ages_fall_into_classes() -> None:
    assert [age_class(age) for age in (0.0, 0.49, 0.5, 2.0, 6.0, 24.0, 500.0)] == [
        0, 0, 1, 2, 3, 4, 4
    ]  # fmt: skip
