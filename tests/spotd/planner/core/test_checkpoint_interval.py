"""How long machines live, and what saves cost: what a job goes by that chooses its own pauses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.base import CapacityType
from spotd.domain.units import S
from spotd.planner.core.checkpoint_interval import (
    LASTING_H,
    CheckpointTerms,
    ObservedLifetimes,
    mtbf_s,
    terms_of,
)
from tests.spotd.planner.build import offer

H = 3600
AWS = replace(offer("aws-1a", 36), provider="aws", cloud="aws", region="us-east-2")
KEY = AWS.key


def life(hours: float, losses: int, key: str = KEY) -> ObservedLifetimes:
    return ObservedLifetimes(key, int(hours * H * S), losses)


@pytest.mark.parametrize(
    ("cloud", "capacity", "hours"),
    [
        ("aws", CapacityType.SPOT, 4.0),
        ("gcp", CapacityType.SPOT, 8.0),
        ("azure", CapacityType.SPOT, 4.0),
        ("aws", CapacityType.ON_DEMAND, LASTING_H),
        ("gcp", CapacityType.BLOCK, LASTING_H),
    ],
)
def test_a_machine_without_a_history(cloud: str, capacity: CapacityType, hours: float) -> None:
    assert mtbf_s(replace(AWS, cloud=cloud, capacity_type=capacity), []) == hours * H


def test_of_machines_that_are_not_spot_one_in_nine_months_is_lost() -> None:
    assert pytest.approx(6334, abs=1) == LASTING_H


def test_what_this_fleet_has_had_counts_on_top() -> None:
    assert mtbf_s(AWS, [life(20, 2)]) == 24 * H / 3
    assert mtbf_s(AWS, [life(96, 0)]) == 100 * H
    assert mtbf_s(AWS, [life(0.5, 4)]) == 4.5 * H / 5, "a bad hour"


def test_what_was_seen_many_times_hides_what_was_believed() -> None:
    """The case study: 9 losses in 288 h, 32 h between two."""
    assert mtbf_s(AWS, [life(28_800, 900)]) == pytest.approx(32 * H, rel=0.002)


def test_zones_of_a_region_are_one_pool_and_nothing_else_is() -> None:
    other = KEY.replace("/aws-1a/", "/aws-1b/")
    assert other != KEY
    assert mtbf_s(AWS, [life(10, 1), life(10, 1, other)]) == 24 * H / 3
    strangers = [
        KEY.replace("us-east-2", "us-west-2"),
        KEY.replace("/spot", "/on_demand"),
        KEY.replace(AWS.instance_type, "other.type"),
        KEY.replace("aws/", "aws2/", 1),
    ]
    assert KEY not in strangers
    assert mtbf_s(AWS, [life(50, 25, key) for key in strangers]) == 4 * H


def test_a_gang_loses_a_machine_as_many_times_as_often() -> None:
    assert mtbf_s(AWS, [life(20, 2)], 4) == 2 * H


@given(st.floats(0, 10_000), st.integers(0, 100))
def test_more_losses_make_it_shorter_and_more_time_longer(hours: float, losses: int) -> None:
    found = mtbf_s(AWS, [life(hours, losses)])
    assert found > mtbf_s(AWS, [life(hours, losses + 1)])
    assert found < mtbf_s(AWS, [life(hours + 1, losses)])


def test_money_in_seconds_of_all_machines() -> None:
    """At $36 an hour a cent is a second; of two machines half a one."""
    assert terms_of(AWS, [], 1, 90_000, 5.0) == CheckpointTerms(4 * H, 9.0, 0.0005)
    assert terms_of(AWS, [], 2, 90_000) == CheckpointTerms(2 * H, 4.5, 0.0)
    assert terms_of(AWS, [], 1) == CheckpointTerms(4 * H)
    free = replace(AWS, price_microusd_per_h=0)
    assert terms_of(free, [], 1, 90_000, 5.0) == CheckpointTerms(4 * H)
