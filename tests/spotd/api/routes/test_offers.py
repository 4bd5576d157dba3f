"""What is on sale, and how it was priced before, as the API tells it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from providers.base import CapacityType
from spotd.base.errors import ExitCode, UserError
from spotd.domain.units import S
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import OFFERS, SPOT, Rig

FLAT = replace(SPOT, zone="us-east-1c", price_microusd_per_h=52_300_000)
UNLISTED = replace(SPOT, zone="us-east-1d", price_microusd_per_h=20_000_000, list_microusd_per_h=0)
SMALL = replace(
    SPOT,
    instance_type="p5.4xlarge",
    accelerator_count=1,
    price_microusd_per_h=3_000_000,
    list_microusd_per_h=6_880_000,
)
PLAIN = replace(SPOT, instance_type="c5.large", accelerator="", accelerator_count=0)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    made.offer_them(*OFFERS, FLAT, UNLISTED, SMALL, PLAIN)
    yield made.start()
    made.close()


def keys(client: PathClient, **query: str) -> list[str]:
    return [item["key"] for item in client.get("/v1/offers", **query)["items"]]


def test_filters_and_order(client: PathClient) -> None:
    assert keys(client)[0] == SMALL.key
    assert len(keys(client)) == 8
    eight = keys(client, gpus="H100:8", capacity="spot")
    assert eight[:3] == [SPOT.key, UNLISTED.key, OFFERS[2].key], "the cheapest first"
    assert SMALL.key not in eight
    assert keys(client, gpus="H100:8", sort="gpu", cloud="gcp") == [OFFERS[2].key]
    assert keys(client, sort="gpu")[:2] == [SPOT.key, UNLISTED.key], "2.49 and 2.50 a GPU"
    assert keys(client, sort="gpu")[-1] == PLAIN.key
    assert keys(client, sort="discount")[-1] == UNLISTED.key, "nobody knows what it saves"
    assert keys(client, capacity="on_demand") == [OFFERS[1].key]
    assert keys(client, type="p5.4xlarge", zone="us-east-1a", region="us-east-1") == [SMALL.key]
    page = client.get("/v1/offers", limit="3")
    assert (len(page["items"]), page["total"]) == (3, 8)


def test_a_score_is_told_where_there_is_one(rig: Rig, client: PathClient) -> None:
    rig.offer_them(*OFFERS, replace(FLAT, score=7, evicted_pct=10))
    items = {item["key"]: item for item in client.get("/v1/offers")["items"]}
    told = {key: item["placement_score"] for key, item in items.items()}
    assert {key: score for key, score in told.items() if score is not None} == {FLAT.key: 7}
    assert {key for key, item in items.items() if item["evicted_pct"] == 10} == {FLAT.key}
    assert {item["evicted_pct"] for item in items.values()} == {10, None}


def test_a_pool_as_dear_as_on_demand_is_marked(client: PathClient) -> None:
    items = {item["key"]: item for item in client.get("/v1/offers")["items"]}
    assert [key for key, item in items.items() if item["no_discount"]] == [FLAT.key]
    assert items[FLAT.key]["discount"] == round(1 - 52.3 / 55.04, 4)
    assert items[UNLISTED.key]["discount"] is None
    assert not items[OFFERS[1].key]["no_discount"], "on demand has no discount to lose"


def test_what_a_gb_costs_that_leaves(client: PathClient) -> None:
    items = {item["key"]: item for item in client.get("/v1/offers")["items"]}
    assert items[SPOT.key]["egress_usd_per_gb"] == 0.09
    assert items[SPOT.key]["storage_usd_per_gb_month"] == 0.023
    assert items[OFFERS[2].key]["storage_usd_per_gb_month"] is None
    assert items[OFFERS[2].key]["egress_usd_per_gb"] is None, "local: nothing leaves"


def test_what_is_not_to_be_had_says_why(rig: Rig, client: PathClient) -> None:
    rig.store.market.record_provider("aws", "the key has expired", rig.clock.now_us())
    items = {item["key"]: item["excluded"] for item in client.get("/v1/offers")["items"]}
    assert items[SPOT.key] == "aws cannot be used: the key has expired"
    assert items[OFFERS[2].key] == "", "of another cloud"


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("offers", {"gpus": "8xH100!"}, "gpus: '8xH100!'"),
        ("offers", {"sort": "speed"}, "sort must be price, gpu or discount"),
        ("offers", {"capacity": "cheap"}, "capacity must be one of spot, on_demand"),
        ("prices", {"since_s": "week"}, "since_s must be a whole number"),
    ],
)
def test_a_wrong_question_is_one_clear_refusal(
    client: PathClient, path: str, query: dict[str, str], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        client.get(f"/v1/{path}", **query)
    assert words in caught.value.text
    assert caught.value.try_
    assert caught.value.exit_code is ExitCode.USAGE


def test_prices_over_time(rig: Rig, client: PathClient) -> None:
    now_us = rig.clock.now_us()
    for hours, usd in ((3, 30), (1, 20)):
        moved = replace(SPOT, price_microusd_per_h=usd * 1_000_000)
        rig.store.market.record_offers("aws", [moved], now_us - hours * 3600 * S)
    data = client.get(
        "/v1/prices", type="p5.48xlarge", capacity="spot", cloud="aws", since_s="7200"
    )
    (item,) = data["items"]
    assert [point["price_usd_per_h"] for point in item["points"]] == [30.0, 20.0, 19.93]
    assert item["points"][0]["at"] < data["since"] < item["points"][1]["at"] < data["now"]
    assert item["points"][0]["list_usd_per_h"] == 55.04
    assert CapacityType(item["capacity_type"]) is CapacityType.SPOT
    assert (item["change_24h"], item["z_score_24h"]) == (None, None), "no day is on record"


@pytest.mark.req("PLC-04")
def test_a_price_is_held_against_its_own_last_day(rig: Rig, client: PathClient) -> None:
    """Each pool by itself: 12 h at $30 and 12 h at $20, and one whose price has not moved."""
    steep, flat = replace(SPOT, zone="us-east-1e"), replace(FLAT, zone="us-east-1f")
    for hours, usd in ((30, 30), (12, 20), (0, 20)):
        moved = replace(steep, price_microusd_per_h=usd * 1_000_000)
        rig.store.market.record_offers("aws", [moved, flat], rig.clock.now_us() - hours * 3600 * S)
    for since_s, count in (("3600", 1), ("172800", 2)):
        data = client.get("/v1/prices", capacity="spot", cloud="aws", since_s=since_s)
        found = {item["key"]: item for item in data["items"]}
        told = found[steep.key]
        assert len(told["points"]) == count, "a shorter look tells of the day all the same"
        assert told["change_24h"] == pytest.approx(-1 / 3, abs=1e-4)
        assert told["z_score_24h"] == pytest.approx(-1.0, abs=0.01)
        still = found[flat.key]
        assert (still["change_24h"], still["z_score_24h"]) == (0.0, 0.0)
        assert still["no_discount"]
