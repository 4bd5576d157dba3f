"""What EC2 has on sale: prices in effect, the catalog and its age, reservations."""

from __future__ import annotations

from typing import Any

import pytest

from providers.aws.clients import Clients
from providers.aws.market import CATALOG_S, Market, microusd_of, read_product
from providers.base import CapacityType, Offer, OfferRequest, UnknownOutcome
from tests.clouds.aws.market import REGIONS
from tests.clouds.aws.serving import PROFILE
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented

P5 = "p5.48xlarge"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def market(clock: Clock, *patterns: str, regions: tuple[str, ...] = ("us-east-1",)) -> Market:
    return Market(Clients(PROFILE), "aws", regions, patterns or ("p5.*", "g6.*"), clock)


def spot(offers: list[Offer], zone: str, kind: str = P5) -> Offer:
    [found] = [
        one
        for one in offers
        if (one.zone, one.instance_type, one.capacity_type) == (zone, kind, CapacityType.SPOT)
    ]
    return found


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
    [asked] = [s.body for s in rented.aws.ec2.seen if s.action == "DescribeSpotPriceHistory"]
    assert asked["ProductDescription.1"] == "Linux/UNIX"
    assert "StartTime" in asked
    assert "EndTime" not in asked
    kinds = {value for key, value in asked.items() if key.startswith("InstanceType.")}
    assert P5 in kinds
    assert all(kind.startswith(("p5.", "g6.")) for kind in kinds)


def test_a_pool_above_its_list_price_is_shown_as_no_discount(rented: Rented) -> None:
    rented.aws.ec2.told.append(row("71.55", "2026-11-22T12:00:00.000Z"))
    offer = spot(market(Clock()).offers(), "us-east-1a")
    assert offer.price_microusd_per_h == offer.list_microusd_per_h == 71_550_000


def test_on_demand_wherever_a_zone_offers_the_type(rented: Rented) -> None:
    offers = market(Clock()).offers()
    plain = [one for one in offers if one.capacity_type is CapacityType.ON_DEMAND]
    assert {
        (one.instance_type, one.zone, one.price_microusd_per_h, one.list_microusd_per_h)
        for one in plain
    } == {
        (P5, "us-east-1a", 55_040_000, 55_040_000),
        (P5, "us-east-1b", 55_040_000, 55_040_000),
        ("g6.xlarge", "us-east-1a", 804_800, 804_800),
    }
    assert all(one.zone_id.startswith("use1-az") for one in plain)


def test_types_that_no_pattern_names_are_not_on_sale(rented: Rented) -> None:
    kinds = {one.instance_type for one in market(Clock(), "g6.xlarge").offers()}
    assert kinds == {"g6.xlarge"}
    assert market(Clock(), "nothing-*").offers() == []
    assert market(Clock()).machine_type("us-east-1", "c5.xlarge") is None
    assert getattr(market(Clock()).machine_type("us-east-1", P5), "efa_cards", 0) == 32


def reservation(**changes: Any) -> Any:
    told = {
        "capacityReservationId": "cr-1",
        "instanceType": P5,
        "availabilityZone": "us-east-1b",
        "availabilityZoneId": "use1-az1",
        "availableInstanceCount": 2,
        "totalInstanceCount": 4,
        "state": "active",
    }
    return told | changes


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
    found = [one for one in market(Clock()).offers() if one.reservation]
    if sold is None:
        assert found == []
        return
    [offer] = found
    assert (offer.capacity_type, offer.reservation) == (sold, "cr-1")
    assert (offer.zone, offer.zone_id) == ("us-east-1b", "use1-az1")
    assert offer.price_microusd_per_h == offer.list_microusd_per_h == 55_040_000


def test_two_reservations_of_a_pool_are_one_offer(rented: Rented) -> None:
    """Of the first that has a machine to spare."""
    told = [reservation(capacityReservationId=f"cr-{n}") for n in (3, 2, 1)]
    told[-1] |= {"availableInstanceCount": 0}
    rented.aws.ec2.reservations += told
    assert [one.reservation for one in market(Clock()).offers() if one.reservation] == ["cr-2"]


def test_a_job_that_did_not_ask_for_reserved_ones_gets_none(rented: Rented) -> None:
    rented.aws.ec2.reservations.append(reservation())
    assert not [one for one in rented.cloud().offers(OfferRequest()) if one.reservation]


CATALOG = (
    *("DescribeInstanceTypes", "DescribeAvailabilityZones", "DescribeInstanceTypeOfferings"),
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
    assert rented.actions() == ["DescribeSpotPriceHistory", "DescribeCapacityReservations"]
    clock.now_s += 2
    here.offers()
    assert rented.actions(*CATALOG) == [*CATALOG]


def test_while_the_price_list_fails_dated_prices_stand_in(rented: Rented) -> None:
    """Asked for again with the next offers, and kept as soon as it answers."""
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
        offers = [one for one in market(Clock()).offers() if one.instance_type == "g6.xlarge"]
    finally:
        rented.aws.ec2.market.listed["g6.xlarge"] = listed
    assert [(one.capacity_type, one.list_microusd_per_h) for one in offers] == [
        (CapacityType.SPOT, 0)
    ]


@pytest.mark.parametrize(
    "action",
    [
        *("DescribeSpotPriceHistory", "DescribeCapacityReservations", "DescribeInstanceTypes"),
        *("DescribeInstanceTypeOfferings", "DescribeAvailabilityZones"),
    ],
)
def test_half_a_market_is_none(rented: Rented, action: str) -> None:
    here = market(Clock(), regions=REGIONS)
    rented.aws.ec2.faults.arm(Fault("http_500", (action,)))
    with pytest.raises(UnknownOutcome):
        here.offers()
    assert {one.region for one in here.offers()} == {*REGIONS}


def product(kind: str = P5, **dimension: Any) -> dict[str, Any]:
    told = {"unit": "Hrs", "pricePerUnit": {"USD": "55.0400000000"}} | dimension
    terms = {"OnDemand": {"t": {"priceDimensions": {"d": told}}}}
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
