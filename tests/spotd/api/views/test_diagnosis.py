"""`why` and `cost` say what was found wrong with training, and what idle machines cost."""

from __future__ import annotations

import pytest

from tests.fixtures.path_client import PathClient
from tests.spotd.api.diagnosed import HUNG, REPORT, diagnosed
from tests.spotd.api.rig import SPOT, Rig


@pytest.fixture
def training(rig: Rig) -> Rig:
    diagnosed(rig)
    return rig


def test_why_has_the_newest_of_each_verdict_with_its_stacks(
    training: Rig, client: PathClient
) -> None:
    data = client.get("/v1/jobs/gpt/why")
    spike, hung = data["verdicts"]
    assert (spike["kind"], spike["times"], spike["stacks"]) == ("loss_spike", 1, [])
    assert (hung["kind"], hung["times"], hung["title"]) == ("hung", 2, "training hangs")
    assert hung["seen"].startswith("training hangs: no step for 130 s")
    assert hung["does"].startswith("the program is restarted on this machine")
    assert "the stacks below" in hung["attempt"]
    assert [stack["rank"] for stack in hung["stacks"]] == [0, 1]
    assert "wait_for_shard" in hung["stacks"][1]["text"]


@pytest.mark.req("HLT-10")
def test_idle_machines_are_dollars_with_a_likely_cause(training: Rig, client: PathClient) -> None:
    """At $19.93 an hour: lately 216 of 360 s idle, 180 waiting for data and 18 for checkpoints;
    and in all, 252 of 720 s."""
    lately = client.get("/v1/jobs/gpt/why")["use"]
    assert (lately["gpu"], lately["data"], lately["save"]) == (0.4, 0.5, 0.05)
    assert lately["cause"].startswith("it waits for data")
    assert lately["measured_hours"] == 0.1
    assert lately["idle_usd"] == pytest.approx(19.93 * 216 / 3600, abs=1e-5)
    assert lately["data_usd"] == pytest.approx(19.93 * 180 / 3600, abs=1e-5)
    assert lately["save_usd"] == pytest.approx(19.93 * 18 / 3600, abs=1e-5)
    overall = client.get("/v1/jobs/gpt/cost")["use"]
    assert overall["gpu"] == 0.65
    assert overall["idle_usd"] == pytest.approx(19.93 * 252 / 3600, abs=1e-5)


def test_what_nobody_measured_is_not_claimed(rig: Rig, client: PathClient) -> None:
    node = rig.launch(rig.submit(ago_s=9_000), SPOT, ago_s=8_000)
    assert client.get("/v1/jobs/gpt/why")["use"] is None
    assert client.get("/v1/jobs/gpt/cost")["use"] is None
    rig.say(node, 300, "progress", **REPORT, usage={"window_s": 300.0, "save_s": 3.0})
    use = client.get("/v1/jobs/gpt/why")["use"]
    assert (use["gpu"], use["data"], use["save"], use["cause"]) == (None, None, 0.01, "")
    assert (use["idle_usd"], use["data_usd"]) == (None, None)
    assert use["save_usd"] > 0


def test_a_verdict_of_days_ago_is_no_news(rig: Rig, client: PathClient) -> None:
    node = rig.launch(rig.submit(ago_s=200_000), SPOT, ago_s=190_000)
    rig.say(node, 90_000, "unwell", **HUNG)
    assert client.get("/v1/jobs/gpt/why")["verdicts"] == []
