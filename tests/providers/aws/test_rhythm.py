"""How many calls an hour costs, counted where they arrive. docs/clouds/aws.md has the figures."""

from __future__ import annotations

from collections import Counter

from providers.base import OfferRequest
from spotd.decide.expiry import RENEW_SHARE
from spotd.duties import Schedule
from spotd.model import Timing
from tests.clouds.aws.market import REGIONS
from tests.providers.aws.conftest import Rented
from tests.providers.aws.test_launch import PAGE

MACHINES = 100
HOUR_S = 3600.0


def counted(rented: Rented) -> Counter[tuple[str, str]]:
    """(region, action) -> calls since the last time."""
    calls = Counter((one.region, one.action) for one in rented.aws.ec2.seen)
    rented.forget()
    return calls


def test_an_hour_of_100_machines(rented: Rented) -> None:
    """No verb that looks asks for each machine: 100 cost what one does."""
    cloud, rhythm = rented.cloud(), Schedule()
    cloud.offers(OfferRequest())
    for number in range(MACHINES):
        region = REGIONS[number % 2]
        asked = rented.request(f"n{number}", region=region, zone=f"{region}a")
        cloud.launch(asked)
    counted(rented)
    rhythms = {
        cloud.list: rhythm.survey_s,
        lambda: cloud.offers(OfferRequest()): rhythm.offers_s,
        cloud.notices: rhythm.notices_s,
        cloud.leftovers: rhythm.leftovers_s,
    }
    assert len(cloud.list()) == MACHINES
    assert counted(rented) == {(region, "DescribeInstances"): 1 for region in REGIONS}
    hour: Counter[str] = Counter()
    for ask, every_s in rhythms.items():
        ask()
        calls = counted(rented)
        one_region = Counter({action: n for (at, action), n in calls.items() if at == REGIONS[0]})
        assert {at for at, _ in calls} == {*REGIONS}
        for action, number in one_region.items():
            hour[action] += round(number * HOUR_S / every_s)
    told = {f"| `{action}` | {number} |" for action, number in hour.items()}
    assert {row for row in told if row not in PAGE.read_text()} == set()
    assert len(hour) == 7


def test_an_hour_of_renewals(rented: Rented) -> None:
    """The one thing that is done for each machine: two calls, once in a share of its time."""
    cloud = rented.cloud()
    cloud.launch(rented.request("renewed"))
    [machine] = cloud.list()
    rented.forget()
    cloud.renew(machine.instance_id, 1_900_000_000 * 1_000_000)
    assert rented.actions() == ["DescribeInstances", "CreateTags"]
    each = HOUR_S / (RENEW_SHARE * Timing.unattended_s)
    for action in rented.actions():
        assert f"| `{action}`, of renewals | {MACHINES * each:.0f} |" in PAGE.read_text()
