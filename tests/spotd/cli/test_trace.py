"""`spotctl advisor trace`: files in the format of recorded traces, from a known history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from providers.base import Scope
from spotd.cli.trace_files import build_traces
from spotd.domain.job import Attempt
from spotd.domain.node import Node
from spotd.domain.plan import AddNode, ChangeJob, OpenAttempt
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from tests.spotd.api.rig import OFFERS, SPOT, Rig
from tests.spotd.cli.conftest import Spotctl

NOW_US = 2_900_000 * 600 * S  # a whole tick
EAST_B = replace(SPOT, zone="us-east-1b", price_microusd_per_h=30_000_000)
TICK_S = 600


@pytest.fixture
def history_rig() -> Iterator[Rig]:
    """A rig with twelve ticks of history.

    us-east-1a is held in ticks 2 to 5 and preempted in 5; us-east-1b is refused in 6 and held from
    8 to 9. A more expensive hour starts in tick 4.
    """
    rig = Rig()
    rig.clock._now_us = NOW_US
    rig.store.market.record_offers("aws", (), NOW_US - 86_400 * S)  # nothing was on sale before
    rig.store.market.record_offers("aws", OFFERS[:2] + (EAST_B,), rig.ago(12 * TICK_S))
    dearer = replace(SPOT, price_microusd_per_h=25_000_000)
    rig.store.market.record_offers("aws", (dearer, OFFERS[1], EAST_B), rig.ago(8 * TICK_S))
    job = rig.submit(ago_s=12 * TICK_S)
    first = rig.launch(job, SPOT, ago_s=9.5 * TICK_S)
    rig.leave(first, 6.5 * TICK_S, LeaveReason.PREEMPTED, "preempt notice")
    refuse(rig, job, 5.5 * TICK_S)
    last = rig.launch(job, EAST_B, ago_s=3.5 * TICK_S)
    rig.leave(last, 2.5 * TICK_S, LeaveReason.DONE, "done")
    yield rig.start()
    rig.close()


def refuse(rig: Rig, job_id: str, ago_s: float) -> None:
    at_us = rig.ago(ago_s)
    view = rig.store.load_view(job_id, at_us)
    assert view is not None
    generation = view.job.generation + 1
    state, token = NodeState.LAUNCHING, f"t-{generation}"
    ident = f"{job_id}-g{generation}-r0"
    node = Node(ident, job_id, generation, 0, 0, token, EAST_B, state, requested_at_us=at_us)
    attempt = OpenAttempt(Attempt(job_id, generation, at_us, "test"))
    rig.commit(job_id, at_us, attempt, ChangeJob({"generation": generation}), AddNode(node))
    rig.store.nodes.record_launch_refused(ident, "CapacityError", "none left", Scope.ZONE, at_us)


def test_known_history_gives_exactly_these_arrays(
    history_rig: Rig, spotctl: Spotctl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("advisor", "trace", "--into", str(tmp_path), "--stale", "10m", "-o", "json")
    assert spotctl(history_rig, *arguments) == 0
    data = json.loads(capsys.readouterr().out)
    arrays = np.load(tmp_path / "h100_8.npz")
    assert list(arrays["zones"]) == ["us-east-1a_h100_8", "us-east-1b_h100_8"]
    # From the first thing seen, in tick 2, until the last one is stale, in tick 10.
    assert arrays["avail"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1, 1]]
    assert arrays["seen"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1, 1]]
    assert arrays["spot"][0].tolist() == pytest.approx([19.93] * 2 + [25.0] * 7)
    assert arrays["spot"][1].tolist() == [30.0] * 9
    assert arrays["od"].tolist() == [55.04, 55.04]
    assert (arrays["avail"].dtype, arrays["spot"].dtype) == (np.uint8, np.float32)
    assert (float(arrays["gap"]), int(arrays["n_requested"])) == (600.0, 1)
    assert int(arrays["first_tick"]) == NOW_US // (600 * S) - 10
    assert np.datetime64(str(arrays["start"])) == np.datetime64(NOW_US - 6000 * S, "us")
    assert next(iter(arrays["pools"])) == "aws/us-east-1/us-east-1a/p5.48xlarge"
    (file,) = data["items"]
    assert (file["file"], file["ticks"], file["hours"]) == ("h100_8.npz", 9, 1.5)
    east_a, _ = file["zones"]
    assert (east_a["seen_share"], east_a["up_share"]) == (5 / 9, 3 / 5)
    assert east_a["ends"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["h100_8.npz"]


def test_table_shows_observations_and_left_out_pools(
    history_rig: Rig,
    spotctl: Spotctl,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    other_zone = replace(SPOT, zone="us-east-1c")
    history_rig.store.market.record_offers(
        "aws", (SPOT, OFFERS[1], EAST_B, other_zone), history_rig.clock.now_us()
    )
    assert spotctl(history_rig, "advisor", "trace", "--into", str(tmp_path), "--stale", "10m") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "FILE        ZONE                 SEEN  OF H  WAS UP  ENDS    SPOT  ON-DEMAND",
        "h100_8.npz  us-east-1a_h100_8  55.6 %   1.5  60.0 %     1  $23.87     $55.04",
        "h100_8.npz  us-east-1b_h100_8  55.6 %   1.5  60.0 %     0  $30.00     $55.04",
    ]
    left = "aws/us-east-1/us-east-1c/p5.48xlarge, toy-gcp/us-central1/us-central1-a/a3-highgpu-8g"
    assert captured.err.splitlines()[0] == f"left out, never asked: {left}"
    assert f"--own {tmp_path / 'h100_8.npz'}" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (["--into", "not/here"], "--into: not/here is not a folder, and cannot be created", 2),
        (["--into", __file__], "is not a folder, and cannot be created", 2),
        (["--gap", "7m"], "--gap: a day is not a whole number of ticks of 7m", 2),
        (["--gap", "0"], "--gap: a day is not a whole number of ticks", 2),
        (["--gap", "1s", "--since", "90d"], "has more than 1,000,000 ticks of 1s", 2),
        (["--since", "5m"], "--since: 5m is less than a tick", 2),
        (["--stale", "x"], "--stale: ", 2),
        (["--gpus", "8"], "gpus: ", 2),
        (["--gpus", "A100:8"], "no spot machine with A100:8 was requested in 90d", 3),
        (["--since", "10m"], "no spot machine with a GPU was requested in 10m", 3),
    ],
)
def test_refused_command_writes_nothing(
    history_rig: Rig,
    spotctl: Spotctl,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
    status: int,
) -> None:
    assert spotctl(history_rig, "advisor", "trace", "--into", str(tmp_path), *arguments) == status
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_pools_without_requests_are_no_history(
    rig: Rig, spotctl: Spotctl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spotctl(rig, "advisor", "trace", "--into", str(tmp_path), "--gpus", "H100:8") == 3
    assert "3 zones sell such machines, and none was ever requested" in capsys.readouterr().err


def item(pool: str, gpus: str = "H100", count: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "pool": pool,
        "cloud": "gcp",
        "accelerator": gpus,
        "accelerator_count": count,
        "held_us": [[NOW_US, NOW_US + 3600 * S]],
        "missed_us": [],
        "spot_microusd_per_h": [[NOW_US, 20_000_000]],
        "on_demand_microusd_per_h": [[NOW_US, 50_000_000]],
        **more,
    }


def files(*items: dict[str, Any]) -> dict[str, list[str]]:
    data = {"items": items, "since_us": NOW_US, "until_us": NOW_US + 7200 * S}
    return {file.stem: [row.name for row in file.rows] for file in build_traces(data, TICK_S, 0)}


def test_each_gpu_type_has_its_file_and_each_series_its_name() -> None:
    assert files(
        item("gcp/us-central1/us-central1-a/a3-highgpu-8g"),
        item("gcp/us-central1/us-central1-a/a3-megagpu-8g"),
        item("gcp-eu/us-central1/us-central1-a/a3-megagpu-8g"),
        item("gcp/us-central1/us-central1-b/a3-megagpu-8g"),
        item("azure/eastus//ND96", "A100-80GB"),
        item("gcp/us-central1/us-central1-b/a3-highgpu-1g", count=1),
    ) == {
        "a100-80gb_8": ["eastus-0_a100-80gb_8"],
        "h100_1": ["us-central1-b_h100_1"],
        "h100_8": [
            "us-central1-a_h100-a3-highgpu-8g_8",
            "us-central1-a_h100-a3-megagpu-8g-gcp-eu_8",
            "us-central1-a_h100-a3-megagpu-8g-gcp_8",
            "us-central1-b_h100_8",
        ],
    }


def test_unpriced_pool_is_left_out_with_the_reason() -> None:
    known, unpriced = "gcp/r/r-a/t", "gcp/r/r-b/t"
    items = [item(known), item(unpriced, spot_microusd_per_h=[], on_demand_microusd_per_h=[])]
    data = {"items": items, "since_us": NOW_US, "until_us": NOW_US + 7200 * S}
    (file,) = build_traces(data, TICK_S, 0)
    assert [row.observations.pool for row in file.rows] == [known]
    assert file.left_out == {unpriced: "no price on record"}


def test_ticks_before_the_first_price_are_counted() -> None:
    later = [[NOW_US + 1500 * S, 20_000_000]]
    data = {"since_us": NOW_US, "until_us": NOW_US + 7200 * S}
    (file,) = build_traces(
        {**data, "items": [item("gcp/r/r-a/t", spot_microusd_per_h=later)]}, TICK_S, 0
    )
    assert file.grid.ticks == 7
    assert file.rows[0].priced_share == pytest.approx(4 / 7)
