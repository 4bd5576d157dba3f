"""Test that a user's job file is restricted to one cloud, to spot and to a budget."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from providers.base import CapacityType
from spotd.spec import load
from spotd.verify.interruption_job import MAX_DURATION_S, UnsuitableJobError, restrict_job_file

HEAD = "run: train\nspotd: {checkpoint: {engine: spotd, store: 's3://b/p'}}\n"


def restrict(resources: str, head: str = HEAD, max_usd: float = 60.0) -> dict[str, Any]:
    restricted = restrict_job_file(f"resources: {resources}\n{head}", "east", "aws", max_usd)
    load(restricted, now_us=0, fallback_name="x")  # it is a job file still
    return dict(yaml.safe_load(restricted))


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
    data = restrict(resources)
    assert data["resources"]["infra"] == infra
    assert not {"cloud", "region", "zone", "use_spot"} & data["resources"].keys()
    text = yaml.safe_dump(data)
    [alternative] = load(text, now_us=0, fallback_name="x").spec.resources.alternatives
    assert (alternative.cloud, alternative.capacity_types) == ("east", (CapacityType.SPOT,))


@pytest.mark.parametrize("several", ["any_of", "ordered"])
def test_alternatives_in_other_clouds_are_removed(several: str) -> None:
    rows = "[{infra: aws, accelerators: 'H100:8'}, {infra: gcp}, {accelerators: 'A100:8'}]"
    data = restrict(f"{{cpus: 8, {several}: {rows}}}")
    assert [row.get("infra") for row in data["resources"][several]] == ["east", None]
    alternatives = load(
        yaml.safe_dump(data), now_us=0, fallback_name="x"
    ).spec.resources.alternatives
    assert {(alternative.cloud, alternative.accelerator) for alternative in alternatives} == {
        ("east", "H100"),
        ("east", "A100"),
    }
    with pytest.raises(UnsuitableJobError, match=f"resources.{several} names no machine of aws"):
        restrict(f"{{{several}: [{{infra: gcp}}, {{cloud: azure}}]}}")


def test_cost_and_duration_are_the_lowest_limits() -> None:
    block = restrict("{cpus: 1}")["spotd"]
    assert block["budget"] == {"max_cost_usd": 60.0}
    assert (block["max_duration"], block["candidates"]) == (f"{MAX_DURATION_S}s", 1)
    tight = HEAD.replace("spotd: {", "spotd: {max_duration: 5m, budget: {max_cost_usd: 5}, ")
    block = restrict("{cpus: 1}", tight)["spotd"]
    assert (block["budget"], block["max_duration"]) == ({"max_cost_usd": 5.0}, "5m")
    assert restrict("{cpus: 1}", tight, 2.0)["spotd"]["budget"] == {"max_cost_usd": 2.0}
    long = HEAD.replace("spotd: {", "spotd: {max_duration: 7d, ")
    assert restrict("{cpus: 1}", long)["spotd"]["max_duration"] == f"{MAX_DURATION_S}s"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resources: {infra: gcp}\n" + HEAD, "names another cloud than aws"),
        ("num_nodes: 2\n" + HEAD, "num_nodes: an interruption test needs a job on one machine"),
        ("run: train\n", r"spotd\.checkpoint\.engine is not spotd"),
        ("run: train\nspotd: {checkpoint: {engine: none}}\n", "engine is not spotd"),
    ],
)
def test_unsuitable_jobs_are_refused(text: str, message: str) -> None:
    with pytest.raises(UnsuitableJobError, match=message):
        restrict_job_file(text, "east", "aws", 10.0)
