"""What it costs to bring data sets to a machine, and where that sends a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import Offer
from spotd.domain.datasets import DataSet
from spotd.domain.fast_replace import changed
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.domain.preferences import Preferences
from spotd.planner.core.dataset_transfer import NONE, TransferCost, freight
from spotd.planner.placement.build_situation import situate
from spotd.planner.placement.cost_to_finish import costs
from spotd.planner.placement.explain_blocked import by_reason
from spotd.planner.placement.rank import FREIGHT, rank
from spotd.wire import Bucket
from tests.spotd.planner.build import NOW, market, offer, settle, spec, view

TB = 1_000_000_000_000
LEAVING = {"aws": 90_000, "gcp": 120_000}
PLACES = {"s3://east": ("aws", "aws-1"), "gs://central": ("gcp", "gcp-1")}
DATA = DataSet("s3://east/c", ("gs://central/c",), 300_000_000, LEAVING, size_bytes=3 * TB)
NEAR = offer("aws-1a", 12.0)
FAR = offer("gcp-1a", 6.0)  # in whose region there is a copy
AWAY = offer("gcp-2a", 6.0)  # and where there is none
WEST = offer("aws-2a", 6.0)
COPY = frozenset({"gs://central/c"})


def a_job(**fields: Any) -> JobSpec:
    mounts = (Bucket("/data", "dataset://corpus"), Bucket("/m", "s3://east/models"))
    return spec(**({"buckets": mounts, "preferences": Preferences(work_s=36_000.0)} | fields))


def world(*offers: Offer, data: DataSet = DATA, **fields: Any) -> Market:
    known = {"places": PLACES, "egress_microusd_per_gb": LEAVING, "datasets": {"corpus": data}}
    return market(offers or (NEAR, FAR), **(known | fields))


def asks(sold: Market, of: JobSpec | None = None) -> Offer:
    after, _ = settle(view(job={"spec": of or a_job()}), sold)
    return after.nodes[0].offer


@pytest.mark.parametrize(
    ("data", "there", "found"),
    [
        (DATA, NEAR, NONE),
        (DATA, FAR, TransferCost(270.0, 0.0, 3 * TB)),
        (DATA, AWAY, TransferCost(0.0, 270.0, 3 * TB)),
        (replace(DATA, staged=COPY), FAR, NONE),
        (replace(DATA, staged=COPY), AWAY, TransferCost(0.0, 270.0, 3 * TB)),
        (replace(DATA, size_bytes=0), FAR, NONE),
        (replace(DATA, microusd_per_gb=10_000), FAR, TransferCost(30.0, 0.0, 3 * TB)),
        (DATA, replace(AWAY, local=True), NONE),
        (replace(DATA, url="s3://else/c", microusd_per_gb=0), FAR, TransferCost(0.0, 0.0, 3 * TB)),
    ],
)
def test_what_is_carried_and_for_how_much(data: DataSet, there: Offer, found: TransferCost) -> None:
    assert freight(a_job(), there, world(data=data)) == found


def test_each_machine_of_a_gang_copies_from_afar_and_one_to_a_copy() -> None:
    gang = a_job(num_nodes=4)
    assert freight(gang, AWAY, world()).each_usd == 4 * 270.0
    assert freight(gang, FAR, world()).once_usd == 270.0


def test_what_is_no_data_set_or_not_declared_is_not_known() -> None:
    assert freight(a_job(), FAR, world(datasets={})) == NONE
    assert freight(a_job(buckets=()), FAR, world()) == NONE
    assert freight(a_job(buckets=(Bucket("/d", "dataset://other"),)), FAR, world()) == NONE


@pytest.mark.parametrize(
    ("data", "there", "words"),
    [
        (
            replace(DATA, max_microusd=1_000_000),
            AWAY,
            "copying 3,000 GB of data set corpus there would cost $270.00",
        ),
        (replace(DATA, max_microusd=1_000_000, missing=COPY), FAR, "above its max_usd"),
        (replace(DATA, max_microusd=1_000_000), FAR, ""),  # it may be there: nobody could look
        (replace(DATA, max_microusd=1_000_000, staged=COPY), FAR, ""),
        (DATA, WEST, "is not listed; set usd_per_gb"),
        (replace(DATA, microusd_per_gb=20_000), WEST, ""),
    ],
)
def test_where_a_machine_would_end_for_it_none_is_rented(
    data: DataSet, there: Offer, words: str
) -> None:
    sold = world(NEAR, there, data=data)
    row = next(row for row in rank(a_job(), sold, NOW) if row.offer == there)
    assert bool(row.excluded) is bool(words)
    assert words in row.excluded
    if words:
        assert row.code == FREIGHT
        assert asks(sold) == NEAR
        other = replace(row, code="CapacityError")
        assert "1 too far from its data" in by_reason([row, other])


@pytest.mark.parametrize("steered", [True, False])
def test_data_draws_a_job_to_where_it_is(*, steered: bool) -> None:
    """$270 are more than ten hours, or a day, at $6 less; and nothing is where they were paid."""
    of = a_job() if steered else a_job(preferences=Preferences())
    assert asks(world(), of) == NEAR
    assert asks(world(data=replace(DATA, staged=COPY)), of) == FAR
    assert asks(world(data=replace(DATA, size_bytes=TB // 10)), of) == FAR, "$9 are soon earned"


def test_it_is_known_anew_when_a_copy_comes() -> None:
    """Of the same offers: what was reckoned of them before does not stand."""
    sold = world()
    assert asks(sold) == NEAR
    assert asks(changed(sold, datasets={"corpus": replace(DATA, staged=COPY)})) == FAR
    assert asks(sold, a_job(buckets=())) == FAR


def test_what_was_too_far_is_free_when_a_copy_comes() -> None:
    dear = replace(DATA, max_microusd=1, missing=COPY)
    offers = world().offers
    for data, out in ((dear, True), (replace(dear, staged=COPY, missing=frozenset()), False)):
        rows = rank(a_job(), replace(world(data=data), offers=offers), NOW)
        assert [bool(row.excluded) for row in rows if row.offer == FAR] == [out]


def test_the_policy_is_told_of_the_way_of_both() -> None:
    of = a_job()
    sold = world()
    found = situate(view(job={"spec": of}), sold, NOW, rank(of, sold, NOW), None)
    assert found is not None
    by_region = {pool.region: pool for pool in found.situation.pools}
    far = by_region["gcp/gcp-1"]
    assert (far.egress_usd, far.transfer_s) == (270.0, 2400.0)  # 3 TB at 10 Gb/s
    near = by_region["aws/aws-1"]
    assert (near.egress_usd, near.transfer_s) == (0.0, 0.0)


def test_a_copy_is_paid_for_once_and_what_comes_from_afar_with_each_start() -> None:
    of = a_job()
    sold = world(FAR, AWAY)
    found = {
        one.row.offer: one.egress_usd
        for one in costs(view(job={"spec": of}), sold, NOW, rank(of, sold, NOW))
    }
    ends = 36_000 / (8 * 3600)  # of spot of this cloud every eight hours, before more is known
    assert found[FAR] == pytest.approx(270.0)
    assert found[AWAY] == pytest.approx(270.0 * (1 + ends))


SEVERAL = {
    "known": replace(DATA, size_bytes=0),
    "here": replace(DATA, staged=COPY),
    "one": DATA,
    "two": replace(DATA, size_bytes=TB),
}


@pytest.mark.parametrize(
    ("there", "found"),
    [(FAR, TransferCost(360.0, 0.0, 4 * TB)), (AWAY, TransferCost(0.0, 2 * 630.0, 7 * TB))],
    ids=["to a copy, once", "from afar, with each start"],
)
def test_several_data_sets_add_up_and_what_is_there_hides_none(
    there: Offer, found: TransferCost
) -> None:
    mounts = tuple(Bucket(f"/{name}", f"dataset://{name}") for name in SEVERAL)
    of = a_job(buckets=(Bucket("/m", "s3://east/models"), *mounts), num_nodes=2)
    assert freight(of, there, world(datasets=SEVERAL)) == found


def test_what_costs_as_much_as_it_may_is_carried() -> None:
    for most_usd, refused in ((270, False), (269, True)):
        data = replace(DATA, max_microusd=most_usd * 1_000_000)
        assert bool(freight(a_job(), AWAY, world(data=data)).refused) is refused
