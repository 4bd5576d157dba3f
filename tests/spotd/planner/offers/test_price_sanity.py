"""What is believed of a price, and what becomes of one that is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.base import CONFIGURED, PREPAID, Offer
from providers.dollars import format_usd
from spotd.planner.offers.price_sanity import (
    ASSUMED,
    DOUBTED,
    MOST_MICROUSD_PER_H,
    ImplausiblePrice,
    believed,
    stale,
)
from spotd.planner.placement.rank import rank
from tests.spotd.planner.build import NOW, market, offer, spec

USD = 1_000_000


def told(price: float, listed: float) -> Offer:
    prices = {"price_microusd_per_h": int(price * USD), "list_microusd_per_h": int(listed * USD)}
    return offer(**prices)


@pytest.mark.parametrize(
    ("price", "listed", "counts", "source"),
    [
        (10, 40, 10, "quote"),
        (40, 40, 40, "quote"),
        (4, 40, 4, "quote"),
        (3.99, 40, 40, ASSUMED),
        (0, 40, 40, ASSUMED),
        (-5, 40, 40, ASSUMED),
        (200, 40, 200, "quote"),
        (201, 40, 200, DOUBTED),
        (10**9, 40, 200, DOUBTED),
        (10, 0, 10, "quote"),  # nobody says what it costs on demand
        (1e-6, 0, 1e-6, "quote"),
        (10_000, 10_000, 10_000, "quote"),
        (10**9, 0, 10_000, DOUBTED),
    ],
)
def test_a_price_out_of_bounds_is_not_believed(
    price: float, listed: float, counts: float, source: str
) -> None:
    (found,), doubts = believed([told(price, listed)])
    assert (found.price_microusd_per_h, found.price_source) == (int(counts * USD), source)
    key = "aws/aws-1/aws-1a/8xh100/spot"
    doubt = ImplausiblePrice(key, f"{key}: a price of {format_usd(price)}/h")
    assert doubts == ([] if source == "quote" else [doubt])


@pytest.mark.parametrize("listed", [-1, 10_001, 10**12])
def test_an_absurd_list_price_saves_nothing(listed: int) -> None:
    (found,), (doubt,) = believed([told(10, listed)])
    assert (found.price_microusd_per_h, found.list_microusd_per_h) == (10 * USD, 0)
    key = "aws/aws-1/aws-1a/8xh100/spot"
    assert doubt == ImplausiblePrice(key, f"{key}: a list price of {format_usd(listed)}/h")


@pytest.mark.parametrize("price", [0, -1])
def test_what_has_no_price_at_all_is_not_on_sale(price: float) -> None:
    found, (doubt,) = believed([told(price, 0), told(10, 40)][:1])
    assert not found
    assert doubt.offer_key == offer().key


@pytest.mark.parametrize(("price", "source"), [(0, PREPAID), (1, CONFIGURED), (500, CONFIGURED)])
def test_what_a_reservation_costs_whoever_runs_spotd_says(price: float, source: str) -> None:
    reserved = replace(told(price, 40), price_source=source)
    assert believed([reserved]) == ([reserved], [])
    assert stale([reserved]) == [reserved]


AMOUNTS = st.integers(-(10**15), 10**15)


@given(price=AMOUNTS, listed=AMOUNTS)
def test_no_price_flatters(price: int, listed: int) -> None:
    """What counts is never less than what was said, unless that is above all bounds; and nobody
    saves more than nine tenths."""
    found, doubts = believed([offer(price_microusd_per_h=price, list_microusd_per_h=listed)])
    for one in found:
        assert 0 < one.price_microusd_per_h <= MOST_MICROUSD_PER_H
        assert one.price_microusd_per_h >= price or one.price_source == DOUBTED
        assert one.list_microusd_per_h <= 10 * one.price_microusd_per_h
        changed = (one.price_microusd_per_h, one.list_microusd_per_h) != (price, listed)
        assert changed == bool(doubts)


def test_nothing_is_launched_at_a_doubted_price() -> None:
    (doubted,), _ = believed([told(500, 40)])
    rows = rank(spec(), market(offers=(doubted, offer("gcp-1a", 30))), NOW)
    assert [row.excluded for row in rows] == ["", "its price is implausible"]


def test_an_old_price_counts_as_the_on_demand_one() -> None:
    doubted = replace(told(200, 40), price_source=DOUBTED)
    before = [told(10, 40), told(60, 40), told(10, 0), doubted]
    after = stale(before)
    assert [(one.price_microusd_per_h // USD, one.price_source) for one in after] == [
        (40, ASSUMED),
        (60, ASSUMED),
        (10, DOUBTED),
        (200, DOUBTED),
    ]
    assert stale(after) == after
