"""What the fleet's past says of a pool's spot capacity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import CapacityType
from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.states import LeaveReason
from spotd.domain.units import S
from spotd.planner.spot_policy import Sighting, recorded
from spotd.planner.spot_policy.pool_history import AT_ONCE_S, found_elsewhere, pool_of, records
from tests.spotd.planner.build import NOW, offer

SPOT = offer("aws-1a")
POOL = "aws/aws-1/aws-1a/8xh100"
T = NOW / S


def stay(**fields: Any) -> NodeLifetime:
    return replace(NodeLifetime("j-g1-0", SPOT.key, NOW), **fields)


def seen(*stays: NodeLifetime) -> object:
    return records(FleetHistory(stays)).get(POOL)


def test_spot_and_on_demand_are_one_pool_and_what_is_reserved_is_its_own() -> None:
    kinds = {kind: pool_of(replace(SPOT, capacity_type=kind)) for kind in CapacityType}
    assert kinds == {
        CapacityType.SPOT: POOL,
        CapacityType.ON_DEMAND: POOL,
        CapacityType.RESERVED: f"{POOL}/reserved",
        CapacityType.BLOCK: f"{POOL}/block",
    }


def test_a_refusal_for_want_of_room_is_seen_when_it_was_asked_for() -> None:
    assert seen(stay(refused="CapacityError")) == recorded([Sighting(T, up=False)])
    assert seen(stay(refused="QuotaError")) == recorded([])  # it says nothing of what is to be had


def test_a_machine_is_seen_for_as_long_as_it_is_held() -> None:
    held = stay(began_at_us=NOW + 60 * S, until_us=NOW + 3700 * S)
    times = [60.0, 60 + 1800.0, 60 + 3600.0, 3700.0]
    assert seen(held) == recorded([Sighting(T + at, up=True) for at in times])


@pytest.mark.parametrize("why", [LeaveReason.PREEMPTED, LeaveReason.LOST])
def test_one_that_was_taken_away_ends_the_run(why: LeaveReason) -> None:
    taken = stay(began_at_us=NOW, until_us=NOW + 600 * S, left=why)
    told = recorded([Sighting(T, up=True), Sighting(T + 600, up=False)])
    assert seen(taken) == told
    assert told.ends == 1


@pytest.mark.parametrize("why", [LeaveReason.DONE, LeaveReason.MOVED, LeaveReason.CANCELLED])
def test_one_that_was_given_back_says_nothing_against_its_pool(why: LeaveReason) -> None:
    ours = stay(began_at_us=NOW, until_us=NOW + 600 * S, left=why)
    assert seen(ours) == recorded([Sighting(T, up=True), Sighting(T + 600, up=True)])


def test_machines_of_one_pool_are_seen_in_the_order_of_time() -> None:
    first = stay(began_at_us=NOW, until_us=NOW + 600 * S, left=LeaveReason.PREEMPTED)
    second = stay(asked_at_us=NOW + 300 * S, refused="CapacityError")
    told = [Sighting(T, up=True), Sighting(T + 300, up=False), Sighting(T + 600, up=False)]
    assert seen(first, second) == recorded(told)
    assert seen(second, first) == recorded(told)


def test_on_demand_is_no_sign_of_spot_and_each_pool_has_its_own() -> None:
    lasting = replace(SPOT, capacity_type=CapacityType.ON_DEMAND)
    other = offer("gcp-1a")
    past = FleetHistory((stay(offer_key=lasting.key, began_at_us=NOW), stay(offer_key=other.key)))
    assert set(records(past)) == {"gcp/gcp-1/gcp-1a/8xh100"}


def test_they_are_reckoned_once_for_each_reading() -> None:
    past = FleetHistory((stay(refused="CapacityError"),))
    assert records(past) is records(past)
    assert records(past) is not records(FleetHistory(past.stays))
    assert past == FleetHistory(past.stays)


def test_of_losses_it_is_told_how_often_other_spot_was_had_at_once() -> None:
    lost = stay(began_at_us=NOW, until_us=NOW + 60 * S, left=LeaveReason.PREEMPTED)
    refused = stay(asked_at_us=NOW + 61 * S, refused="CapacityError")
    had = stay(asked_at_us=NOW + 62 * S, began_at_us=NOW + 70 * S)
    late = stay(asked_at_us=NOW + (60 + int(AT_ONCE_S)) * S, began_at_us=NOW + 600 * S)
    over = NOW + (60 + int(AT_ONCE_S)) * S

    def told(*stays: NodeLifetime, at_us: int) -> tuple[float, float]:
        return found_elsewhere(FleetHistory(stays, read_at_us=at_us))

    assert told(lost, at_us=over) == (0, 0), "nobody asked"
    assert told(lost, refused, at_us=over - 1) == (0, 0), "it is being asked for still"
    assert told(lost, refused, at_us=over) == (0, 1)
    assert told(lost, refused, late, at_us=over) == (0, 1)
    assert told(lost, refused, had, at_us=NOW + 70 * S) == (1, 1)
