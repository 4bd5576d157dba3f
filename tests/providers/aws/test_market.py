"""EC2's offers: current prices, the catalog and its age, reservations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from providers.aws.market import CATALOG_S, WARN_AFTER_FAILURES, Market, microusd_of, read_product
from providers.aws.scores import read_scores
from providers.base import (
    CONFIGURED,
    PREPAID,
    CapacityType,
    Offer,
    OfferRequest,
    UnknownOutcome,
    UnpreparedError,
)
from providers.market_signals import INTERVAL_S
from tests.clouds.aws.market import REGIONS
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented, connected

P5 = "p5.48xlarge"


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def market(clock: Clock, *patterns: str, regions: tuple[str, ...] = ("us-east-1",)) -> Market:
    own = {f"cr-{number}": 0 for number in range(4)} | {"cr-a": 2_500_000}
    kinds = patterns or ("p5.*", "g6.*")
    return Market(connected(), "aws", regions, kinds, clock, reservations=own)


def spot(offers: list[Offer], zone: str, kind: str = P5) -> Offer:
    [result] = [
        offer
        for offer in offers
        if (offer.zone, offer.instance_type, offer.capacity_type) == (zone, kind, CapacityType.SPOT)
    ]
    return result


def test_scores_of_zones_are_asked_for_once_an_hour(rented: Rented) -> None:
    reported = {
        (P5, "use1-az6"): 3,
        (P5, "use1-az1"): 9,
        (P5, "usw2-az2"): 1,
        ("g6.xlarge", "x"): 5,
    }
    rented.aws.ec2.market.scores = reported
    clock = Clock()
    here = market(clock, regions=REGIONS)
    try:
        result = here.offers()
        assert [spot(result, f"us-east-1{zone}").score for zone in "ab"] == [3, 9]
        assert [spot(result, f"us-west-2{zone}").score for zone in "ab"] == [1, 0]
        assert {o.score for o in result if o.capacity_type is not CapacityType.SPOT} == {0}
        here.offers()
        # One call for each type, for all regions: two of these patterns.
        assert len(rented.actions("GetSpotPlacementScores")) == 2
        bodies = [item.body for item in rented.aws.ec2.seen if "Scores" in item.action]
        assert {k: v for k, v in bodies[0].items() if k not in ("Action", "Version")} == {
            "InstanceType.1": P5,
            "TargetCapacity": "1",
            "TargetCapacityUnitType": "units",
            "SingleAvailabilityZone": "true",
            "RegionName.1": "us-east-1",
            "RegionName.2": "us-west-2",
            "MaxResults": "1000",
        }
        clock.now_s += INTERVAL_S
        here.offers()
        assert len(rented.actions("GetSpotPlacementScores")) == 4
    finally:
        reported.clear()


def test_without_the_right_to_scores_there_are_offers(rented: Rented) -> None:
    rented.aws.ec2.faults.arm(Fault("unauthorized", ("GetSpotPlacementScores",)))
    cloud = rented.cloud()
    assert spot([*cloud.offers(OfferRequest())], "us-east-1a").score == 0
    [remark] = [warning for warning in cloud.warnings() if warning.key.startswith("signal/")]
    assert "`spotctl doctor --policy aws` prints the rights" in remark.text


def test_at_most_ten_types_are_asked_about() -> None:
    class Counting:
        def __init__(self) -> None:
            self.asked: list[str] = []

        def pages(self, *_: object, InstanceTypes: list[str], **__: object) -> list[Any]:  # noqa: N803
            self.asked += InstanceTypes
            return []

    kinds = [
        Offer("aws", "r", "r-a", f"t{n:02}", CapacityType.SPOT, 1, 1, accelerator_count=n % 9)
        for n in range(40)
    ]
    counting: Any = Counting()
    assert read_scores(counting, kinds) == {}
    received = ["t08", "t17", "t26", "t35", "t07", "t16", "t25", "t34", "t06", "t15"]
    assert counting.asked == received, "those with the most accelerators, always the same"


def row(usd: str, timestamp: str, zone: str = "us-east-1a", zone_id: str = "use1-az6") -> Any:
    return {
        "instanceType": P5,
        "productDescription": "Linux/UNIX",
        "spotPrice": usd,
        "timestamp": timestamp,
        "availabilityZone": zone,
        "availabilityZoneId": zone_id,
    }


def test_an_offer(rented: Rented) -> None:
    offer = spot(market(Clock()).offers(), "us-east-1a")
    assert offer == Offer(
        provider="aws",
        region="us-east-1",
        zone="us-east-1a",
        instance_type=P5,
        capacity_type=CapacityType.SPOT,
        price_microusd_per_h=17_630_000,
        list_microusd_per_h=55_040_000,
        accelerator="H100",
        accelerator_count=8,
        cpus=192.0,
        memory_gib=2048.0,
        cloud="aws",
        zone_id="use1-az6",
        interconnect="efa",
    )


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_price_in_effect_is_the_newest_row_in_any_order(
    rented: Rented, newest_first: bool
) -> None:
    rows = [row("30.50", "2026-11-22T11:00:00.000Z"), row("9.00", "2026-11-21T11:00:00.000Z")]
    rows += [row("28.00", "2026-11-22T10:30:00.000Z")]
    rented.aws.ec2.told += rows if newest_first else rows[::-1]
    assert spot(market(Clock()).offers(), "us-east-1a").price_microusd_per_h == 30_500_000


def test_prices_are_asked_for_as_of_now_and_for_linux(rented: Rented) -> None:
    market(Clock()).offers()
    [received] = [s.body for s in rented.aws.ec2.seen if s.action == "DescribeSpotPriceHistory"]
    assert received["ProductDescription.1"] == "Linux/UNIX"
    assert "StartTime" in received
    assert "EndTime" not in received
    kinds = {value for key, value in received.items() if key.startswith("InstanceType.")}
    assert P5 in kinds
    assert all(kind.startswith(("p5.", "g6.")) for kind in kinds)


def test_a_pool_above_its_list_price_is_shown_as_no_discount(rented: Rented) -> None:
    rented.aws.ec2.told.append(row("71.55", "2026-11-22T12:00:00.000Z"))
    offer = spot(market(Clock()).offers(), "us-east-1a")
    assert offer.price_microusd_per_h == offer.list_microusd_per_h == 71_550_000


def test_on_demand_wherever_a_zone_offers_the_type(rented: Rented) -> None:
    offers = market(Clock()).offers()
    plain = [offer for offer in offers if offer.capacity_type is CapacityType.ON_DEMAND]
    assert {
        (item.instance_type, item.zone, item.price_microusd_per_h, item.list_microusd_per_h)
        for item in plain
    } == {
        (P5, "us-east-1a", 55_040_000, 55_040_000),
        (P5, "us-east-1b", 55_040_000, 55_040_000),
        ("g6.xlarge", "us-east-1a", 804_800, 804_800),
    }
    assert all(item.zone_id.startswith("use1-az") for item in plain)


def test_types_that_no_pattern_names_are_not_on_sale(rented: Rented) -> None:
    kinds = {offer.instance_type for offer in market(Clock(), "g6.xlarge").offers()}
    assert kinds == {"g6.xlarge"}
    assert market(Clock(), "nothing-*").offers() == []
    assert market(Clock()).machine_type("us-east-1", "c5.xlarge") is None
    assert getattr(market(Clock()).machine_type("us-east-1", P5), "efa_cards", 0) == 32


def reservation(**changes: Any) -> Any:
    reported = {
        "capacityReservationId": "cr-1",
        "instanceType": P5,
        "availabilityZone": "us-east-1b",
        "availabilityZoneId": "use1-az1",
        "availableInstanceCount": 2,
        "totalInstanceCount": 4,
        "state": "active",
    }
    return reported | changes


@pytest.mark.parametrize(
    ("told", "sold"),
    [
        (reservation(), CapacityType.RESERVED),
        (reservation(reservationType="default"), CapacityType.RESERVED),
        (reservation(reservationType="capacity-block"), CapacityType.BLOCK),
        (reservation(availableInstanceCount=0), None),  # all of it is in use
        (reservation(instanceType="m7i.large"), None),  # no pattern names it
    ],
)
def test_a_reservation_is_on_sale(rented: Rented, told: Any, sold: CapacityType | None) -> None:
    rented.aws.ec2.reservations.append(told)
    result = [offer for offer in market(Clock()).offers() if offer.reservation]
    if sold is None:
        assert result == []
        return
    [offer] = result
    assert (offer.capacity_type, offer.reservation) == (sold, "cr-1")
    assert (offer.zone, offer.zone_id) == ("us-east-1b", "use1-az1")
    assert (offer.price_microusd_per_h, offer.list_microusd_per_h) == (0, 55_040_000)
    assert (offer.price_source, offer.ends_at_us) == (PREPAID, 0)


@pytest.mark.parametrize(("kind", "tail_s"), [("capacity-block", 1800), ("default", 0)])
def test_it_says_when_its_machines_are_to_be_gone(rented: Rented, kind: str, tail_s: int) -> None:
    """EC2 starts to terminate those of a block half an hour before its end."""
    reported = reservation(reservationType=kind, endDate="2026-12-01T11:30:00.000Z")
    rented.aws.ec2.reservations.append(reported)
    [offer] = [offer for offer in market(Clock()).offers() if offer.reservation]
    end = datetime(2026, 12, 1, 11, 30, tzinfo=UTC)
    assert offer.ends_at_us == (int(end.timestamp()) - tail_s) * 1_000_000


def test_a_price_of_its_own_is_what_it_costs(rented: Rented) -> None:
    rented.aws.ec2.reservations.append(reservation(capacityReservationId="cr-a"))
    [offer] = [offer for offer in market(Clock()).offers() if offer.reservation]
    assert (offer.price_microusd_per_h, offer.price_source) == (2_500_000, CONFIGURED)


def test_what_nobody_named_is_not_used_up(rented: Rented) -> None:
    """It is in the account, for somebody else's machines."""
    rented.aws.ec2.reservations.append(reservation(capacityReservationId="cr-99"))
    assert not [offer for offer in market(Clock()).offers() if offer.reservation]
    rented.forget()
    rented.cloud().offers(OfferRequest())
    assert rented.actions("DescribeCapacityReservations") == []


