"""`spotctl rightsize --from-history`, through the real API, of jobs that said how they trained."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.states import LeaveReason
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]
MODEL = "  model: {name: llama-3-8b, method: lora, sequence: 4096}\n"
DAY_S = 86_400.0


def trained(
    rig: Rig, name: str, *, tokens_per_s: float, gpu: float, ago_s: float = 9000, model: str = MODEL
) -> str:
    """An hour on 8x H100 on spot, reported at once with how it was used."""
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


def reviewed(spotctl: Spotctl, rig: Rig, capsys: Captured, *words: str) -> dict[str, Any]:
    assert spotctl(rig, "rightsize", "--from-history", *words, "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    return {one["job"]: one for one in data["items"]}


@pytest.mark.req("RSZ-11")
def test_what_was_measured_is_held_against_what_is_on_sale(
    rig: Rig, spotctl: Spotctl, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model on eight H100: one of them does it for less; a busy one of no known model is
    left alone, one whose GPUs wait is told why."""
    one = replace(SPOT, instance_type="p5.4xlarge", accelerator_count=1)
    one = replace(one, price_microusd_per_h=2_000_000, list_microusd_per_h=6_880_000)
    rig.offer_them(*OFFERS, one)
    trained(rig, "small", tokens_per_s=60_000, gpu=0.9)
    trained(rig, "busy", tokens_per_s=1.0, gpu=0.95, model="")
    trained(rig, "hungry", tokens_per_s=1.0, gpu=0.3, model="")
    found = reviewed(spotctl, rig, capsys)
    small = found["small"]
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
    assert (found["busy"]["verdict"], found["busy"]["better"]) == ("keep", None)
    assert found["hungry"]["verdict"] == "look"
    assert found["hungry"]["use"]["idle_usd"] == pytest.approx(0.7 * 19.93, abs=0.01)
    monkeypatch.setenv("COLUMNS", "240")
    assert spotctl(rig, "rightsize", "--from-history") == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    told = "1 x p5.4xlarge in aws/us-east-1a: $0.074 a million tokens, 19.7 % less"
    assert told in lines["small"]
    assert "it waits for data" in lines["hungry"]


def test_what_is_foretold_is_as_far_off_as_it_is_here(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    """A program that reaches a hundredth of what H100 allow reaches no more of A100: as dear by the
    hour, they are no better."""
    other = replace(SPOT, instance_type="p4de.24xlarge", accelerator="A100-80GB")
    rig.offer_them(*OFFERS, other)
    trained(rig, "slow", tokens_per_s=600, gpu=0.2)
    found = reviewed(spotctl, rig, capsys)["slow"]
    assert (found["verdict"], found["better"]) == ("look", None)
    rig.offer_them(*OFFERS, replace(other, price_microusd_per_h=1_000_000))
    found = reviewed(spotctl, rig, capsys)["slow"]
    assert found["better"]["instance_type"] == "p4de.24xlarge"
    assert found["better"]["measured"] is False
    assert found["better"]["tokens_per_s"] < 600


def test_the_newest_of_each_name_within_that_time(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    job_id = trained(rig, "old", tokens_per_s=600, gpu=0.9, ago_s=100 * DAY_S)
    for node in rig.store.job_nodes(job_id):
        rig.leave(node, 99 * DAY_S, LeaveReason.DONE, "done")
    assert reviewed(spotctl, rig, capsys) == {}
    assert list(reviewed(spotctl, rig, capsys, "--since", "200d")) == ["old"]
    assert spotctl(rig, "rightsize", "--from-history") == 0
    assert "no job had machines with GPUs since" in capsys.readouterr().err


def test_it_is_of_all_jobs(spotctl: Spotctl, capsys: Captured) -> None:
    assert spotctl(None, "rightsize", "--from-history", "--model", "gpt2") == 2
    assert "--from-history is of all jobs on record" in capsys.readouterr().err
