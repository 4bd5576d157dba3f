"""The number of calls per hour, counted at the stand-in. docs/clouds/aws.md has the figures."""

from __future__ import annotations

from collections import Counter

from providers.aws.scores import MAX_TYPES
from providers.base import OfferRequest
from providers.market_signals import INTERVAL_S
from spotd.config.schedule import Schedule
from spotd.domain.market import Timing
from spotd.planner.core.expiry import RENEW_SHARE
from tests.clouds.aws.market import REGIONS
from tests.providers.aws.conftest import Rented
from tests.providers.aws.test_launch import PAGE

MACHINES = 100
HERE = 12  # that are really made: the look at the first of them costs what one at all does
HOUR_S = 3600.0


def counted(rented: Rented) -> Counter[tuple[str, str]]:
    """Return (region, action) -> calls since the last time."""
    calls = Counter((item.region, item.action) for item in rented.aws.ec2.seen)
    rented.forget()
    return calls


def test_an_hour_of_100_machines(rented: Rented) -> None:
    """No reading verb makes a call per machine: a full page costs as much as one machine."""
    cloud, rhythm = rented.cloud(reservations={"cr-1": 0}), Schedule()
    cloud.offers(OfferRequest())
    scores = Counter(item.action for item in rented.aws.ec2.seen)["GetSpotPlacementScores"]
    assert scores == 2, "one for each type, for all regions"
    assert (INTERVAL_S, MAX_TYPES) == (HOUR_S, 10)
    assert f"| `GetSpotPlacementScores` | {MAX_TYPES} at most |" in PAGE.read_text()
    for number in range(HERE):
        region = REGIONS[number % 2]
        received = rented.request(f"n{number}", region=region, zone=f"{region}a")
        cloud.launch(received)
    counted(rented)
    rhythms = {
        cloud.list: rhythm.survey_s,
        lambda: cloud.offers(OfferRequest()): rhythm.offers_s,
        cloud.notices: rhythm.notices_s,
        cloud.leftovers: rhythm.leftovers_s,
    }
    assert len(cloud.list()) == HERE
    assert counted(rented) == {(region, "DescribeInstances"): 1 for region in REGIONS}
    hour: Counter[str] = Counter()
    for ask, every_s in rhythms.items():
        ask()
        calls = counted(rented)
        one_region = Counter({action: n for (at, action), n in calls.items() if at == REGIONS[0]})
        assert {at for at, _ in calls} == {*REGIONS}
        for action, number in one_region.items():
            hour[action] += round(number * HOUR_S / every_s)
    reported = {f"| `{action}` | {number} |" for action, number in hour.items()}
    assert {row for row in reported if row not in PAGE.read_text()} == set()
    assert len(hour) == 8


def test_an_hour_of_renewals(rented: Rented) -> None:
    """The only per-machine work: two calls, once in a fraction of its lifetime."""
    cloud = rented.cloud()
    cloud.launch(rented.request("renewed"))
    [machine] = cloud.list()
    rented.forget()
    cloud.renew(machine.instance_id, 1_900_000_000 * 1_000_000)
    assert rented.actions() == ["DescribeInstances", "CreateTags"]
    each = HOUR_S / (RENEW_SHARE * Timing.unattended_s)
    for action in rented.actions():
        assert f"| `{action}`, of renewals | {MACHINES * each:.0f} |" in PAGE.read_text()
