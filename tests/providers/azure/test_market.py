"""What is on sale: sizes that the subscription may have, with the prices that apply."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from providers.azure.clients import Clients
from providers.azure.market import PRICES_S, SIZES_S, Market
from providers.azure.retail import questions, read_prices
from providers.azure.sizes import accelerator_of, read_size
from providers.base import CapacityType, Offer, OfferRequest, UnknownOutcome, UnpreparedError
from tests.clouds.azure.catalog import A100, CPU, H100, T4, Catalog
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.providers.azure.rig import provider, request

SPOT, PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND


@pytest.fixture
def catalog(azure: StandIn) -> Iterator[Catalog]:
    azure.arm.catalog = Catalog()
    yield azure.arm.catalog
    azure.arm.catalog = Catalog()


def offers(azure: StandIn, **changes: Any) -> list[Offer]:
    return [*provider(azure, **changes).offers(OfferRequest())]


def of(found: list[Offer], size: str, capacity: CapacityType = SPOT) -> list[Offer]:
    return [o for o in found if (o.instance_type, o.capacity_type) == (size, capacity)]


def test_an_offer_says_what_the_size_has(azure: StandIn, catalog: Catalog) -> None:
    found = of(offers(azure), H100)
    assert [o.zone for o in found] == ["eastus-any", "eastus-1", "eastus-2"]
    offer = found[1]
    assert (offer.accelerator, offer.accelerator_count) == ("H100", 8)
    assert (offer.cpus, offer.memory_gib) == (96.0, 1900.0)
    assert (offer.price_microusd_per_h, offer.list_microusd_per_h) == (29_500_000, 98_320_000)
    assert (offer.cloud, offer.region) == ("azure", "eastus")


def test_only_what_can_be_joined_says_infiniband(azure: StandIn, catalog: Catalog) -> None:
    """Spot machines are in no availability set, and one is in no zone."""
    found = {o.key.removeprefix("azure/eastus/") for o in offers(azure) if o.interconnect}
    assert found == {f"eastus-any/{H100}/on_demand"}


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
    found = offers(azure)
    assert of(found, H100) == of(found, H100, PLAIN) == []
    assert [o.zone for o in of(found, A100)] == ["eastus-any", "eastus-2"]


def test_what_has_no_spot_machines(azure: StandIn, catalog: Catalog) -> None:
    catalog.kinds[H100].capabilities["LowPriorityCapable"] = "False"
    try:
        found = offers(azure)
    finally:
        catalog.kinds[H100].capabilities["LowPriorityCapable"] = "True"
    assert of(found, H100) == []
    assert len(of(found, H100, PLAIN)) == 3


def test_a_price_that_nobody_tells(azure: StandIn, catalog: Catalog) -> None:
    """On demand there is a dated file for one size; of a Spot price there is nothing."""
    catalog.untold |= {H100, A100}
    found = offers(azure)
    assert of(found, H100) == of(found, A100) == of(found, A100, PLAIN) == []
    assert {o.price_microusd_per_h for o in of(found, H100, PLAIN)} == {98_320_000}


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
    told = counts[0][1]
    assert counts == [(1, told), (0, 0), (0, told - 1), (0, 0), (1, told)]


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
    assert (prices.spot.get(H100, 0), prices.listed.get(H100, 0)) == (spot, listed)


def test_the_latest_price_in_effect_counts_in_any_order() -> None:
    old = {**ROW, "retailPrice": 1, "effectiveStartDate": "2025-01-01T00:00:00Z"}
    for rows in ([old, ROW], [ROW, old]):
        assert read_prices(rows, NOW).listed[H100] == 10_500_000


def test_questions_stay_short() -> None:
    sizes = [f"Standard_ND{n}amsr_MI300X_v5" for n in range(40)]
    asked = questions("southcentralus", sizes)
    assert len(asked) == 3
    text = " ".join(question["$filter"] for question in asked)
    assert all(f"armSkuName eq '{size}'" in text for size in sizes)
    assert max(len(question["$filter"]) for question in asked) < 1500


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
