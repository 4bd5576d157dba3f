"""Azure's offers: sizes that the subscription may use, with the applicable prices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from providers.azure.clients import Clients
from providers.azure.market import PRICES_S, SIZES_S, Market
from providers.azure.retail import price_queries, read_prices
from providers.azure.scores import read_scores
from providers.azure.sizes import accelerator_of, read_size
from providers.base import (
    CONFIGURED,
    PREPAID,
    AuthError,
    CapacityError,
    CapacityType,
    LeftoverKind,
    Offer,
    OfferRequest,
    ProviderError,
    RejectedError,
    UnknownOutcome,
    UnpreparedError,
)
from tests.clouds.azure.catalog import A100, CPU, H100, T4, Catalog
from tests.clouds.azure.held import Reservation
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.providers.azure.rig import again, provider, request
from tests.providers.azure.test_launch import on_the_wire, shown

SPOT, PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND


@pytest.fixture
def catalog(azure: StandIn) -> Iterator[Catalog]:
    azure.arm.catalog = Catalog()
    yield azure.arm.catalog
    azure.arm.catalog = Catalog()


def test_scores_of_zones_and_of_the_regional_pool(azure: StandIn, catalog: Catalog) -> None:
    catalog.scores = {
        (H100, "eastus", "1"): "Low",
        (H100, "eastus", "2"): "High",
        (H100, "eastus", ""): "Medium",
        (A100, "eastus", "1"): "RestrictedSkuNotAvailable",
    }
    cloud = provider(azure)
    result = [*cloud.offers(OfferRequest())]
    assert {o.zone: o.score for o in of(result, H100)} == {
        "eastus-1": 1,
        "eastus-2": 9,
        "eastus-any": 5,
    }
    assert {o.score for o in of(result, H100, PLAIN)} | {o.score for o in of(result, A100)} == {0}
    cloud.offers(OfferRequest())
    received = [call for call in azure.arm.calls if call.call == "POST placementScores"]
    assert len(received) == 2, "zones and regional pools, once an hour"
    assert received[0].path.endswith("/locations/eastus/placementScores/spot/generate")
    assert received[0].query == {"api-version": "2025-06-05"}
    assert [call.body["availabilityZones"] for call in received] == [True, False]
    assert {"sku": H100} in received[0].body["desiredSizes"]


def test_without_the_right_to_scores_there_are_offers(azure: StandIn, catalog: Catalog) -> None:
    azure.arm.faults.arm(Fault("unauthorized", ("POST placementScores",)))
    cloud = provider(azure)
    assert {o.score for o in cloud.offers(OfferRequest())} == {0}
    [remark] = [warning for warning in cloud.warnings() if warning.key.startswith("signal/")]
    assert "AuthorizationFailed" in remark.text


def test_eviction_rates_are_upper_ends_of_bands(azure: StandIn, catalog: Catalog) -> None:
    catalog.evictions = {
        (H100, "eastus"): "5-10",
        (A100, "eastus"): "20+",
        (T4, "eastus"): "hardly ever",  # no band that we know of
        (H100, "westeurope"): "0-5",
    }
    cloud = provider(azure)
    result = [*cloud.offers(OfferRequest())]
    assert {o.evicted_pct for o in of(result, H100)} == {10}
    assert {o.evicted_pct for o in of(result, A100)} == {100}
    assert {o.evicted_pct for o in of(result, T4)} | {
        o.evicted_pct for o in of(result, H100, PLAIN)
    } == {0}
    cloud.offers(OfferRequest())
    [received] = [call for call in azure.arm.calls if call.call == "POST resources"]
    line, body = shown("the question about eviction rates")
    assert line == on_the_wire(received)
    assert body["subscriptions"] == received.body["subscriptions"]
    assert body["options"] == received.body["options"]
    query = re.sub(r"sku.name in~ \([^)]*\)", f"sku.name in~ ('{H100}')", received.body["query"])
    assert body["query"] == query


def test_without_the_right_to_eviction_rates_there_are_offers(
    azure: StandIn, catalog: Catalog
) -> None:
    azure.arm.faults.arm(Fault("unauthorized", ("POST resources",)))
    cloud = provider(azure)
    assert {o.evicted_pct for o in cloud.offers(OfferRequest())} == {0}
    [remark] = [warning for warning in cloud.warnings() if warning.key.startswith("signal/")]
    assert "eviction rates are unavailable" in remark.text


def test_the_questions_about_scores_are_few() -> None:
    """Ten sizes, eight regions and five sizes per query: eight calls an hour for 16 regions."""
    received: list[Any] = []

    class Asked:
        def placement_scores(self, api: str, question: Any) -> dict[str, Any]:
            received.append(question)
            return {}

    many = [
        Offer("azure", f"r{r}", f"r{r}-1", f"s{s:02}", SPOT, 1, 1, accelerator_count=s % 9)
        for r in range(16)
        for s in range(40)
    ]
    counting: Any = Asked()
    assert read_scores(counting, many) == {}
    assert len(received) == 8
    assert {len(item["desiredLocations"]) for item in received} == {8}
    sizes = {size["sku"] for item in received for size in item["desiredSizes"]}
    assert len(sizes) == 10
    assert {"s08", "s17", "s26", "s35"} < sizes, "those with the most accelerators"


def offers(azure: StandIn, **changes: Any) -> list[Offer]:
    return [*provider(azure, **changes).offers(OfferRequest())]


def of(found: list[Offer], size: str, capacity: CapacityType = SPOT) -> list[Offer]:
    return [o for o in found if (o.instance_type, o.capacity_type) == (size, capacity)]


def test_an_offer_says_what_the_size_has(azure: StandIn, catalog: Catalog) -> None:
    result = of(offers(azure), H100)
    assert [o.zone for o in result] == ["eastus-any", "eastus-1", "eastus-2"]
    offer = result[1]
    assert (offer.accelerator, offer.accelerator_count) == ("H100", 8)
    assert (offer.cpus, offer.memory_gib) == (96.0, 1900.0)
    assert (offer.price_microusd_per_h, offer.list_microusd_per_h) == (29_500_000, 98_320_000)
    assert (offer.cloud, offer.region) == ("azure", "eastus")


def test_only_what_can_be_joined_says_infiniband(azure: StandIn, catalog: Catalog) -> None:
    """Spot machines cannot be in an availability set, and a set has no zone."""
    result = {o.key.removeprefix("azure/eastus/") for o in offers(azure) if o.interconnect}
    reported = {(o.capacity_type.value, o.zone) for o in offers(azure) if "no zone" in o.joins_with}
    assert {what for what, _ in reported} == {"spot", "on_demand"}
    assert ("on_demand", "eastus-any") not in reported
    assert not [o for o in offers(azure) if o.interconnect and o.joins_with]
    assert result == {f"eastus-any/{H100}/on_demand"}


def test_a_gang_of_it_is_put_into_one_set(azure: StandIn, catalog: Catalog) -> None:
    cloud = provider(azure)
    for rank in range(2):
        gang = {"gang": "spotd-j1-g1", "interconnect": "infiniband"}
        plain = {"capacity_type": PLAIN, "zone": "eastus-any"}
        cloud.launch(request(f"rank-{rank}", **gang, **plain))
    sets = {
        azure.arm.machine(f"rank-{rank}").row["properties"]["availabilitySet"]["id"]
        for rank in range(2)
    }
    assert len(sets) == 1
    assert sets.pop().endswith("/availabilitySets/spotd-j1-g1")
    assert azure.arm.counted().count("PUT availabilitySets") == 1


def test_the_set_is_left_behind_by_the_last_of_them(azure: StandIn, catalog: Catalog) -> None:
    cloud = provider(azure)
    gang = {"gang": "spotd-j1-g1", "interconnect": "infiniband"}
    plain = {"capacity_type": PLAIN, "zone": "eastus-any"}
    for rank in range(2):
        cloud.launch(request(f"leaving-{rank}", **gang, **plain))
    with pytest.raises(RejectedError, match="it has machines"):
        cloud.discard("group/spotd-j1-g1")
    for rank in range(2):
        assert cloud.leftovers() == []
        cloud.terminate(f"leaving-{rank}")
    [left] = cloud.leftovers()
    assert (left.leftover_id, left.kind) == ("group/spotd-j1-g1", LeftoverKind.GROUP)
    assert left.tags["spotd-token"] == "leaving-0"
    assert provider(azure, deployment="d1", resource_group=cloud._group).leftovers() == []
    cloud.discard(left.leftover_id)
    cloud.discard(left.leftover_id)
    assert cloud.leftovers() == []


def test_what_no_pattern_names_is_not_offered(azure: StandIn, catalog: Catalog) -> None:
    assert {o.instance_type for o in offers(azure)} == {H100, A100, T4}
    named = offers(azure, instance_types=["Standard_F*"])
    assert {o.instance_type for o in named} == {CPU}
    assert {(o.accelerator, o.accelerator_count) for o in named} == {("", 0)}


def test_what_the_subscription_may_not_have_is_not_offered(
    azure: StandIn, catalog: Catalog
) -> None:
    catalog.restricted.add((H100, "eastus"))
    catalog.closed[A100, "eastus"] = ("1", "3")
    result = offers(azure)
    assert of(result, H100) == of(result, H100, PLAIN) == []
    assert [o.zone for o in of(result, A100)] == ["eastus-any", "eastus-2"]


def test_what_has_no_spot_machines(azure: StandIn, catalog: Catalog) -> None:
    catalog.kinds[H100].capabilities["LowPriorityCapable"] = "False"
    try:
        result = offers(azure)
    finally:
        catalog.kinds[H100].capabilities["LowPriorityCapable"] = "True"
    assert of(result, H100) == []
    assert len(of(result, H100, PLAIN)) == 3


def test_a_price_that_nobody_tells(azure: StandIn, catalog: Catalog) -> None:
    """The dated file has an on-demand price for one size; there is none for Spot."""
    catalog.untold |= {H100, A100}
    result = offers(azure)
    assert of(result, H100) == of(result, A100) == of(result, A100, PLAIN) == []
    assert {o.price_microusd_per_h for o in of(result, H100, PLAIN)} == {98_320_000}


def test_sizes_of_a_day_and_prices_of_an_hour(azure: StandIn, catalog: Catalog) -> None:
    now = [0.0]
    places = {k: v for k, v in azure.settings.items() if k != "resource_group"}
    market = Market(
        Clients(**places), "azure", ("eastus",), ("Standard_ND*",), monotonic_s=lambda: now[0]
    )
    counts = []
    for at_s in (0.0, 60.0, PRICES_S, PRICES_S + 60, SIZES_S):
        now[0] = at_s
        azure.arm.calls.clear()
        assert market.offers()
        counts.append((azure.arm.counted().count("LIST skus"), len(azure.arm.counted())))
    reported = counts[0][1]
    assert counts == [(1, reported), (0, 0), (0, reported - 1), (0, 0), (1, reported)]


def test_prices_have_pages(azure: StandIn, catalog: Catalog) -> None:
    whole = offers(azure)
    azure.arm.page = 6
    azure.arm.calls.clear()
    try:
        assert offers(azure) == whole
    finally:
        azure.arm.page = 50
    assert azure.arm.counted().count("GET prices") > 3


def test_a_region_that_azure_has_not(azure: StandIn, catalog: Catalog) -> None:
    with pytest.raises(UnpreparedError, match=r"'eastmoon'.*list-locations"):
        offers(azure, regions=("eastus", "eastmoon"))


def test_a_region_that_does_not_answer_is_an_error(azure: StandIn, catalog: Catalog) -> None:
    cloud = provider(azure, regions=("eastus", "westeurope"))
    azure.arm.faults.arm(Fault("garbage", ("LIST skus",)))
    with pytest.raises(UnknownOutcome):
        cloud.offers(OfferRequest())
    assert {o.region for o in cloud.offers(OfferRequest())} == {"eastus", "westeurope"}


# --- rows of prices

NOW = datetime(2026, 11, 22, tzinfo=UTC)
ROW: dict[str, Any] = {
    "currencyCode": "USD",
    "retailPrice": 10.5,
    "armRegionName": "eastus",
    "effectiveStartDate": "2026-11-01T00:00:00Z",
    "meterName": "ND96isr H100 v5",
    "productName": "Virtual Machines NDsr H100 v5 Series",
    "skuName": "ND96isr H100 v5",
    "unitOfMeasure": "1 Hour",
    "type": "Consumption",
    "armSkuName": H100,
}
AS_SPOT = {"meterName": "ND96isr H100 v5 Spot", "skuName": "ND96isr H100 v5 Spot"}


@pytest.mark.parametrize(
    ("changes", "spot", "listed"),
    [
        ({}, 0, 10_500_000),
        (AS_SPOT, 10_500_000, 0),
        ({"skuName": "ND96isr H100 v5 Spot"}, 10_500_000, 0),
        ({"skuName": "ND96isr H100 v5 Low Priority"}, 0, 0),
        ({"meterName": "ND96isr H100 v5 Low Priority"}, 0, 0),
        ({"productName": "Virtual Machines NDsr H100 v5 Series Windows"}, 0, 0),
        ({"productName": "Virtual Machines NDsr Win Series"}, 0, 0),
        ({"productName": "NDsr Series Cloud Services"}, 0, 0),
        ({"productName": "NDsr Series Dedicated Host"}, 0, 0),
        ({"type": "Reservation"}, 0, 0),
        ({"type": "DevTestConsumption"}, 0, 0),
        ({"unitOfMeasure": "1/Month"}, 0, 0),
        ({"currencyCode": "EUR"}, 0, 0),
        ({"retailPrice": 0}, 0, 0),
        ({"retailPrice": "10"}, 0, 0),
        ({"armSkuName": ""}, 0, 0),
        ({"effectiveStartDate": "2027-01-01T00:00:00Z"}, 0, 0),
        ({"effectiveStartDate": "2026-11-01T00:00:00"}, 0, 10_500_000),
        ({"effectiveStartDate": "long ago"}, 0, 10_500_000),
    ],
)
def test_rows(changes: dict[str, Any], spot: int, listed: int) -> None:
    prices = read_prices([{**ROW, **changes}], NOW)
    assert (prices.spot.get(H100, 0), prices.list_price.get(H100, 0)) == (spot, listed)


def test_the_latest_price_in_effect_counts_in_any_order() -> None:
    old = {**ROW, "retailPrice": 1, "effectiveStartDate": "2025-01-01T00:00:00Z"}
    for rows in ([old, ROW], [ROW, old]):
        assert read_prices(rows, NOW).list_price[H100] == 10_500_000


def test_questions_stay_short() -> None:
    sizes = [f"Standard_ND{n}amsr_MI300X_v5" for n in range(40)]
    received = price_queries("southcentralus", sizes)
    assert len(received) == 3
    text = " ".join(question["$filter"] for question in received)
    assert all(f"armSkuName eq '{size}'" in text for size in sizes)
    assert max(len(question["$filter"]) for question in received) < 1500


# --- sizes


@pytest.mark.parametrize(
    ("size", "model"),
    [
        ("Standard_ND96isr_H100_v5", "H100"),
        ("Standard_ND96isr_H200_v5", "H200"),
        ("Standard_ND128isr_NDR_GB200_v6", "GB200"),
        ("Standard_ND96isr_MI300X_v5", "MI300X"),
        ("Standard_ND96asr_v4", "A100"),
        ("Standard_ND96amsr_A100_v4", "A100-80GB"),
        ("Standard_NC24ads_A100_v4", "A100-80GB"),
        ("Standard_NC40ads_H100_v5", "H100"),
        ("Standard_NC4as_T4_v3", "T4"),
        ("Standard_NC24rs_v3", "V100"),
        ("Standard_NC6s_v2", "P100"),
        ("Standard_ND40rs_v2", "V100"),
        ("Standard_NV36ads_A10_v5", "A10"),
        ("Standard_F2s_v2", ""),
    ],
)
def test_models(size: str, model: str) -> None:
    assert accelerator_of(size) == model


@pytest.mark.parametrize(
    "row",
    [
        {"resourceType": "disks", "name": "Premium_LRS"},
        {"resourceType": "virtualMachines", "name": "Standard_NCC40ads_H100_v5"},
        {
            "resourceType": "virtualMachines",
            "name": "Standard_NV6ads_A10_v5",
            "capabilities": [{"name": "GPUs", "value": "1"}],
        },
    ],
)
def test_what_is_no_machine_for_us(row: dict[str, Any]) -> None:
    assert read_size(row, "eastus") is None


def test_zones_are_those_of_the_region_asked_for() -> None:
    row = {
        "resourceType": "virtualMachines",
        "name": T4,
        "locationInfo": [
            {"location": "EastUS", "zones": ["2", "1"]},
            {"location": "westus", "zones": ["3"]},
        ],
        "capabilities": [{"name": "vCPUs", "value": "many"}],
    }
    size = read_size(row, "eastus")
    assert size is not None
    assert (size.zones, size.cpus, size.spot, size.accelerator_count) == (("1", "2"), 0.0, False, 0)


GROUP = (
    "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/{}"
    "/providers/Microsoft.Compute/capacityReservationGroups/ours"
)
RESERVED = OfferRequest(capacity_types=(CapacityType.RESERVED,))


@pytest.mark.parametrize("what", ["gone", "unauthorized"])
def test_a_group_that_is_not_to_be_had_costs_its_own_offers_alone(
    azure: StandIn, catalog: Catalog, what: str
) -> None:
    """One that was deleted, or that is elsewhere without permission to read it."""
    cloud = provider(azure)
    resource_id = GROUP.format(cloud._group)
    other = resource_id.replace("capacityReservationGroups/", "capacityReservationGroups/a-")
    azure.arm.held.add(resource_id, Reservation("one", "eastus", "1", H100, 1))
    if what == "unauthorized":
        azure.arm.held.add(other, Reservation("one", "eastus", "2", H100, 1))
    cloud = again(cloud, azure, reservations={other: 0, resource_id: 0})
    for _ in range(2):
        if what == "unauthorized":
            azure.arm.faults.arm(Fault(what, ("GET capacityReservations",)))
        result = cloud.offers(OfferRequest(capacity_types=tuple(CapacityType)))
        assert {offer.reservation for offer in result} == {"", resource_id}
    [remark] = [warning for warning in cloud.warnings() if warning.key == f"reservation/{other}"]
    assert remark.times == 2
    assert "its machines are not offered" in remark.text


@pytest.mark.parametrize(("what", "error"), [("expired", AuthError), ("http_500", UnknownOutcome)])
def test_what_says_nothing_about_a_group_is_an_error(
    azure: StandIn, catalog: Catalog, what: str, error: type[ProviderError]
) -> None:
    cloud = provider(azure)
    resource_id = GROUP.format(cloud._group)
    azure.arm.held.add(resource_id, Reservation("one", "eastus", "1", H100, 1))
    cloud = again(cloud, azure, reservations={resource_id: 0})
    azure.arm.faults.arm(Fault(what, ("GET capacityReservations",)))
    with pytest.raises(error):
        cloud.offers(RESERVED)
    assert [warning for warning in cloud.warnings() if resource_id in warning.text] == []


def test_a_capacity_reservation_is_used_up_and_no_further(azure: StandIn, catalog: Catalog) -> None:
    """spotd creates none: the configuration names the group, and its extra cost per hour."""
    cloud = provider(azure)
    resource_id = GROUP.format(cloud._group)
    cloud = again(cloud, azure, reservations={resource_id: 0})
    azure.arm.held.add(
        resource_id,
        Reservation("one", "eastus", "1", H100, 1),
        Reservation("far", "westus9", "", H100, 1),
        Reservation("none", "eastus", "", H100, 0),
    )
    [offer] = cloud.offers(RESERVED)
    assert (offer.zone, offer.capacity_type, offer.reservation) == (
        "eastus-1",
        CapacityType.RESERVED,
        resource_id,
    )
    assert (offer.price_microusd_per_h, offer.price_source) == (0, PREPAID)
    assert (offer.list_microusd_per_h, offer.interconnect) == (98_320_000, "")
    held = {"capacity_type": CapacityType.RESERVED, "reservation": resource_id}
    cloud.launch(request("held", **held))
    [machine] = cloud.list()
    assert machine.capacity_type is CapacityType.RESERVED
    properties = azure.arm.machine("held").row["properties"]
    assert properties["capacityReservation"] == {"capacityReservationGroup": {"id": resource_id}}
    assert properties["priority"] == "Regular"
    assert cloud.offers(RESERVED) == []
    with pytest.raises(CapacityError):
        cloud.launch(request("more", **held))
    cloud.terminate("held")
    priced = again(cloud, azure, reservations={resource_id: 5_000_000}).offers(RESERVED)
    assert [(o.price_microusd_per_h, o.price_source) for o in priced] == [(5_000_000, CONFIGURED)]
    assert again(cloud, azure).offers(RESERVED) == []
