"""Moves in `spotctl plan`: what leaving the place of state and data costs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spotd.domain.datasets import DataSet
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig
from tests.spotd.cli.conftest import Spotctl

FAR = replace(OFFERS[2], local=False, price_microusd_per_h=16_830_000)
LEAVING = {"aws": 90_000, "gcp": 120_000}
STORE = "engine: spotd, store: s3://east/runs, shards: [s3://east, gs://central], size: 871GB, "
MOUNT = "file_mounts:\n  /data: dataset://corpus\n"


@pytest.fixture
def gravity(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A plan request with state in AWS, a cheaper offer in GCP, and data with copies.

    The offer costs $3.10 less per hour, and each region has a copy of the data.
    """
    monkeypatch.setenv("COLUMNS", "200")
    rig.places = {"s3://east": ("aws", "us-east-1"), "gs://central": ("gcp", "us-central1")}
    rig.offer_them(SPOT, FAR)
    text = JOB_FILE.replace("engine: spotd, ", STORE)
    (rig.folder / "job.yaml").write_text(text)
    (rig.folder / "data.yaml").write_text(text.replace("run:", MOUNT + "run:"))
    return rig


@pytest.mark.req("DAT-02")
def test_plan_prints_the_break_even_hours_of_a_move(
    gravity: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spotctl(gravity, "plan", str(gravity.folder / "job.yaml")) == 0
    [message] = [line for line in capsys.readouterr().err.splitlines() if "paid back" in line]
    assert message == (
        f"to {FAR.key}: the checkpoint costs $78.39 and 11m, paid back after 25.3 h of work at "
        f"$3.10/h less than {SPOT.key}"
    )
    assert spotctl(gravity, "plan", str(gravity.folder / "job.yaml"), "-o", "json") == 0
    [move] = json.loads(capsys.readouterr().out)["moves"]
    assert move["usd"] == move["checkpoint_usd"] == 78.39
    assert (move["saves_usd_per_h"], move["break_even_h"]) == (3.1, 25.29)


@pytest.mark.req("DAT-02")
def test_missing_data_is_part_of_the_move(
    gravity: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = "gs://central/corpus"
    data = DataSet("s3://east/corpus", (copy,), 10**9, LEAVING, size_bytes=5_000_000_000_000)
    for staged, usd in ((frozenset[str](), 450.0), (frozenset({copy}), 0.0)):
        gravity.datasets = {"corpus": replace(data, staged=staged)}
        assert spotctl(gravity, "plan", str(gravity.folder / "data.yaml"), "-o", "json") == 0
        [move] = json.loads(capsys.readouterr().out)["moves"]
        assert (move["checkpoint_usd"], move["data_usd"]) == (78.39, usd)


def test_move_that_never_pays_off_is_named(
    gravity: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    gravity.offer_them(SPOT, replace(FAR, price_microusd_per_h=30_000_000))
    assert spotctl(gravity, "plan", str(gravity.folder / "job.yaml")) == 0
    stderr = capsys.readouterr().err
    assert (
        f"never paid back: moves to 1 places that cost no less than {SPOT.key} (the checkpoint to "
        f"{FAR.key}: $78.39)"
    ) in stderr


def test_plan_without_moves_prints_nothing(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    (rig.folder / "job.yaml").write_text(JOB_FILE)
    assert spotctl(rig, "plan", str(rig.folder / "job.yaml")) == 0
    assert "paid back" not in capsys.readouterr().err
