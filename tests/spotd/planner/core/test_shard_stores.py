"""What it costs to bring a checkpoint to its store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.base import CapacityType, Offer
from providers.stores import bucket
from spotd.domain.datasets import DataSet
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec, JobSpec
from spotd.planner.core.checkpoint_interval import mtbf_s
from spotd.planner.core.shard_stores import (
    LEAST_S,
    MOST_S,
    PART_BYTES,
    STALL_S,
    StorePlace,
    carried_microusd_per_h,
    egress_microusd_per_h,
    gb_microusd,
    longest_pause_s,
    may_have_shards,
    near_store,
    place_of,
    requests_microusd_per_h,
    saves_per_h,
    way_of,
)
from spotd.planner.placement.rank import TOO_DEAR, could_run, rank
from spotd.wire import Bucket
from tests.spotd.planner.build import NOW, market, offer, spec
from trainer.hook.spotd_hook import cadence

STORING = {"aws": (23_000, 5_000)}
LEAVING = {"aws": 90_000, "gcp": 120_000}
AWS = replace(offer("aws-1a", 36), cloud="aws", region="us-east-2")


@pytest.mark.parametrize(
    ("url", "options", "place"),
    [
        ("s3://b/x", {"region": "us-east-2"}, StorePlace("aws", "us-east-2")),
        ("s3://b/x", {}, StorePlace("aws")),
        ("s3://b/x", {"endpoint": "https://minio.example", "region": "r"}, StorePlace("")),
        ("gs://b/x", {"region": "us-central1"}, StorePlace("gcp", "us-central1")),
        ("az://b/x", {}, StorePlace("azure")),
        ("file:///x", {"region": "r"}, StorePlace("here")),
        ("s3://b/x:y", {"region": "r"}, StorePlace("aws", "r")),
        ("r2://b/x", {"region": "r"}, StorePlace("", "r")),
    ],
)
def test_where_a_store_is(url: str, options: dict[str, str], place: StorePlace) -> None:
    assert place_of(url, options) == place


@pytest.mark.parametrize(
    ("store", "microusd"),
    [
        (StorePlace("aws", "us-east-2"), 0),
        (StorePlace("aws", "us-west-2"), None),  # between regions no price with a source is known
        (StorePlace("aws"), None),
        (StorePlace("gcp", "us-central1"), 90_000),  # of the cloud that is left
        (StorePlace(""), 90_000),
        (StorePlace("here"), 0),
    ],
)
def test_a_gb_from_aws(store: StorePlace, microusd: int | None) -> None:
    assert gb_microusd(AWS, store, LEAVING) == microusd


def test_a_cloud_without_a_price_and_a_machine_of_this_box() -> None:
    assert gb_microusd(replace(AWS, cloud="lambda"), StorePlace("aws", "x"), LEAVING) is None
    assert gb_microusd(replace(AWS, local=True), StorePlace("gcp", "x"), LEAVING) == 0


GCP = replace(offer("gcp-1a", 35), provider="gcp", cloud="gcp", region="us-central1")
STORE = {"s3://b": StorePlace("aws", "us-east-2")}
OFFERS = market((AWS, GCP), places=STORE, egress_microusd_per_gb=LEAVING)


def saving(**saves: object) -> JobSpec:
    base = CheckpointSpec("s3://b/x", "spotd", every_s=300.0, size_bytes=100 * 10**9)
    return spec(checkpoint=replace(base, **saves))  # type: ignore[arg-type]


def test_saves_across_clouds_cost_by_size_and_by_how_often() -> None:
    """100 GB at $0.12 a GB, twelve times an hour."""
    assert egress_microusd_per_h(GCP, saving(), OFFERS) == 144_000_000
    assert egress_microusd_per_h(GCP, saving(every_s=600.0), OFFERS) == 72_000_000
    assert egress_microusd_per_h(AWS, saving(), OFFERS) == 0


@pytest.mark.parametrize(
    "unknown",
    [
        saving(size_bytes=0),
        saving(every_s=0.0, every_steps=100),
        saving(engine="none"),
    ],
    ids=["size", "pause", "program"],
)
def test_what_is_not_known_is_no_price(unknown: JobSpec) -> None:
    assert egress_microusd_per_h(GCP, unknown, OFFERS) is None
    elsewhere = replace(AWS, region="us-west-2")
    assert egress_microusd_per_h(elsewhere, saving(), OFFERS) is None


def test_a_store_is_where_the_closest_one_that_is_configured_is() -> None:
    places = {
        "s3://b": StorePlace("gcp"),
        "s3://b/x": StorePlace("aws", "us-east-2"),
        "s3://b/xy": StorePlace(""),
    }
    near = changed(OFFERS, places=places)
    assert egress_microusd_per_h(AWS, saving(), near) == 0
    assert egress_microusd_per_h(AWS, saving(store="s3://b/z"), near) == 108_000_000
    assert egress_microusd_per_h(AWS, saving(store="gs://c/z"), near) == 108_000_000, "by its URL"


@pytest.mark.parametrize("size", [10**6, 10**9, 10**10, 4 * 10**11])
def test_a_job_that_chooses_its_own_pauses_saves_rarer_where_it_costs(size: int) -> None:
    """As the program will, once it has measured: the formula is the same."""
    cost_microusd = size / 1e9 * 120_000
    costs_s = cost_microusd / (GCP.price_microusd_per_h / 3600)
    pause_s = cadence.interval_s(STALL_S, 0.0, mtbf_s(GCP, ()), costs_s)
    found = egress_microusd_per_h(GCP, saving(auto=True, size_bytes=size), OFFERS)
    assert found == pytest.approx(cost_microusd * 3600 / pause_s, abs=1)
    assert (LEAST_S, MOST_S) == (cadence.MIN_INTERVAL_S, cadence.MAX_INTERVAL_S)


@pytest.mark.parametrize("there", [AWS, replace(AWS, region="r")], ids=["free", "no price"])
def test_what_costs_nothing_as_far_as_is_known_makes_no_save_rarer(there: Offer) -> None:
    pause_s = cadence.interval_s(STALL_S, 0.0, mtbf_s(there, ()), 0.0)
    found = saves_per_h(there, saving(auto=True), OFFERS)
    assert found == pytest.approx(3600 / pause_s, rel=1e-9)


def test_it_counts_where_a_machine_is_chosen_and_under_the_cap() -> None:
    """$35 and $144 an hour lose against $36."""
    first, second = rank(saving(), OFFERS, NOW)
    assert (first.offer, first.egress_microusd_per_h) == (AWS, 0)
    assert second.score_microusd_per_h == 179_000_000
    assert not second.excluded
    by_price = rank(saving(size_bytes=0), OFFERS, NOW)
    assert [row.offer for row in by_price] == [GCP, AWS]
    capped = changed(saving(), max_hourly_microusd=178_000_000)
    [_, dear] = rank(capped, OFFERS, NOW)
    assert (dear.offer, dear.code) == (GCP, TOO_DEAR)
    assert "$144.00/h of egress" in dear.excluded
    fits = changed(saving(), max_hourly_microusd=179_000_000)
    assert not any(row.excluded for row in rank(fits, OFFERS, NOW))


def test_requests_cost_by_parts_and_count_where_a_machine_is_chosen_and_under_the_cap() -> None:
    """5,961 writes of 16 MiB, twelve times an hour, at $5 a million: $0.36."""
    assert PART_BYTES == bucket.PART_BYTES
    priced = changed(OFFERS, storage_prices=STORING)
    assert requests_microusd_per_h(AWS, saving(), priced) == 12 * 5961 * 5 == 357_660
    assert requests_microusd_per_h(AWS, saving(), OFFERS) is None
    assert requests_microusd_per_h(AWS, saving(size_bytes=0), priced) is None
    assert requests_microusd_per_h(AWS, saving(engine="none"), priced) is None
    capped = changed(saving(), max_hourly_microusd=36_357_659)
    dear = next(row for row in rank(capped, priced, NOW) if row.offer == AWS)
    assert dear.code == TOO_DEAR
    assert "$0.3577/h of egress and requests above max_hourly_cost" in dear.excluded
    assert not could_run(capped, AWS, priced, NOW)
    fits = changed(saving(), max_hourly_microusd=36_357_660)
    row = next(row for row in rank(fits, priced, NOW) if row.offer == AWS)
    assert (row.excluded, row.score_microusd_per_h) == ("", 36_357_660)
    assert could_run(fits, AWS, priced, NOW)


def test_all_that_is_known_of_what_checkpoints_cost_an_hour() -> None:
    priced = changed(OFFERS, storage_prices=STORING)
    lies = round(300 * 10**9 / 2**30 * 23_000 / 730)
    assert carried_microusd_per_h(AWS, saving(), priced) == 357_660 + lies
    assert carried_microusd_per_h(GCP, saving(), priced) == 144_000_000 + 357_660 + lies
    assert carried_microusd_per_h(AWS, saving(), OFFERS) == 0
    assert carried_microusd_per_h(GCP, saving(engine="none"), priced) == 0


def test_each_machine_of_a_gang_carries_its_share() -> None:
    gang = changed(saving(), num_nodes=2, max_hourly_microusd=35_000_000 + 72_000_000)
    assert not any(row.excluded and row.offer == GCP for row in rank(gang, OFFERS, NOW))
    tight = changed(gang, max_hourly_microusd=gang.limits.max_hourly_microusd - 1)
    assert any(row.code == TOO_DEAR and row.offer == GCP for row in rank(tight, OFFERS, NOW))


@pytest.mark.parametrize(
    ("wanted", "there", "pause_s"),
    [
        (saving(every_s=40.0), AWS, 40.0),
        (saving(every_s=0.0, every_steps=9), AWS, MOST_S),
        (saving(auto=True, every_s=300.0), AWS, 360.0),  # three times 120 s, at an MTBF of 4 h
        (saving(auto=True, every_s=400.0), AWS, 400.0),
        (saving(auto=True), replace(AWS, capacity_type=CapacityType.ON_DEMAND), MOST_S),
        (saving(auto=True), GCP, MOST_S),  # each save costs $12
        (saving(auto=True), replace(AWS, region="r"), MOST_S),  # or who knows what
    ],
)
def test_what_may_lie_between_two_saves(wanted: JobSpec, there: Offer, pause_s: float) -> None:
    assert longest_pause_s(there, wanted, OFFERS) == pytest.approx(pause_s)


@pytest.mark.parametrize(("num_nodes", "price"), [(1, 35_000_000), (2, 35_000_000), (2, 0)])
def test_a_gang_s_pauses_are_those_of_its_machines_together(num_nodes: int, price: int) -> None:
    """1 GB at $0.12; a machine that costs nothing has no time that money would buy."""
    there = replace(GCP, price_microusd_per_h=price)
    costs_s = 120_000 / (price * num_nodes / 3600) if price else 0.0
    pause_s = cadence.interval_s(STALL_S, 0.0, mtbf_s(there, (), num_nodes), costs_s)
    assert LEAST_S < pause_s < MOST_S
    gang = changed(saving(auto=True, size_bytes=10**9), num_nodes=num_nodes)
    found = egress_microusd_per_h(there, gang, OFFERS)
    assert found == pytest.approx(120_000 * 3600 / pause_s, abs=1)


# --- shards in the machine's own region

EAST, CENTRAL = "s3://east", "gs://central/runs"
NEAR = {
    **STORE,
    EAST: StorePlace("aws", "us-east-1"),
    CENTRAL: StorePlace("gcp", "us-central1"),
    "s3://nowhere": StorePlace("aws"),
}
SHARDS = ("s3://nowhere", EAST, CENTRAL)


@pytest.mark.parametrize(
    ("there", "job", "url"),
    [
        (GCP, saving(), CENTRAL),
        (replace(AWS, region="us-east-1"), saving(), EAST),
        (AWS, saving(), ""),  # the job's own store is there
        (replace(AWS, region="eu-west-1"), saving(), ""),  # nobody is
        (replace(GCP, region="us-east-1"), saving(), ""),  # of another cloud
        (GCP, saving(shards=(CENTRAL,)), CENTRAL),
        (GCP, saving(shards=(EAST,)), ""),  # what the job names counts
        (GCP, saving(shards=("s3://b/x",)), ""),  # its own alone
        (GCP, saving(store=CENTRAL), ""),
        (GCP, saving(engine="none"), ""),  # nothing of it is carried by us
        (GCP, saving(engine="none", directory="out"), CENTRAL),
    ],
)
def test_shards_go_to_a_store_beside_the_machine(there: Offer, job: JobSpec, url: str) -> None:
    found, place = near_store(there, job, NEAR, SHARDS)
    assert found == url
    assert place == NEAR[url or ("s3://b" if job.checkpoint.store != CENTRAL else CENTRAL)]


def test_what_a_job_named_and_what_is_configured_may_have_shards() -> None:
    assert may_have_shards(saving(), SHARDS) == SHARDS
    assert may_have_shards(saving(shards=("gs://mine", EAST)), SHARDS) == (
        "gs://mine",
        EAST,
        "s3://nowhere",
        CENTRAL,
    )
    assert may_have_shards(saving(store=EAST), SHARDS) == ("s3://nowhere", CENTRAL)


def test_beside_its_store_a_machine_pays_for_the_way_back_alone() -> None:
    """100 GB at $0.12 a GB, once in the life of a machine, where it was twelve times an hour."""
    near = changed(OFFERS, places=NEAR, shards=SHARDS)
    lives_h, aws_h = mtbf_s(GCP, (), 1) / 3600, mtbf_s(AWS, (), 1) / 3600
    found = egress_microusd_per_h(GCP, saving(), near)
    assert found == pytest.approx(100 * 120_000 / lives_h, abs=1)
    assert egress_microusd_per_h(AWS, saving(), near) == pytest.approx(100 * 90_000 / aws_h, abs=1)
    without = egress_microusd_per_h(GCP, saving(), OFFERS)
    assert found is not None
    assert without is not None
    assert found < without / 12
    assert saves_per_h(GCP, saving(auto=True), near) > saves_per_h(GCP, saving(auto=True), OFFERS)
    elsewhere = replace(GCP, region="europe-west4")
    far = egress_microusd_per_h(elsewhere, saving(), near)
    assert far == pytest.approx(144_000_000 + 100 * 90_000 / lives_h, abs=1)
    assert egress_microusd_per_h(GCP, saving(size_bytes=0), near) is None
    assert egress_microusd_per_h(replace(GCP, local=True), saving(), near) == 0


def test_with_its_way_back_an_offer_may_be_above_the_cap() -> None:
    near = changed(OFFERS, places=NEAR, shards=SHARDS)
    capped = changed(saving(), max_hourly_microusd=GCP.price_microusd_per_h + 1_000_000)
    row = next(row for row in rank(capped, near, NOW) if row.offer == GCP)
    assert row.code == TOO_DEAR


# --- data sets

DATA_URL, COPY = "s3://src/corpus", "gs://central/corpus"
DATA_PLACES = {
    "s3://src": StorePlace("aws", "us-east-1"),
    "gs://central": StorePlace("gcp", "us-central1"),
    "s3://near": StorePlace("aws", "us-west-2"),
    "s3://own": StorePlace("", "r"),
}
DATA = DataSet(DATA_URL, (COPY, "s3://near/c"), 5_000_000, {"aws": 90_000, "gcp": 120_000})
IN_GCP = replace(offer("c-1a"), cloud="gcp", region="us-central1")
IN_AWS = replace(offer("e-1a"), cloud="aws", region="us-east-1")


def test_beside_the_data_nothing_is_staged_and_nothing_paid() -> None:
    assert way_of(DATA, IN_AWS, DATA_PLACES) == Bucket("", DATA_URL)
    local = replace(IN_GCP, local=True)
    assert way_of(replace(DATA, copies=()), local, DATA_PLACES) == Bucket("", DATA_URL)
    assert way_of(DATA, local, DATA_PLACES) == Bucket("", DATA_URL, {}, COPY, {}, 0, 5_000_000)
    assert way_of(replace(DATA, url="file:///x"), IN_GCP, DATA_PLACES) == Bucket("", "file:///x")


def test_a_machine_in_a_region_with_a_copy_goes_by_that_one() -> None:
    assert way_of(DATA, IN_GCP, DATA_PLACES) == Bucket(
        "", DATA_URL, {}, COPY, {}, 90_000, 5_000_000
    )
    west = replace(IN_AWS, region="us-west-2")
    found = way_of(DATA, west, DATA_PLACES)
    assert (found.near, found.microusd_per_gb) == ("s3://near/c", None), "no list has it"
    said = way_of(replace(DATA, microusd_per_gb=20_000), west, DATA_PLACES)
    assert said.microusd_per_gb == 20_000


def test_elsewhere_it_comes_from_afar_for_no_more_than_the_cap() -> None:
    far = way_of(DATA, replace(IN_GCP, region="europe-west4"), DATA_PLACES)
    assert (far.near, far.microusd_per_gb, far.max_microusd) == ("", 90_000, 5_000_000)
    own = way_of(replace(DATA, url="s3://own/x"), IN_GCP, DATA_PLACES)
    assert own.microusd_per_gb is None
