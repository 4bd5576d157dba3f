"""A user's job, kept to one cloud, to spot, and to what may be spent."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from providers.base import CapacityType
from spotd.spec import load
from spotd.verify.interruption_job import LONGEST_S, UnsuitableJobError, confined

HEAD = "run: train\nspotd: {checkpoint: {engine: spotd, store: 's3://b/p'}}\n"


def kept(resources: str, head: str = HEAD, most_usd: float = 60.0) -> dict[str, Any]:
    found = confined(f"resources: {resources}\n{head}", "east", "aws", most_usd)
    load(found, now_us=0, fallback_name="x")  # it is a job file still
    return dict(yaml.safe_load(found))


@pytest.mark.parametrize(
    ("resources", "infra"),
    [
        ("{accelerators: H100:8}", "east"),
        ("{infra: '*', use_spot: true}", "east"),
        ("{infra: aws/us-east-1}", "east/us-east-1"),
        ("{infra: 'east/*/us-east-1a'}", "east/*/us-east-1a"),
        ("{cloud: AWS, region: us-west-2, use_spot: false}", "east/us-west-2"),
    ],
)
def test_it_runs_there_on_spot(resources: str, infra: str) -> None:
    data = kept(resources)
    assert data["resources"]["infra"] == infra
    assert not {"cloud", "region", "zone", "use_spot"} & data["resources"].keys()
    text = yaml.safe_dump(data)
    [want] = load(text, now_us=0, fallback_name="x").spec.alternatives
    assert (want.cloud, want.capacity_types) == ("east", (CapacityType.SPOT,))


@pytest.mark.parametrize("several", ["any_of", "ordered"])
def test_of_several_machines_those_of_the_cloud_are_left(several: str) -> None:
    rows = "[{infra: aws, accelerators: 'H100:8'}, {infra: gcp}, {accelerators: 'A100:8'}]"
    data = kept(f"{{cpus: 8, {several}: {rows}}}")
    assert [row.get("infra") for row in data["resources"][several]] == ["east", None]
    wants = load(yaml.safe_dump(data), now_us=0, fallback_name="x").spec.alternatives
    assert {(w.cloud, w.accelerator) for w in wants} == {("east", "H100"), ("east", "A100")}
    with pytest.raises(UnsuitableJobError, match=f"resources.{several} names no machine of aws"):
        kept(f"{{{several}: [{{infra: gcp}}, {{cloud: azure}}]}}")


def test_what_it_may_cost_and_take_is_the_least_that_anybody_said() -> None:
    own = kept("{cpus: 1}")["spotd"]
    assert own["budget"] == {"max_cost_usd": 60.0}
    assert (own["max_duration"], own["candidates"]) == (f"{LONGEST_S}s", 1)
    tight = HEAD.replace("spotd: {", "spotd: {max_duration: 5m, budget: {max_cost_usd: 5}, ")
    own = kept("{cpus: 1}", tight)["spotd"]
    assert (own["budget"], own["max_duration"]) == ({"max_cost_usd": 5.0}, "5m")
    assert kept("{cpus: 1}", tight, 2.0)["spotd"]["budget"] == {"max_cost_usd": 2.0}
    long = HEAD.replace("spotd: {", "spotd: {max_duration: 7d, ")
    assert kept("{cpus: 1}", long)["spotd"]["max_duration"] == f"{LONGEST_S}s"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("resources: {infra: gcp}\n" + HEAD, "names another cloud than aws"),
        ("num_nodes: 2\n" + HEAD, "num_nodes: a rehearsal is of a job on one machine"),
        ("run: train\n", r"spotd\.checkpoint\.engine is not spotd"),
        ("run: train\nspotd: {checkpoint: {engine: none}}\n", "engine is not spotd"),
    ],
)
def test_what_cannot_be_rehearsed_is_named(text: str, words: str) -> None:
    with pytest.raises(UnsuitableJobError, match=words):
        confined(text, "east", "aws", 10.0)
