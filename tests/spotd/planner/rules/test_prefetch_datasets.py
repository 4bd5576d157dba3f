"""Where a job's data sets are brought ahead of it, and for how much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotd.domain.datasets import DataSet
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.domain.preferences import Preferences, PrefetchLimits
from spotd.planner.rules.prefetch_datasets import PlannedCopy, legs, next_offers, region_of
from spotd.wire import Bucket
from tests.spotd.planner.build import NOW, market, offer, spec, view

GB = 10**9
LEAVING = {"aws": 90_000}
COPIES = ("gs://one", "gs://two", "az://three")
PLACES = {
    "s3://home": ("aws", "aws-1"),
    "gs://one": ("gcp", "gcp-1"),
    "gs://two": ("gcp", "gcp-2"),
    "az://three": ("azure", "azure-1"),
}
DATA = DataSet("s3://home", COPIES, 10**9, LEAVING, size_bytes=1000 * GB, box_microusd_per_gb=0)
OFFERS = (
    offer("aws-1a", 6.0),
    offer("gcp-1a", 7.0),
    offer("gcp-1b", 7.1),
    offer("gcp-2a", 8.0),
    offer("azure-1a", 9.0),
    offer("far-1a", 5.0),
)


def a_job(regions: int = 2, usd: float = 1000.0) -> JobSpec:
    preferences = Preferences(ahead=PrefetchLimits(regions, int(usd * 1e6)))
    return spec(buckets=(Bucket("/d", "dataset://corpus"),), preferences=preferences)


def world(data: DataSet = DATA) -> Market:
    storing = {"gcp": (20_000, 5_000), "azure": (18_000, 5_000)}
    known = {"places": PLACES, "egress_microusd_per_gb": LEAVING, "storage_prices": storing}
    return market(OFFERS, datasets={"corpus": data}, **known)


def found(
    of: JobSpec, data: DataSet = DATA, paid: dict[str, int] | None = None
) -> dict[str, PlannedCopy]:
    return {leg.copy: leg for leg in legs(of, world(data), OFFERS, paid or {})}


def test_regions_that_have_a_copy_count_in_the_order_of_offers() -> None:
    assert list(found(a_job(1))) == ["gs://one"]
    assert list(found(a_job(2))) == ["gs://one", "gs://two"]
    assert list(found(a_job(9))) == list(COPIES)
    assert list(found(a_job(2), replace(DATA, staged=frozenset({"gs://one"})))) == [*COPIES[:2]]


def test_what_was_begun_comes_first_and_counts() -> None:
    assert list(found(a_job(1), paid={"az://three": 1})) == ["az://three"]
    assert list(found(a_job(2), paid={"az://three": 1})) == ["az://three", "gs://one"]


def test_all_of_the_way_is_in_its_price() -> None:
    leg = found(a_job(), replace(DATA, box_microusd_per_gb=10_000))["gs://one"]
    lies, writes = 1000 * GB / (1 << 30) * 20_000, -(-1000 * GB // (16 << 20)) * 5
    assert leg.gb_microusd == 100_000
    assert leg.microusd == pytest.approx(100e6 + lies + writes, abs=2)
    assert found(a_job(), replace(DATA, microusd_per_gb=1))["gs://one"].gb_microusd == 1


@pytest.mark.parametrize(
    ("usd", "refused"), [(108.0, 2), (109.0, 1), (217.0, 1), (218.0, 0)], ids=str
)
def test_what_the_cap_does_not_hold_is_refused(usd: float, refused: int) -> None:
    """Each costs $90, $18.63 for a month, and $0.30 of writes."""
    rows = found(a_job(2, usd)).values()
    assert sum("exceeds stage_ahead.max_usd" in leg.refused for leg in rows) == refused


def test_what_was_paid_of_a_way_is_not_asked_for_again() -> None:
    paid = {"gs://one": 60_000_000}
    assert not found(a_job(1, 109.0), paid=paid)["gs://one"].refused
    assert found(a_job(1, 108.0), paid=paid)["gs://one"].refused
    dear = {"gs://one": 200_000_000}
    assert found(a_job(2, 250.0), paid=dear)["gs://two"].refused


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (replace(DATA, size_bytes=0), "the size of data set corpus is not declared"),
        (replace(DATA, leaving={}), "is not listed; set usd_per_gb"),
        (replace(DATA, box_microusd_per_gb=None), "[staging] usd_per_gb"),
        (replace(DATA, max_microusd=89_000_000), "costs $90.00, above max_usd of data set corpus"),
    ],
)
def test_what_is_not_known_or_too_dear_is_refused(data: DataSet, words: str) -> None:
    assert words in found(a_job(), data)["gs://one"].refused


def test_regions_are_ranked_as_if_the_data_were_there() -> None:
    """Where it is not, its way of $90 and its price would keep the job away."""
    of, dear = a_job(), replace(DATA, max_microusd=1, missing=frozenset(COPIES))
    order = next_offers(view(job={"spec": of}), world(dear), NOW)
    assert [one.zone for one in order if one.cloud != "far"] == [
        "aws-1a",
        "gcp-1a",
        "gcp-1b",
        "gcp-2a",
        "azure-1a",
    ]
    here = {region_of(offer("gcp-1a"))}
    rest = next_offers(view(job={"spec": of}), world(), NOW, here)
    assert not {one.zone for one in rest} & {"gcp-1a", "gcp-1b"}
