"""The route of which traces are made: what was seen, with prices, and what nobody asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spotd.api.request.request import ApiError, ApiRequest
from spotd.api.routes.traces import traces
from tests.spotd.api.rig import OFFERS, SPOT, Rig, story

POOL = "aws/us-east-1/us-east-1a/p5.48xlarge"


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def ask(rig: Rig, **query: str) -> dict[str, Any]:
    return traces(ApiRequest(rig.context(), query=query))


def test_a_fleet_that_has_had_nothing(rig: Rig) -> None:
    data = ask(rig)
    assert (data["items"], data["unseen"]) == ([], [])
    named = ask(rig, gpus="H100:8")
    assert POOL in [one["pool"] for one in named["unseen"]]


def test_what_was_held_and_taken_away_with_its_prices(rig: Rig) -> None:
    story(rig)
    rig.clock.go_on(60)
    rig.offer_them(replace(SPOT, price_microusd_per_h=21_000_000), *OFFERS[1:])
    first, second = ask(rig)["items"]
    assert (first["pool"], first["accelerator"], first["accelerator_count"]) == (POOL, "H100", 8)
    ((since_us, until_us),) = first["held_us"]
    assert until_us - since_us == pytest.approx(3600e6)
    assert first["missed_us"] == (until_us,)
    assert [price for _, price in first["spot_microusd_per_h"]] == [19_930_000, 21_000_000]
    assert [price for _, price in first["on_demand_microusd_per_h"]] == [55_040_000]
    assert second["missed_us"] == ()
    listed = second["on_demand_microusd_per_h"]
    assert [price for _, price in listed] == [51_000_000], "of a list: it is not on sale"


def test_what_is_on_sale_and_was_never_asked_is_named(rig: Rig) -> None:
    story(rig)
    (one,) = ask(rig)["unseen"]
    assert one == {
        "pool": "aws/us-east-1/us-east-1b/p5.48xlarge",
        "accelerator": "H100",
        "accelerator_count": 8,
    }


def test_one_kind_alone(rig: Rig) -> None:
    story(rig)
    assert len(ask(rig, gpus="H100:8")["items"]) == 2
    assert ask(rig, gpus="H100:4")["items"] == []


@pytest.mark.parametrize(("name", "value"), [("gpus", "8"), ("since_s", "x")])
def test_what_is_refused(rig: Rig, name: str, value: str) -> None:
    with pytest.raises(ApiError, match=name):
        ask(rig, **{name: value})
