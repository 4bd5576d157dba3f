"""`spotctl rightsize --from-history` through the real API, of jobs that reported measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.states import LeaveReason
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.sizing.told import tuned

Captured = pytest.CaptureFixture[str]
WORDS = tuned({"name": "llama-3-8b", "method": "lora", "sequence": 4096})
MODEL = f"  model: {json.dumps(WORDS)}\n"
DAY_S = 86_400.0


def trained(
    rig: Rig, name: str, *, tokens_per_s: float, gpu: float, ago_s: float = 9000, model: str = MODEL
) -> str:
    """Submit a job that trained an hour on 8x H100 spot and reported its utilization."""
    job_id = rig.submit(name, ago_s=ago_s + 5000, text=JOB_FILE + model)
    node = rig.launch(job_id, SPOT, ago_s=ago_s + 4000)
    rig.train(node, ago_s=ago_s + 3900, until_s=ago_s + 3600, first=0, last=10)
    rig.say(
        node,
        ago_s,
        "progress",
        from_step=11,
        to_step=110,
        losses=[],
        first_at_us=rig.ago(ago_s + 3600),
        last_at_us=rig.ago(ago_s),
        tokens=round(tokens_per_s * 3600),
        busy_s=3600.0,
        usage={"window_s": 3600.0, "gpu": gpu, "data_s": 2400.0, "save_s": 0.0},
    )
    return job_id


def review_rows(spotctl: Spotctl, rig: Rig, capsys: Captured, *arguments: str) -> dict[str, Any]:
    assert spotctl(rig, "rightsize", "--from-history", *arguments, "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    return {row["job"]: row for row in data["items"]}


@pytest.mark.req("RSZ-11")
def test_measured_jobs_are_compared_with_current_offers(
    rig: Rig, spotctl: Spotctl, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model on eight H100 is cheaper on one of them.

    A busy job of unknown model is kept, and one whose GPUs wait gets the cause.
    """
    small_offer = replace(SPOT, instance_type="p5.4xlarge", accelerator_count=1)
    small_offer = replace(
        small_offer, price_microusd_per_h=2_000_000, list_microusd_per_h=6_880_000
    )
    rig.offer_them(*OFFERS, small_offer)
    trained(rig, "small", tokens_per_s=60_000, gpu=0.9)
    trained(rig, "busy", tokens_per_s=1.0, gpu=0.95, model="")
    trained(rig, "hungry", tokens_per_s=1.0, gpu=0.3, model="")
    rows = review_rows(spotctl, rig, capsys)
    small = rows["small"]
    assert small["verdict"] == "change"
    assert small["measured"]["tokens_per_s"] == pytest.approx(60_000)
    assert small["usd_per_m_tokens"] == pytest.approx(19.93 / 3600 / 60_000 * 1e6, abs=1e-6)
    better = small["better"]
    assert (better["instance_type"], better["num_nodes"], better["measured"]) == (
        "p5.4xlarge",
        1,
        True,
    )
    assert better["tokens_per_s"] == pytest.approx(60_000 / 8)
    assert better["usd_per_m_tokens"] == pytest.approx(2.0 / 3600 / 7500 * 1e6, abs=1e-6)
    assert small["saves"] == pytest.approx(1 - 16 / 19.93, abs=1e-3)
    assert small["usd"] > 0
    assert small["use"]["gpu"] == 0.9
    assert (rows["busy"]["verdict"], rows["busy"]["better"]) == ("keep", None)
    assert rows["hungry"]["verdict"] == "look"
    assert rows["hungry"]["use"]["idle_usd"] == pytest.approx(0.7 * 19.93, abs=0.01)
    monkeypatch.setenv("COLUMNS", "240")
    assert spotctl(rig, "rightsize", "--from-history") == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    summary = "1 x p5.4xlarge in aws/us-east-1a: $0.0741 a million tokens, 19.7 % less"
    assert summary in lines["small"]
    assert "it waits for data" in lines["hungry"]


def test_estimates_are_corrected_by_the_measured_error(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    """A program that reaches 1 % of an H100's rate reaches no more of an A100's.

    At the same price per hour the A100 is no better.
    """
    other_offer = replace(SPOT, instance_type="p4de.24xlarge", accelerator="A100-80GB")
    rig.offer_them(*OFFERS, other_offer)
    trained(rig, "slow", tokens_per_s=600, gpu=0.2)
    row = review_rows(spotctl, rig, capsys)["slow"]
    assert (row["verdict"], row["better"]) == ("look", None)
    rig.offer_them(*OFFERS, replace(other_offer, price_microusd_per_h=1_000_000))
    row = review_rows(spotctl, rig, capsys)["slow"]
    assert row["better"]["instance_type"] == "p4de.24xlarge"
    assert row["better"]["measured"] is False
    assert row["better"]["tokens_per_s"] < 600


def test_newest_job_of_each_name_is_reviewed(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    job_id = trained(rig, "old", tokens_per_s=600, gpu=0.9, ago_s=100 * DAY_S)
    for node in rig.store.nodes.of_job(job_id):
        rig.leave(node, 99 * DAY_S, LeaveReason.DONE, "done")
    assert review_rows(spotctl, rig, capsys) == {}
    assert list(review_rows(spotctl, rig, capsys, "--since", "200d")) == ["old"]
    assert spotctl(rig, "rightsize", "--from-history") == 0
    assert "no job had machines with GPUs since" in capsys.readouterr().err


def test_review_takes_no_single_job(spotctl: Spotctl, capsys: Captured) -> None:
    assert spotctl(None, "rightsize", "--from-history", "--model", "gpt2") == 2
    assert "--from-history reviews all jobs on record" in capsys.readouterr().err
