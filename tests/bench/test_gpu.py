"""The bench for GPUs, whole, on a machine without one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.gpu import saves, training
from bench.gpu.training import BESIDE, NONE, STANDING, Training

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "bench.gpu.saves", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_it_runs_whole_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    small = ("--device", "cpu", "--params", "small", "--rounds", "2", "--replay", "2")
    done = run(*small, "--folder", str(tmp_path), "--json", str(path))
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert found["resume"] == found["resume"] | {
        "bit_equal": True,
        "steps_done_again": 2,
    }
    # Of a saver that knew nothing: from the bucket, or fetched from there into memory ahead.
    [(source, count)] = found["resume"]["bytes_from"].items()
    assert (source in {"bucket", "memory"}, count) == (True, found["bytes"])
    assert found["warnings"] == []
    assert {name: len(one["step_s"]) for name, one in found["samples"].items()} == {
        NONE: 2,
        BESIDE: 2,
        STANDING: 2,
    }
    assert all(rate > 0 for rate in found["ceilings_gb_per_s"].values())
    for text in (found["device_name"], f"torch {found['torch']}", "resumed bit for bit"):
        assert text in done.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["gpu.json"]
    assert "round 1 of 2: {'no save': {'step_s': " in done.stderr


def test_what_the_figures_mean() -> None:
    samples = {
        NONE: {"step_s": [1.0, 1.0], "stall_s": [0.0, 0.0]},
        BESIDE: {"step_s": [1.06, 1.06], "stall_s": [0.01, 0.01], "copy_s": [0.5, 0.5]},
        STANDING: {"step_s": [1.39, 1.39], "stall_s": [0.4, 0.4], "copy_s": [0.4, 0.4]},
    }
    found = saves.report(samples, {"a": [30.0], "b": [20.0]}, 10_000_000_000)
    assert found["saves"][BESIDE] == {
        "stall_s": 0.01,
        "slower_s": pytest.approx(0.05),
        "share_of_step": pytest.approx(0.06),
        "copy_s": 0.5,
        "overlap": 0.98,
        "gb_per_s": 20.0,
    }
    assert found["saves"][STANDING]["slower_s"] == 0.0
    assert found["saves"][STANDING]["overlap"] == 0.0
    assert found["rate_vs_ceiling"] == {BESIDE: 0.667, STANDING: 0.833}


def test_what_was_measured_is_kept_though_the_rest_fails(tmp_path: Path) -> None:
    """So it went on the first GPU that it was on: the machine's memory was used up in round 3."""
    path = tmp_path / "gpu.json"
    parts = ["--device", "cpu", "--params", "small", "--rounds", "3", "--json", str(path)]
    lost = "import sys; from bench.gpu import saves, training; "
    lost += "done = training.Training.one_round; rounds = []; "
    lost += "training.Training.one_round = lambda self, kind: rounds.append(kind) or ("
    lost += "done(self, kind) if len(rounds) < 5 else sys.exit('killed')); "
    lost += f"sys.argv = ['saves', *{parts!r}]; sys.exit(saves.main())"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-c", lost]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert "killed" in done.stderr
    found = json.loads(path.read_text())
    assert found["resume"] is None
    assert len(found["samples"][training.BESIDE]["step_s"]) == 1


def small(folder: Path) -> Training:
    return Training(saves.SHAPES["small"], 1, torch.device("cpu"), folder, print)


def test_a_round_ends_with_its_save_alone_in_the_store(tmp_path: Path) -> None:
    with small(tmp_path) as made:
        made.warm_up()
        for kind in (BESIDE, STANDING):
            made.one_round(kind)
            [left] = (tmp_path / "store" / "jobs" / "bench").glob("g*/s*")
            assert left.name.startswith(f"s{made.position - 1:012d}-")
            assert (left / "MANIFEST.json").is_file()


def test_a_save_is_read_back_and_older_ones_are_gone_before_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two manifests are there as long as the newest save is read back; then one and the shards of
    the other."""
    folder = tmp_path / "store" / "jobs" / "bench" / "g00000001"
    old, new = (folder / f"s{step:012d}-a" for step in (1, 2))
    for save in (old, new):
        save.mkdir(parents=True)
        (save / "MANIFEST.json").touch()
        (save / "shard").touch()
    removals = [(old / "MANIFEST.json").unlink, (old / "shard").unlink, old.rmdir]
    monkeypatch.setattr(training.time, "sleep", lambda _s: removals.pop(0)())
    small(tmp_path)._wait_tidy()
    assert removals == []
    assert new.is_dir()


def test_a_folder_without_room_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=70_000_000_000)
    monkeypatch.setattr(saves.shutil, "disk_usage", lambda folder: usage)
    saves.check_room(tmp_path, 14_000_000_000)
    with pytest.raises(RuntimeError, match=r"left, and the saves take up to 72\.7: name another"):
        saves.check_room(tmp_path, 14_534_688_768)


def test_a_gpu_that_is_not_there_is_said_at_once() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = run()
    assert done.returncode == 2
    assert "there is no CUDA device here; --device cpu runs without" in done.stderr
