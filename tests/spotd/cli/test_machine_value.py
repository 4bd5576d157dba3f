"""Machines, and numbers of them, that `spotctl rightsize` proposes for a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from providers.base import Offer
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.sizing.told import TUNED, flags

MODEL = ["--model", "llama-3-8b", "--sequence", "4096", *flags({**TUNED, "precision": "bf16"})]


def machine(name: str, count: int, usd: float, **fields: Any) -> Offer:
    kind = {"accelerator": name, "accelerator_count": count, "instance_type": f"{count}x{name}"}
    price = int(usd * 1e6)
    return replace(
        SPOT, price_microusd_per_h=price, list_microusd_per_h=2 * price, **kind, **fields
    )


JOINED = {"interconnect": "efa"}
EIGHT = machine("H100", 8, 20.0, **JOINED)


class Sizer:
    def __init__(self, rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
        self.rig, self._spotctl, self._capsys = rig, spotctl, capsys

    def rows(self, *args: str, sold: tuple[Offer, ...] = (EIGHT,)) -> list[dict[str, Any]]:
        self.rig.offer_them(*sold)
        assert self._spotctl(self.rig, "rightsize", *args, "-o", "json") == 0
        rows: list[dict[str, Any]] = json.loads(self._capsys.readouterr().out)["offers"]
        return rows


@pytest.fixture
def sizer(rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> Sizer:
    return Sizer(rig, spotctl, capsys)


@pytest.mark.req("PLC-08")
@pytest.mark.parametrize(
    ("a100_usd", "b200_usd", "first"), [(0.6, 6.0, "A100-80GB"), (1.25, 4.0, "B200")]
)
def test_offers_are_ranked_by_cost_to_finish_not_by_speed(
    sizer: Sizer, a100_usd: float, b200_usd: float, first: str
) -> None:
    """An adapter of an 8B model fits a spot A100 and a Blackwell.

    The second is seven times as fast and, depending on its price, costs more or less in the end.
    """
    small = ("--model", "llama-3-8b", "--method", "lora", "--tokens", "20M", *flags(TUNED))
    sold = (machine("A100-80GB", 1, a100_usd), machine("B200", 1, b200_usd))
    rows = sizer.rows(*small, sold=sold)
    assert [row["size"]["verdict"] for row in rows] == ["fits", "fits"]
    assert rows[0]["accelerator"] == first
    costs = [row["size"]["usd"] for row in rows]
    assert costs == sorted(costs)
    for row in rows:
        size = row["size"]
        assert size["usd"] == pytest.approx(size["hours"] * row["price_usd_per_h"], rel=0.01)
    hours = {row["accelerator"]: row["size"]["hours"] for row in rows}
    assert hours["B200"] < hours["A100-80GB"] / 5


@pytest.mark.req("PLC-09")
def test_run_that_fits_one_machine_is_proposed_on_one(sizer: Sizer) -> None:
    rows = sizer.rows(*MODEL, "--tokens", "10B")
    assert [(row["size"]["num_nodes"], row["size"]["verdict"]) for row in rows] == [(1, "fits")]
    [row] = rows
    patient = sizer.rows(*MODEL, "--tokens", "10B", "--within", f"{row['size']['hours'] + 1:.0f}h")
    assert [row["size"]["num_nodes"] for row in patient] == [1], "it is in time"


@pytest.mark.req("PLC-09")
def test_more_machines_are_proposed_only_to_be_in_time(sizer: Sizer) -> None:
    args = (*MODEL, "--tokens", "10B")
    [row] = sizer.rows(*args)
    within = f"{row['size']['hours'] * 0.6:.2f}h"
    more, late = sizer.rows(*args, "--within", within)
    assert (more["size"]["num_nodes"], more["size"]["late"]) == (2, False)
    assert (late["size"]["num_nodes"], late["size"]["late"]) == (1, True)
    assert more["size"]["usd"] >= late["size"]["usd"], "time is paid for, and comes first"
    fewest = sizer.rows(*args, "--within", f"{row['size']['hours'] * 0.3:.2f}h")
    assert [row["size"]["num_nodes"] for row in fewest] == [4, 1]
    none = sizer.rows(*args, "--within", "1m")
    assert [(row["size"]["num_nodes"], row["size"]["late"]) for row in none] == [(1, True)]


@pytest.mark.req("PLC-09")
def test_machines_on_plain_ip_are_not_proposed_without_a_speedup(
    sizer: Sizer,
) -> None:
    plain = (replace(EIGHT, interconnect=""),)
    args = (*MODEL, "--tokens", "10B")
    [row] = sizer.rows(*args, sold=plain)
    rows = sizer.rows(*args, "--within", f"{row['size']['hours'] * 0.9:.2f}h", sold=plain)
    assert all(row["size"]["num_nodes"] != 2 for row in rows)


@pytest.mark.req("PLC-09")
def test_large_run_is_proposed_on_as_few_machines_as_it_fits(sizer: Sizer) -> None:
    large = ("--model", "qwen2-72b", "--sequence", "4096", "--tokens", "100M", "--within", "90d")
    rows = sizer.rows(*large, *flags(TUNED))
    assert [(row["size"]["num_nodes"], row["size"]["verdict"]) for row in rows] == [
        (3, "fits"),
        (2, "tight"),
    ]


@pytest.mark.req("PLC-09")
def test_deadline_of_a_job_file_limits_the_time(sizer: Sizer, tmp_path: Path) -> None:
    model = "  model: {name: llama-3-8b, precision: bf16, sequence: 4096, tokens: 10B}\n"
    file = tmp_path / "job.yaml"
    file.write_text(JOB_FILE + model)
    [row] = sizer.rows(str(file))
    file.write_text(JOB_FILE + model + f"  deadline: {row['size']['hours'] * 60 * 0.6:.0f}m\n")
    assert [row["size"]["num_nodes"] for row in sizer.rows(str(file))] == [2, 1]
    assert [row["size"]["num_nodes"] for row in sizer.rows(str(file), "--within", "90d")] == [1]


def test_late_offers_are_marked(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    rig.offer_them(EIGHT)
    args = ("rightsize", *MODEL, "--tokens", "10B", "--within", "1m")
    assert spotctl(rig, *args) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "8x8xH100" not in line
              and line.startswith("aws/")]  # fmt: skip
    assert " late " in line


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--within", "3h"], "--within: the length of the run is not known"),
        (["--tokens", "1B", "--within", "soon"], "--within: 'soon'"),
    ],
)
def test_invalid_time_is_refused(
    spotctl: Spotctl, capsys: pytest.CaptureFixture[str], args: list[str], text: str
) -> None:
    assert spotctl(None, "rightsize", *MODEL, *args) == 2
    assert text in capsys.readouterr().err


def test_past_deadline_is_refused_with_its_key(
    spotctl: Spotctl, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = "  model: {name: llama-3-8b, tokens: 10B}\n  deadline: 2020-01-01T00:00:00Z\n"
    (tmp_path / "job.yaml").write_text(JOB_FILE + model)
    assert spotctl(None, "rightsize", str(tmp_path / "job.yaml")) == 2
    assert "spotd.deadline: '2020-01-01T00:00:00Z' has passed" in capsys.readouterr().err
