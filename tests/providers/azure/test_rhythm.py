"""The number of calls per hour, counted at the stand-in. docs/clouds/azure.md has the figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from providers.azure.market import PRICES_S
from providers.base import OfferRequest
from providers.market_signals import INTERVAL_S
from spotd.config.schedule import Schedule
from spotd.domain.market import Timing
from spotd.planner.core.expiry import RENEW_SHARE
from tests.clouds.azure.serving import StandIn
from tests.providers.azure.rig import provider, request

PAGE = Path(__file__).parents[3] / "docs" / "clouds" / "azure.md"
MACHINES = 100
HERE = 12  # that are really made: the look at the first of them costs what one at all does
HOUR_S = 3600.0


def counted(azure: StandIn) -> Counter[str]:
    """Return call -> count since the last time."""
    calls = Counter(azure.arm.counted())
    azure.arm.calls.clear()
    return calls


def row(call: str, number: float) -> str:
    return f"| `{call}` | {number:.0f} |"


def test_an_hour_of_100_machines(azure: StandIn) -> None:
    """No reading verb makes a call per machine: a full page costs as much as one machine."""
    cloud, rhythm = provider(azure), Schedule()
    for number in range(HERE):
        cloud.launch(request(f"hour-{number}"))
    cloud.list()  # which asks for the cards of machines that are new
    counted(azure)
    assert (PRICES_S, INTERVAL_S) == (HOUR_S, HOUR_S)
    cloud.offers(OfferRequest())
    catalog = counted(azure)
    assert catalog.pop("LIST skus") == 1  # once a day
    cloud.offers(OfferRequest())
    assert counted(azure) == {}, "prices and scores are kept for an hour"
    signals = ("POST placementScores", "POST resources")
    hour: Counter[str] = Counter({call: catalog[call] for call in signals})
    assert {*catalog} == {*signals, "GET prices"}
    for ask, every_s in {
        cloud.list: rhythm.survey_s,
        cloud.notices: rhythm.notices_s,
        cloud.leftovers: rhythm.leftovers_s,
    }.items():
        ask()
        for call, number in counted(azure).items():
            hour[call] += round(number * HOUR_S / every_s)
    reported = {row(call, number) for call, number in hour.items()}
    assert {item for item in reported if item not in PAGE.read_text()} == set()
    assert len(hour) == 7


def test_an_hour_of_renewals(azure: StandIn) -> None:
    """The only per-machine work: two calls, once in a fraction of its lifetime."""
    cloud = provider(azure)
    cloud.launch(request("renewed"))
    counted(azure)
    cloud.renew("renewed", 1_950_000_000 * 1_000_000)
    calls = counted(azure)
    assert calls == {"GET virtualMachines": 1, "PATCH virtualMachines": 1}
    each = HOUR_S / (RENEW_SHARE * Timing.unattended_s)
    for call in calls:
        assert f"| `{call}`, of renewals | {MACHINES * each:.0f} |" in PAGE.read_text()