def test_two_reservations_of_a_pool_are_one_offer(rented: Rented) -> None:
    """The first one with a free machine."""
    reported = [reservation(capacityReservationId=f"cr-{n}") for n in (3, 2, 1)]
    reported[-1] |= {"availableInstanceCount": 0}
    rented.aws.ec2.reservations += reported
    assert [offer.reservation for offer in market(Clock()).offers() if offer.reservation] == [
        "cr-2"
    ]


def test_a_job_that_did_not_ask_for_reserved_ones_gets_none(rented: Rented) -> None:
    rented.aws.ec2.reservations.append(reservation())
    cloud = rented.cloud(reservations={"cr-1": 0})
    assert not [offer for offer in cloud.offers(OfferRequest()) if offer.reservation]


@pytest.mark.parametrize(("network", "kinds"), [("public", set()), ("private", {P5})])
def test_several_cards_are_for_machines_without_a_public_address(
    rented: Rented, network: str, kinds: set[str]
) -> None:
    offers = rented.cloud(network=network).offers(OfferRequest())
    assert {offer.instance_type for offer in offers if offer.interconnect} == kinds
    lacking = {offer.joins_with for offer in offers if offer.instance_type == P5} - {""}
    private = 'network = "private" or "jump" in [providers.aws]'
    assert lacking == (set() if P5 in kinds else {private})


