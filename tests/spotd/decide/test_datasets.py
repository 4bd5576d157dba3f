"""How machines come by data: from beside it, by way of a copy in their region, or from afar."""

from __future__ import annotations

from dataclasses import replace

from spotd.decide.carriage import Place
from spotd.decide.datasets import DataSet, way_of
from spotd.wire import Bucket
from tests.spotd.decide.build import offer

URL, COPY = "s3://src/corpus", "gs://central/corpus"
PLACES = {
    "s3://src": Place("aws", "us-east-1"),
    "gs://central": Place("gcp", "us-central1"),
    "s3://near": Place("aws", "us-west-2"),
    "s3://own": Place("", "r"),
}
DATA = DataSet(URL, (COPY, "s3://near/c"), 5_000_000, {"aws": 90_000, "gcp": 120_000})
GCP = replace(offer("c-1a"), cloud="gcp", region="us-central1")
AWS = replace(offer("e-1a"), cloud="aws", region="us-east-1")


def test_beside_the_data_nothing_is_staged_and_nothing_paid() -> None:
    assert way_of(DATA, AWS, PLACES) == Bucket("", URL)
    assert way_of(DATA, replace(GCP, local=True), PLACES) == Bucket("", URL)
    assert way_of(replace(DATA, url="file:///x"), GCP, PLACES) == Bucket("", "file:///x")


def test_a_machine_in_a_region_with_a_copy_goes_by_that_one() -> None:
    assert way_of(DATA, GCP, PLACES) == Bucket("", URL, {}, COPY, {}, 90_000, 5_000_000)
    west = replace(AWS, region="us-west-2")
    found = way_of(DATA, west, PLACES)
    assert (found.near, found.microusd_per_gb) == ("s3://near/c", None), "no list has it"
    said = way_of(replace(DATA, microusd_per_gb=20_000), west, PLACES)
    assert said.microusd_per_gb == 20_000


def test_elsewhere_it_comes_from_afar_for_no_more_than_the_cap() -> None:
    far = way_of(DATA, replace(GCP, region="europe-west4"), PLACES)
    assert (far.near, far.microusd_per_gb, far.max_microusd) == ("", 90_000, 5_000_000)
    own = way_of(replace(DATA, url="s3://own/x"), GCP, PLACES)
    assert own.microusd_per_gb is None
