"""What is on sale, and what it costs: the arithmetic, and who is believed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from providers.base import CapacityType, Offer, OfferRequest, UnknownOutcome, UnpreparedError
from providers.gcp.market import name_filter
from providers.gcp.skus import HOURS_A_MONTH, read_skus
from providers.gcp.types import MachineType
from tests.clouds.gcp.market import PARTS, Market
from tests.providers.gcp.conftest import Lab

H100 = MachineType("a3-highgpu-8g", 208, 1872, "H100", 8, "nvidia-h100-80gb", 6000)
SPOT, PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND


def by_key(offers: Any) -> dict[tuple[str, str, CapacityType], Offer]:
    return {(o.zone, o.instance_type, o.capacity_type): o for o in offers}


# --- arithmetic


@pytest.mark.parametrize(("spot", "index"), [(False, 0), (True, 1)])
def test_a_machine_is_the_sum_of_its_parts(spot: bool, index: int) -> None:
    price = {name: each[index] for name, each in PARTS.items()}
    usd = (
        8 * price["Nvidia H100 80GB GPU"]
        + 208 * price["A3 Instance Core"]
        + 1872 * price["A3 Instance Ram"]
        + 16 * 375 * price["SSD backed Local Storage"] / HOURS_A_MONTH
    )
    rates = read_skus(Market().skus())
    assert rates.price(H100, "us-central1", spot=spot) == pytest.approx(usd * 1e6, abs=1)
    assert rates.price(H100, "mars-1", spot=spot) == 0


def test_the_mega_has_a_host_and_a_card_of_its_own() -> None:
    mega = MachineType("a3-megagpu-8g", 208, 1872, "H100", 8, "nvidia-h100-mega-80gb", 6000)
    rates = read_skus(Market().skus())
    plain, own = (rates.price(m, "us-east4", spot=True) for m in (H100, mega))
    assert 0 < own < plain


@pytest.mark.parametrize("missing", ["A3 Instance Ram", "Nvidia H100 80GB GPU", "SSD backed"])
def test_a_machine_with_a_part_of_unknown_price_has_none(missing: str) -> None:
    parts = {name: each for name, each in PARTS.items() if not name.startswith(missing)}
    assert read_skus(Market(parts=parts).skus()).price(H100, "us-central1", spot=True) == 0


@pytest.mark.parametrize(
    ("family", "description"),
    [
        ("Compute", "Nvidia H100 80GB GPU running in Iowa (DWS Defined Duration)"),
        ("Compute", "Nvidia H100 80GB GPU DWS Calendar Mode running in Iowa"),
        ("Compute", "Reserved Nvidia H100 80GB GPU in Iowa"),
        ("Compute", "Commitment v1: Nvidia H100 80GB GPU in Iowa for 1 Year"),
        ("Compute", "A3 Sole Tenancy Instance Core running in Iowa"),
        ("Compute", "A3 Custom Instance Core running in Iowa"),
        ("Compute", "N1 Predefined Instance Core suspended in Iowa"),
        ("Network", "Nvidia H100 80GB GPU running in Iowa"),
        ("Storage", "Balanced PD Capacity"),
        ("Compute", "Licensing Fee"),
    ],
)
def test_other_deals_for_the_same_part_are_no_price(family: str, description: str) -> None:
    row = sku(description, nanos=1)
    row["category"]["resourceFamily"] = family
    assert read_skus([row]).parts == {}


def sku(description: str, *, nanos: int, usage: str = "OnDemand", unit: str = "h") -> Any:
    price = {"currencyCode": "USD", "units": "1", "nanos": nanos}
    return {
        "description": description,
        "category": {"resourceFamily": "Compute", "usageType": usage},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [
            {"pricingExpression": {"usageUnit": unit, "tieredRates": [{"unitPrice": price}]}}
        ],
    }


def test_prices_as_the_catalog_writes_them() -> None:
    name = ("us-central1", "h100 80gb gpu", False)
    row = sku("Nvidia H100 80GB GPU running in Iowa", nanos=500_000_000)
    assert read_skus([row]).parts == {name: 1_500_000_000}
    dearer = sku("H100 80GB GPU running in Iowa", nanos=700_000_000)
    assert read_skus([row, dearer]).parts == read_skus([dearer, row]).parts
    assert read_skus([row, dearer]).parts[name] == 1_700_000_000
    free = {"startUsageAmount": 0, "unitPrice": {"units": "0", "nanos": 0}}
    row["pricingInfo"][0]["pricingExpression"]["tieredRates"].insert(0, free)
    assert read_skus([row]).parts == {name: 1_500_000_000}
    row["pricingInfo"][0]["pricingExpression"]["tieredRates"][1]["unitPrice"]["currencyCode"] = "X"
    assert read_skus([row]).parts == {}
    assert read_skus([sku("L4 GPU", nanos=1, usage="Commit1Yr"), {}]).parts == {}


# --- offers


def test_offers(lab: Lab) -> None:
    offers = by_key(lab.cloud().offers(OfferRequest()))
    one = offers["us-central1-b", "a3-highgpu-8g", SPOT]
    assert (one.accelerator, one.accelerator_count) == ("H100", 8)
    assert (one.cpus, one.memory_gib) == (208, 1872)
    assert (one.cloud, one.region, one.zone_id) == ("gcp", "us-central1", "us-central1-b")
    plain = offers["us-central1-b", "a3-highgpu-8g", PLAIN]
    assert one.price_microusd_per_h < one.list_microusd_per_h == plain.price_microusd_per_h
    assert {zone for zone, _, _ in offers} == {"us-central1-a", "us-central1-b", "us-east4-a"}
    kinds = {kind for _, kind, _ in offers}
    assert "e2-standard-4" not in kinds  # no pattern names it
    assert "a4x-highgpu-4g" not in kinds  # no image of ours boots there


def test_what_is_never_sold_by_the_hour_is_spot_alone(lab: Lab) -> None:
    found = [k for k in by_key(lab.cloud().offers(OfferRequest())) if k[1] == "a3-highgpu-1g"]
    assert found == [("us-central1-a", "a3-highgpu-1g", SPOT)]


def test_the_capacity_history_is_believed_before_the_catalog(lab: Lab) -> None:
    lab.gce.market.history["a3-highgpu-8g", "us-central1"] = 21.123456
    offers = by_key(lab.cloud().offers(OfferRequest()))
    here = offers["us-central1-a", "a3-highgpu-8g", SPOT]
    assert here.price_microusd_per_h == 21_123_456  # the latest of the history, in Google's Money
    there = offers["us-east4-a", "a3-highgpu-8g", SPOT]
    rates = read_skus(Market().skus())
    assert there.price_microusd_per_h == rates.price(H100, "us-east4", spot=True)


def test_without_the_catalog_the_dated_file_tells_the_list_price(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.gce.market.history["a3-highgpu-8g", "us-central1"] = 21.5
    nobody = lab.cloud(billing_endpoint="http://127.0.0.1:9")
    offers = by_key(nobody.offers(OfferRequest()))
    assert offers["us-central1-a", "a3-highgpu-8g", PLAIN].price_microusd_per_h == 87_830_000
    assert offers["us-central1-a", "a3-highgpu-8g", SPOT].price_microusd_per_h == 21_500_000
    # Nobody tells what these cost: they are not offered.
    assert {kind for _, kind, _ in offers} == {"a3-highgpu-8g"}
    assert {zone for zone, _, _ in offers} == {"us-central1-a", "us-central1-b"}
    assert caplog.text.count("the Cloud Billing Catalog tells no prices") == 1


def test_a_market_is_not_asked_for_again_and_again(lab: Lab) -> None:
    cloud = lab.cloud()
    cloud.offers(OfferRequest())
    assert Counter(lab.calls()) == {
        "machineTypes.aggregatedList": 1,
        "cloudbilling.services.skus.list": 1,
        "advice.capacityHistory": 7,  # each type in each region
        "reservations.aggregatedList": 1,
    }
    cloud.offers(OfferRequest())
    assert lab.calls() == ["reservations.aggregatedList"]


def test_the_pages_of_the_catalog(lab: Lab) -> None:
    whole = by_key(lab.cloud().offers(OfferRequest()))
    lab.gce.page = 9
    assert by_key(lab.cloud().offers(OfferRequest())) == whole


def test_a_reservation_with_free_machines_is_an_offer(lab: Lab) -> None:
    for name, used, more in (
        ("ours", "1", {}),
        ("full", "2", {}),
        ("may", "0", {"deleteAtTime": "2026-12-01T00:00:00-08:00"}),
        ("dense", "0", {"deploymentType": "DENSE"}),
        ("not-yet", "0", {"status": "CREATING"}),
    ):
        lab.project.reservations.append(
            {
                "name": name,
                "zone": f"{lab.standin.endpoint}/compute/v1/projects/p/zones/us-central1-a",
                "status": "READY",
                "specificReservation": {
                    "count": "2",
                    "inUseCount": used,
                    "instanceProperties": {"machineType": "a3-highgpu-8g"},
                },
                **more,
            }
        )
    every = OfferRequest(capacity_types=(CapacityType.RESERVED, CapacityType.BLOCK))
    found = {o.reservation: o for o in lab.cloud().offers(every)}
    assert {name: offer.capacity_type for name, offer in found.items()} == {
        "ours": CapacityType.RESERVED,
        "may": CapacityType.BLOCK,
        "dense": CapacityType.BLOCK,
    }
    assert found["ours"].price_microusd_per_h == found["ours"].list_microusd_per_h > 0


def test_a_region_that_there_is_not(lab: Lab) -> None:
    with pytest.raises(UnpreparedError, match=r"no region 'us-cental1'.*gcloud compute regions"):
        lab.cloud(regions=["us-central1", "us-cental1"]).offers(OfferRequest())


def test_half_a_market_is_none(lab: Lab) -> None:
    lab.gce.unreachable = {"us-east4-a"}
    with pytest.raises(UnknownOutcome):
        lab.cloud().offers(OfferRequest())


@pytest.mark.parametrize(
    ("patterns", "text"),
    [
        (["a3-*"], r'name eq "(a3\-.*)"'),
        (["a3-highgpu-?g", "g2*"], r'name eq "(a3\-highgpu\-.g|g2.*)"'),
        (["n1.x"], r'name eq "(n1\.x)"'),
    ],
)
def test_shell_patterns_as_the_api_reads_them(patterns: list[str], text: str) -> None:
    assert name_filter(patterns) == text