CATALOG = (
    "DescribeInstanceTypes",
    "DescribeAvailabilityZones",
    "DescribeInstanceTypeOfferings",
    "GetProducts",
)


def test_the_catalog_is_kept_for_a_day_and_prices_are_not(rented: Rented) -> None:
    clock = Clock()
    here = market(clock)
    here.offers()
    assert rented.actions(*CATALOG) == [*CATALOG]
    rented.forget()
    clock.now_s += CATALOG_S - 1
    here.offers()
    received = [action for action in rented.actions() if action != "GetSpotPlacementScores"]
    assert received == ["DescribeSpotPriceHistory", "DescribeCapacityReservations"]
    clock.now_s += 2
    here.offers()
    assert rented.actions(*CATALOG) == [*CATALOG]


def test_while_the_price_list_fails_dated_prices_stand_in(rented: Rented) -> None:
    """It is queried again with the next offers, and cached as soon as it answers."""
    rented.aws.ec2.market.listed[P5] = 54.0
    try:
        clock = Clock()
        here = market(clock)
        rented.aws.ec2.faults.arm(Fault("http_500", ("GetProducts",)))
        offers = here.offers()
        assert spot(offers, "us-east-1a").list_microusd_per_h == 55_040_000
        # One whose price is in no file: on sale as spot, with no list price to compare with.
        assert spot(offers, "us-east-1a", "g6.xlarge").list_microusd_per_h == 0
        clock.now_s += 60
        assert spot(here.offers(), "us-east-1a").list_microusd_per_h == 54_000_000
        rented.forget()
        clock.now_s += 60
        here.offers()
        assert rented.actions(*CATALOG) == []
    finally:
        rented.aws.ec2.market.listed[P5] = 55.04


