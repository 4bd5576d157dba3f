"""What was seen of spot, laid on ticks by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.states import LeaveReason
from spotd.domain.units import S
from spotd.history.interruption_stats import MachineLife
from spotd.history.traces import (
    Grid,
    PoolObservations,
    grid_over,
    observations,
    sample_availability,
    sample_prices,
)

TICK = 600 * S
T0 = 2_900_000 * TICK  # a whole tick
POOL = "aws/us-east-1/us-east-1a/p5.48xlarge"
PREEMPTED, LOST, DONE = LeaveReason.PREEMPTED, LeaveReason.LOST, LeaveReason.DONE
BASE = MachineLife(f"{POOL}/spot", "aws", T0, accelerator="H100", accelerator_count=8, ended_us=T0)


def at(tick: float) -> int:
    return T0 + int(tick * TICK)


def held(since: float, until: float, reason: LeaveReason | None = None, **more: Any) -> MachineLife:
    asked = at(since) - 30 * S
    times = {"requested_us": asked, "launched_us": at(since), "ended_us": at(until)}
    return replace(BASE, **times, reason=reason, **more)  # type: ignore[arg-type]


def refused(tick: float, code: str = "CapacityError", **more: Any) -> MachineLife:
    return replace(BASE, requested_us=at(tick), ended_us=0, refused=code, **more)


def series(*lives: MachineLife, ticks: int = 12, stale: float = 2) -> tuple[str, str]:
    """avail and seen as words of 0 and 1, one a tick from T0 on."""
    (item,) = observations(lives)
    result = sample_availability(item, Grid(T0, TICK, ticks), int(stale * TICK))
    avail, looked = ("".join(map(str, part.tolist())) for part in result)
    return avail, looked


@pytest.mark.parametrize(
    ("lives", "avail", "looked"),
    [
        # Given back: it holds on, and counts as seen for two ticks.
        ([held(2.5, 5.5, DONE)], "001111111111", "001111110000"),
        # Taken away: 0 in that very tick, whatever came before in it.
        ([held(2.5, 5.5, PREEMPTED)], "001110000000", "001111110000"),
        ([held(2.5, 5.5, LOST)], "001110000000", "001111110000"),
        # Refused, and had two ticks later.
        ([refused(1.1), held(3.2, 4.2, DONE)], "000111111111", "011111100000"),
        # Had and refused in one tick: that one is 0, the next one of the machine held is not.
        ([held(1.1, 3.5, DONE), refused(2.4)], "010111111111", "011111000000"),
        # Of two at once one goes: whoever is taken away was taken away.
        ([held(1, 6.5, DONE), held(1, 3.5, PREEMPTED)], "011011111111", "011111111000"),
        # It lives: up to its last word.
        ([held(9.5, 11.5)], "000000000111", "000000000111"),
        # From before the ticks to after them.
        ([held(-5, 40, PREEMPTED)], "1" * 12, "1" * 12),
        # What was refused before the ticks is not carried into them.
        ([refused(-1), refused(4)], "0" * 12, "000011100000"),
        # A request that was refused at first and became a machine after all was granted.
        ([held(2, 3.5, DONE, refused="CapacityError")], "001111111111", "001111000000"),
    ],
)
def test_what_each_observation_says_and_for_how_long(
    lives: list[MachineLife], avail: str, looked: str
) -> None:
    assert series(*lives) == (avail, looked)


def test_without_patience_only_ticks_with_an_observation_are_seen() -> None:
    assert series(refused(1), held(4, 5.5, DONE), stale=0) == ("000011111111", "010011000000")


def test_what_says_nothing_of_room_is_no_observation() -> None:
    others = [
        refused(1, "QuotaError"),
        refused(1, "PriceError"),
        replace(BASE, requested_us=at(1), ended_us=0),  # no answer yet
        held(1, 2, PREEMPTED, offer_key=f"{POOL}/on_demand"),
    ]
    assert observations(others) == []


def test_pools_are_told_apart_with_what_their_machines_have() -> None:
    other = POOL.replace("1a/", "1b/")
    result = observations([refused(1, offer_key=f"{other}/spot"), held(2, 3, DONE), refused(4)])
    assert result == [
        PoolObservations(POOL, "aws", "H100", 8, ((at(2), at(3)),), (at(4),)),
        PoolObservations(other, "aws", "H100", 8, (), (at(1),)),
    ]


def test_a_machine_that_was_not_heard_yet_was_granted_all_the_same() -> None:
    (item,) = observations([replace(held(2, 2), ended_us=0)])
    assert item.held_us == ((at(2), at(2)),)


def test_the_grid_begins_with_the_first_and_ends_where_the_last_is_stale() -> None:
    pools = observations([refused(3.5), held(5, 7.5, DONE, offer_key="gcp/r/z/t/spot")])

    def grid(since: float, until: float, stale: float = 2) -> tuple[float, int]:
        result = grid_over(pools, TICK, int(stale * TICK), at(since), at(until))
        return (result.first_us - T0) / TICK, result.ticks

    assert grid(0, 100) == (3, 7), "3 to 9: the last is seen in 7, and two more"
    assert grid(0, 8.5) == (3, 5), "whole ticks alone"
    assert grid(4.5, 100) == (5, 5), "the tick that began before does not count"
    assert grid(0, 3.9) == (3, 0)
    assert grid_over([], TICK, 0, at(0), at(9)).ticks == 0


def test_prices_hold_until_the_next_one_and_the_first_before_it() -> None:
    points = [(at(2.5), 20_000_000), (at(4), 30_000_000)]
    result = sample_prices(points, Grid(T0, TICK, 6)).tolist()
    assert result == [20.0, 20.0, 20.0, 20.0, 30.0, 30.0]
