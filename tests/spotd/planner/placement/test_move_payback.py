"""Whether it pays to move away from where a job's state and data lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import Offer
from spotd.domain.datasets import DataSet
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec, JobSpec
from spotd.domain.market import Market
from spotd.domain.preferences import Preferences, Speed
from spotd.planner.placement.move_payback import MoveEstimate, moves
from spotd.planner.placement.rank import rank
from spotd.wire import Bucket
from tests.spotd.planner.build import NOW, market, offer, spec, view

LEAVING = {"aws": 90_000, "gcp": 120_000}
# Each place saves beside itself, for nothing.
BESIDE = {"gs://central": ("gcp", "gcp-1"), "az://north": ("azure", "azure-1")}
STATE = CheckpointSpec(
    store="s3://east",
    engine="spotd",
    every_s=600.0,
    size_bytes=871_000_000_000,
    shards=("s3://east", *BESIDE),
)
DATA = DataSet("s3://east/c", (), 10**9, LEAVING, size_bytes=5_000_000_000_000)
NEAR = offer("aws-1a", 19.93)
FAR = offer("gcp-1a", 16.83)


def a_job(**fields: Any) -> JobSpec:
    return spec(**({"checkpoint": STATE} | fields))


def found(of: JobSpec, *offers: Offer, **fields: Any) -> list[MoveEstimate]:
    known = {"places": {"s3://east": ("aws", "aws-1")}, "egress_microusd_per_gb": LEAVING}
    sold: Market = market(offers or (NEAR, FAR), **(known | fields))
    sold = changed(sold, places={**sold.stores.places, **BESIDE})
    return moves(view(job={"spec": of}), sold, rank(of, sold, NOW))


@pytest.mark.req("DAT-02")
def test_the_state_of_a_72b_model_is_paid_back_after_25_hours_at_3_10_less() -> None:
    """871 GB at AWS's list price are $78.39."""
    [move] = found(a_job())
    assert (move.near.offer, move.there.offer) == (NEAR, FAR)
    assert move.checkpoint_usd == pytest.approx(78.39)
    assert move.data_usd == 0.0
    assert move.saves_usd_per_h == pytest.approx(3.10)
    assert move.hours == pytest.approx(25.3, abs=0.05)
    assert move.seconds == pytest.approx(871 / 1.25)


@pytest.mark.req("DAT-02")
def test_terabytes_of_data_take_far_longer() -> None:
    of = a_job(buckets=(Bucket("/d", "dataset://corpus"),))
    [move] = found(of, datasets={"corpus": DATA})
    assert (move.checkpoint_usd, move.data_usd) == pytest.approx((78.39, 450.0))
    assert move.hours == pytest.approx((78.39 + 450) / 3.10)
    assert move.seconds == pytest.approx(5871 / 1.25)


def test_saves_that_leave_their_cloud_are_part_of_the_hour_there() -> None:
    """Six an hour, of 871 GB at $0.12: what is cheaper by its price never pays."""
    alone = replace(STATE, shards=("s3://east",))
    [move] = found(a_job(checkpoint=alone))
    assert move.saves_usd_per_h == pytest.approx(3.10 - 6 * 871 * 0.12)
    assert move.hours is None


def test_a_place_that_is_no_cheaper_never_pays_and_comes_last() -> None:
    dear = offer("azure-1a", 25.0)
    first, last = found(a_job(), NEAR, dear, FAR)
    assert (first.there.offer, last.there.offer) == (FAR, dear)
    assert last.hours is None
    assert last.saves_usd_per_h < 0


def test_the_soonest_paid_back_comes_first() -> None:
    cheap = offer("azure-1a", 5.0)
    assert [move.there.offer for move in found(a_job(), NEAR, FAR, cheap)] == [cheap, FAR]


def test_an_hour_of_work_is_what_is_compared() -> None:
    """Half as fast at half the price saves nothing."""
    slow = replace(FAR, accelerator="A100", price_microusd_per_h=9_965_000)
    kinds = tuple(
        replace(spec().resources.alternatives[0], accelerator=name) for name in ("H100", "A100")
    )
    preferences = Preferences(speeds=(Speed("H100", 8, 1.0), Speed("A100", 8, 0.5)))
    [move] = found(a_job(alternatives=kinds, preferences=preferences), NEAR, slow)
    assert move.saves_usd_per_h == pytest.approx(0.0)
    assert move.hours is None


@pytest.mark.parametrize(
    ("of", "offers"),
    [
        (a_job(), (NEAR,)),  # there is nowhere else
        (a_job(), (FAR,)),  # nor is anything beside it
        (a_job(checkpoint=replace(STATE, size_bytes=0)), (NEAR, FAR)),  # how much nobody knows
    ],
)
def test_where_nothing_is_to_be_compared_nothing_is_said(
    of: JobSpec, offers: tuple[Offer, ...]
) -> None:
    assert found(of, *offers) == []


def test_what_is_not_to_be_had_is_no_move() -> None:
    assert found(a_job(), disabled={"gcp": "off"}) == []


def test_what_never_pays_goes_by_its_dollars_and_what_does_by_its_hours() -> None:
    """Data has a copy in one of the places: there is less to carry there."""
    copied = replace(DATA, copies=("gs://central/c",), staged=frozenset({"gs://central/c"}))
    of = a_job(buckets=(Bucket("/d", "dataset://corpus"),))
    for price, order in ((25.0, ["gcp", "azure"]), (5.0, ["azure", "gcp"])):
        near = offer("gcp-1a", max(price, 18.0))
        sold = NEAR, near, offer("azure-1a", price)
        told = found(
            of,
            *sold,
            datasets={"corpus": copied},
            places={"s3://east": ("aws", "aws-1"), "gs://central": ("gcp", "gcp-1")},
        )
        assert [move.there.offer.provider for move in told] == order
        by_key = {move.there.offer.provider: move for move in told}
        assert by_key["gcp"].usd < by_key["azure"].usd


def test_what_is_an_hour_away_for_nothing_is_near() -> None:
    """Between two regions of a cloud no price is known."""
    west = offer("aws-2a", 19.93)
    [move] = found(a_job(), west, FAR)
    assert (move.near.offer, move.there.offer) == (west, FAR)


def test_a_few_cents_are_told_too_and_the_hour_is_that_of_the_gang() -> None:
    small = replace(STATE, size_bytes=1_000_000_000)
    [move] = found(a_job(checkpoint=small, num_nodes=2))
    assert move.checkpoint_usd == pytest.approx(0.09)
    assert move.saves_usd_per_h == pytest.approx(2 * 3.10)
