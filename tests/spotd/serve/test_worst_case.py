"""What a dead control box would cost, in dollars that flatter nobody."""

from __future__ import annotations

from dataclasses import replace

from spotd.model import Limits, Market, Timing
from spotd.serve.health import worst_case
from tests.spotd.serve.rig import OFFERS

MARKET = Market(OFFERS, nodes=3, microusd_per_h=60_000_000, timing=Timing(unattended_s=24 * 3600.0))


def told(market: Market) -> list[str]:
    return [check.text for check in worst_case(market)]


def test_every_machine_for_the_whole_time_and_the_dearest_leak() -> None:
    assert told(MARKET) == [
        "3 machines, $60.00/h for 24 h: $1,440.00 at most",
        "$55.04/h for 24 h: $1,320.96, until spot-reaper ends it",
    ]


def test_a_leak_costs_no_more_than_a_machine_that_the_limits_allow() -> None:
    limited = replace(MARKET, limits=Limits(4, 40_000_000), nodes=1)
    assert told(limited)[0].startswith("1 machine, ")
    assert told(limited)[1].startswith("$30.00/h for 24 h: $720.00")


def test_a_shorter_time_costs_less() -> None:
    short = replace(MARKET, timing=Timing(unattended_s=1.5 * 3600))
    assert told(short)[0].endswith("for 1.5 h: $90.00 at most")
    assert told(Market(()))[1].startswith("$0.00/h for 24 h: $0.00")
