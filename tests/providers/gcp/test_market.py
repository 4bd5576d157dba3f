"""Compute Engine's offers: the arithmetic of prices, and the precedence of sources."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from providers.base import (
    CONFIGURED,
    PREPAID,
    CapacityType,
    Offer,
    OfferRequest,
    UnknownOutcome,
    UnpreparedError,
)
from providers.gcp.market import name_filter
from providers.gcp.scores import MAX_POOLS, read_scores
from providers.gcp.skus import HOURS_A_MONTH, read_skus
from providers.gcp.types import MachineType
from tests.clouds.gcp.market import PARTS, Market
from tests.providers.gcp.conftest import Lab

H100 = MachineType("a3-highgpu-8g", 208, 1872, "H100", 8, "nvidia-h100-80gb", 6000)
POOLS = 8  # of spot machines
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
    result = [k for k in by_key(lab.cloud().offers(OfferRequest())) if k[1] == "a3-highgpu-1g"]
    assert result == [("us-central1-a", "a3-highgpu-1g", SPOT)]


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
    assert caplog.text.count("the Cloud Billing Catalog returns no prices") == 1


def test_scores_of_zones(lab: Lab) -> None:
    kind = "a3-highgpu-8g"
    reported = {"us-central1-a": 0.72, "us-central1-b": 0.0}
    lab.gce.market.obtainability = {(kind, zone): share for zone, share in reported.items()}
    offers = by_key(lab.cloud().offers(OfferRequest()))
    result = {zone: offers[zone, kind, SPOT].score for zone in reported}
    assert result == {"us-central1-a": 7, "us-central1-b": 1}
    assert offers["us-central1-a", kind, PLAIN].score == 0
    bodies = [call.body for call in lab.gce.calls if call.method == "compute.advice.capacity"]
    assert len(bodies) == POOLS == sum(capacity is SPOT for _, _, capacity in offers)
    assert {
        "size": 1,
        "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
        "instanceFlexibilityPolicy": {"instanceSelections": {"one": {"machineTypes": [kind]}}},
        "distributionPolicy": {
            "targetShape": "ANY_SINGLE_ZONE",
            "zones": [{"zone": "zones/us-central1-a"}],
        },
    } in bodies


def test_a_client_without_advice_costs_scores_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("google.cloud.compute_v1.AdviceClient.capacity")
    cloud = lab.cloud()
    assert {offer.score for offer in cloud.offers(OfferRequest())} == {0}
    [remark] = [warning for warning in cloud.warnings() if warning.key.startswith("signal/")]
    assert "AttributeError" in remark.text


def test_a_missing_right_to_advice_costs_one_call_and_no_offer(lab: Lab) -> None:
    lab.fault("unauthorized", "advice.capacity")
    cloud = lab.cloud()
    assert {offer.score for offer in cloud.offers(OfferRequest())} == {0}
    assert lab.calls().count("advice.capacity") == 1
    [remark] = [warning for warning in cloud.warnings() if warning.key.startswith("signal/")]
    assert "AuthError" in remark.text


def test_at_most_forty_pools_are_asked_about() -> None:
    received: list[Any] = []

    class Asked:
        def map_parallel(self, things: Any, _ask: Any) -> list[int]:
            received.extend(things)
            return [3] * len(things)

    many = [
        Offer("gcp", "r", f"r-{n}", f"t{n:03}", SPOT, 1, 1, accelerator_count=n % 9)
        for n in range(400)
    ]
    counting: Any = Asked()
    assert len(read_scores(counting, many)) == len(received) == MAX_POOLS == 40
    assert {offer.accelerator_count for offer in received} == {8}


def test_a_market_is_not_asked_for_again_and_again(lab: Lab) -> None:
    cloud = lab.cloud(reservations={"us-east4-a/x": 0})
    cloud.offers(OfferRequest())
    assert Counter(lab.calls()) == {
        "machineTypes.aggregatedList": 1,
        "cloudbilling.services.skus.list": 1,
        "advice.capacityHistory": 7,  # each type in each region
        "advice.capacity": POOLS,  # each type in each zone, where it is sold as spot
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
        ("others", "0", {}),
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
    names = ("ours", "full", "may", "not-yet")
    named = {f"us-central1-a/{name}": 0 for name in names} | {"us-east4-a/others": 0}
    result = {o.reservation: o for o in lab.cloud(reservations=named).offers(every)}
    assert {name: offer.capacity_type for name, offer in result.items()} == {
        "ours": CapacityType.RESERVED,
        "may": CapacityType.BLOCK,
    }
    ours, may = result["ours"], result["may"]
    assert (ours.price_microusd_per_h, ours.price_source, ours.ends_at_us) == (0, PREPAID, 0)
    assert ours.list_microusd_per_h > 50_000_000
    end = datetime(2026, 12, 1, 8, tzinfo=UTC)
    assert may.ends_at_us == int(end.timestamp()) * 1_000_000
    priced = lab.cloud(reservations={"us-central1-a/dense": 3_000_000}).offers(every)
    assert [(o.capacity_type, o.price_microusd_per_h, o.price_source) for o in priced] == [
        (CapacityType.BLOCK, 3_000_000, CONFIGURED)
    ]
    lab.calls()
    assert not [o for o in lab.cloud().offers(every) if o.reservation]
    assert "reservations.aggregatedList" not in lab.calls()


def test_flex_start_is_offered_where_the_configuration_says_so(lab: Lab) -> None:
    """At no more than the on-demand price; calendar-mode capacity in the same pool takes
    precedence."""
    every = OfferRequest(capacity_types=(CapacityType.BLOCK,))
    assert lab.cloud().offers(every) == []
    offers = [*lab.cloud(flex_start=True).offers(every)]
    assert {o.instance_type for o in offers} > {"a3-highgpu-8g", "a3-highgpu-1g"}
    assert {o.price_source for o in offers} == {"assumed"}
    assert all(o.price_microusd_per_h == o.list_microusd_per_h for o in offers)
    assert not any(o.reservation or o.ends_at_us for o in offers)
    row = {
        "name": "may",
        "zone": f"{lab.standin.endpoint}/compute/v1/projects/p/zones/us-central1-a",
        "status": "READY",
        "deleteAtTime": "2026-12-01T00:00:00-08:00",
        "specificReservation": {
            "count": "2",
            "inUseCount": "0",
            "instanceProperties": {"machineType": "a3-highgpu-8g"},
        },
    }
    lab.project.reservations.append(row)
    both = lab.cloud(flex_start=True, reservations={"us-central1-a/may": 0}).offers(every)
    assert len({o.key for o in both}) == len(both) == len(offers)
    assert [o.instance_type for o in both if o.reservation] == ["a3-highgpu-8g"]


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