def test_a_type_without_a_list_price_is_sold_as_spot_alone(rented: Rented) -> None:
    listed = rented.aws.ec2.market.listed.pop("g6.xlarge")
    try:
        offers = [offer for offer in market(Clock()).offers() if offer.instance_type == "g6.xlarge"]
    finally:
        rented.aws.ec2.market.listed["g6.xlarge"] = listed
    assert [(offer.capacity_type, offer.list_microusd_per_h) for offer in offers] == [
        (CapacityType.SPOT, 0)
    ]


@pytest.mark.parametrize(
    "action",
    [
        "DescribeSpotPriceHistory",
        "DescribeCapacityReservations",
        "DescribeInstanceTypes",
        "DescribeInstanceTypeOfferings",
        "DescribeAvailabilityZones",
    ],
)
def test_half_a_region_is_none_and_takes_no_other_along(rented: Rented, action: str) -> None:
    here = market(Clock(), regions=REGIONS)
    rented.aws.ec2.faults.arm(Fault("http_500", (action,)))
    assert len({offer.region for offer in here.offers()}) == len(REGIONS) - 1
    assert {offer.region for offer in here.offers()} == {*REGIONS}
    for _ in REGIONS:
        rented.aws.ec2.faults.arm(Fault("http_500", (action,)))
    with pytest.raises(UnknownOutcome):
        market(Clock(), regions=REGIONS).offers()


@pytest.mark.parametrize(
    ("what", "rounds"), [("unauthorized", 1), ("http_500", WARN_AFTER_FAILURES)]
)
def test_a_region_that_is_left_out_is_told(rented: Rented, what: str, rounds: int) -> None:
    """A refusal at once; a possibly transient error only when it persists."""
    here = market(Clock(), regions=REGIONS)
    fault = Fault(what, ("DescribeSpotPriceHistory in us-west-2",))
    for failing in (*[True] * (rounds - 1), False, *[True] * (rounds - 1)):
        if failing:
            rented.aws.ec2.faults.arm(fault)
        here.offers()
    assert here.warnings() == []
    rented.aws.ec2.faults.arm(fault)
    assert {offer.region for offer in here.offers()} == {"us-east-1"}
    [reported] = here.warnings()
    assert (reported.key, reported.times) == ("region/aws/us-west-2", 1)
    assert reported.text.startswith("us-west-2 returns no offers")


def test_a_listing_lacks_no_region(rented: Rented) -> None:
    """A missing region's machines would be taken for gone."""
    rented.aws.ec2.faults.arm(Fault("not_enabled", ("DescribeInstances in us-west-2",)))
    with pytest.raises(UnpreparedError):
        rented.cloud().list()


def product(kind: str = P5, **dimension: Any) -> dict[str, Any]:
    reported = {"unit": "Hrs", "pricePerUnit": {"USD": "55.0400000000"}} | dimension
    terms = {"OnDemand": {"t": {"priceDimensions": {"d": reported}}}}
    return {"product": {"attributes": {"instanceType": kind}}, "terms": terms}


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (product(), {P5: 55_040_000}),
        (product(unit="Quantity"), {}),
        (product(pricePerUnit={"CNY": "1"}), {}),
        (product(pricePerUnit={"USD": "0.0000000000"}), {}),  # of a reservation that is paid for
        ({"product": {"attributes": {}}, "terms": {}}, {}),
        ({"product": {"attributes": {"instanceType": P5}}}, {}),
    ],
)
def test_a_product_of_the_price_list(told: dict[str, Any], found: dict[str, int]) -> None:
    assert read_product(told) == found


def test_money_is_exact() -> None:
    assert microusd_of("11.562300") == 11_562_300
    assert microusd_of("0.0000014") == 1
    assert microusd_of("98.3200") == 98_320_000
