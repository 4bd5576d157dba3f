"""What a dead control box would cost, in dollars that flatter nobody."""

from __future__ import annotations

from dataclasses import replace

from spotd.api.doctor.health import worst_case
from spotd.domain.fast_replace import changed
from spotd.domain.market import Market, Timing
from spotd.domain.node import Node
from spotd.domain.queue import Limits
from spotd.domain.units import S
from tests.spotd.api.rig import OFFERS
from tests.spotd.planner.build import NOW, node

MARKET = Market(OFFERS, timing=Timing(unattended_s=24 * 3600.0))
H_US = 3600 * S


def machines(*left_h: float) -> list[Node]:
    """At $20 an hour, with so many hours until each expires."""
    offer = replace(OFFERS[0], price_microusd_per_h=20_000_000)
    return [node(offer=offer, expires_at_us=NOW + int(left * H_US)) for left in left_h]


def told(market: Market, *nodes: Node) -> list[str]:
    return [check.text for check in worst_case(market, nodes, NOW)]


def test_every_machine_for_the_whole_time_and_the_dearest_leak() -> None:
    """Whatever is left of its expiry: it counts the time without us itself."""
    assert told(MARKET, *machines(24, 23, 0.5)) == [
        "3 machines, $60.00/h for 24 h: $1,440.00 at most",
        "$55.04/h for 24 h: $1,320.96 with spot-reaper; otherwise until you end it",
    ]


def test_a_machine_keeps_the_longer_time_that_it_was_given() -> None:
    """After limits.unattended_h was made shorter."""
    first, second = machines(24, 10)
    renewed = changed(second, renewed_until_us=NOW + 72 * H_US)
    assert told(MARKET, first, renewed)[0] == "2 machines, $40.00/h for 72 h: $1,920.00 at most"


def test_a_leak_costs_no_more_than_a_machine_that_the_limits_allow() -> None:
    limited = changed(MARKET, limits=Limits(4, 40_000_000))
    assert told(limited, *machines(24))[0].startswith("1 machine, ")
    assert told(limited)[1].startswith("$30.00/h for 24 h: $720.00")


def test_a_shorter_time_costs_less() -> None:
    short = replace(MARKET, timing=Timing(unattended_s=1.5 * 3600))
    assert told(short, *machines(1, 1, 1))[0].endswith("for 1.5 h: $90.00 at most")
    assert told(Market(()))[1].startswith("$0.00/h for 24 h: $0.00")
