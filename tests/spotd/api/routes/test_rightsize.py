"""A plan with the memory, time and cost of its model, and what a job measured of its own."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from spotd.api.views import store_capacity
from spotd.base.errors import UserError
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig
from tests.spotd.sizing.told import tuned

MODEL = {"name": "qwen2-72b", "sequence": 4096, "tokens": "1.4B"}
TOKENS_A_STEP = 8 * 4096


def job_file(precision: str = "bf16") -> str:
    """A job whose options are all told, so that its memory is one figure."""
    return f"{JOB_FILE}  model: {json.dumps(tuned({**MODEL, 'precision': precision}))}\n"


def plan(client: PathClient, text: str) -> dict[str, Any]:
    return client.post("/v1/plan", {"yaml": text})


def test_a_plan_says_of_each_offer_whether_the_model_fits(
    client: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy = SimpleNamespace(free=10**14)
    monkeypatch.setattr(store_capacity.shutil, "disk_usage", lambda _folder: roomy)
    rows = plan(client, job_file("mixed"))["offers"]
    assert len(rows) == len(OFFERS)
    assert {row["size"]["text"] for row in rows} == {"does not fit: 145 GiB/GPU of 79.2"}
    sizes = {row["key"]: row["size"] for row in plan(client, job_file())["offers"]}
    assert sizes[SPOT.key]["verdict"] == "tight"
    assert sizes[SPOT.key]["usd"] == pytest.approx(19.93 * sizes[SPOT.key]["hours"], rel=1e-3)


def test_a_plan_without_a_model_says_nothing_of_one(client: PathClient) -> None:
    planned = plan(client, JOB_FILE)
    assert "model" not in planned
    assert "size" not in planned["offers"][0]


def test_a_model_that_is_not_known_is_refused_with_its_key(client: PathClient) -> None:
    with pytest.raises(UserError, match=r"spotd\.model\.name: no model 'qwen2-73b' is known"):
        plan(client, job_file().replace("72b", "73b"))


def train(rig: Rig, steps: int, warm_s: float = 3600.0) -> None:
    """It reports what it did in stretches, the first of them cold."""
    job_id = rig.submit(ago_s=warm_s + 400, text=job_file())
    node = rig.launch(job_id, SPOT, ago_s=warm_s + 390)
    rig.train(node, ago_s=warm_s + 300, until_s=warm_s, first=0, last=10)
    rig._report(node, (11, 10 + steps), warm_s, 60)


def test_after_50_steps_the_measurement_takes_the_place_of_the_prior(
    rig: Rig, client: PathClient
) -> None:
    train(rig, 60)
    said = client.get("/v1/jobs/gpt/sizing")
    assert said["model"]["name"] == "qwen2-72b"
    measured = said["measured"]
    assert (measured["accelerator"], measured["gpus"], measured["steps"]) == ("H100", 8, 60)
    rows = {row["key"]: row["size"] for row in plan(client, job_file())["offers"]}
    size = rows[SPOT.key]
    assert size["measured"]
    assert size["tokens_per_s"] == pytest.approx(measured["tokens_per_s"], abs=0.1)
    assert size["hours"] == pytest.approx(1.4e9 / measured["tokens_per_s"] / 3600, rel=1e-3)


def test_before_50_warm_steps_it_is_the_prior(rig: Rig, client: PathClient) -> None:
    train(rig, 49)
    said = client.get("/v1/jobs/gpt/sizing")
    assert (said["measured"], said["measured_steps_needed"]) == (None, 50)
    assert not plan(client, job_file())["offers"][0]["size"]["measured"]


def test_a_job_without_a_model_is_told_what_to_do(rig: Rig, client: PathClient) -> None:
    rig.submit()
    with pytest.raises(UserError, match="the job file of gpt has no spotd"):
        client.get("/v1/jobs/gpt/sizing")
