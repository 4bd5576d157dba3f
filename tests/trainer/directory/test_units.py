"""Finding checkpoint units and judging whether they are complete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.trainer.directory.rig import write_hf
from trainer.directory.units import (
    STATE,
    Rules,
    Unit,
    files_open_for_writing,
    find_units,
    series_name,
    step_number,
)


@pytest.mark.parametrize(
    ("name", "number", "series"),
    [
        ("out/epoch=2-step=240.ckpt", 240, "out/epoch=#-step=#.ckpt"),
        ("epoch=02-val_loss=0.45.ckpt", 2, "epoch=#-val_loss=#.ckpt"),
        ("fold1_step_20.pt", 20, "fold1_step_#.pt"),
        ("checkpoint-500", 500, "checkpoint-#"),
        ("checkpoints/checkpoint-500", 500, "checkpoints/checkpoint-#"),
        ("epoch=3-step=1200.ckpt", 1200, "epoch=#-step=#.ckpt"),
        ("epoch=3-step=1200-v1.ckpt", 1200, "epoch=#-step=#.ckpt"),
        ("epoch=3.ckpt", 3, "epoch=#.ckpt"),
        ("ckpt_7.pt", 7, "ckpt_#.pt"),
        ("ckpt7.pt", 7, "ckpt#.pt"),
        ("model_50", 50, "model_#"),
        ("model_200.pt", 200, "model_#.pt"),
        ("step-50", 50, "step-#"),
        ("global_step20", 20, "global_step#"),
        ("iter_0000100", 100, "iter_#"),
        ("iter_0000100.pth", 100, "iter_#.pth"),
        ("100", 100, "#"),
        ("100.npz", 100, "#.npz"),
        ("model-00100-of-00200.safetensors", None, "model-00100-of-00200.safetensors"),
        ("Epoch_12_loss_0.31.pth", 12, "Epoch_#_loss_#.pth"),
        ("model.ckpt-1000.data-00000-of-00001", 1000, "model.ckpt-#.data-00000-of-00001"),
        ("backup.2026-11-28.tar", None, "backup.2026-11-28.tar"),
        ("run_20261128_103000", None, "run_20261128_103000"),
        ("resnet50.pth", None, "resnet50.pth"),
        ("fold_3", None, "fold_3"),
        ("version_0", None, "version_0"),
        ("rank_3.pt", None, "rank_3.pt"),
        ("last.ckpt", None, "last.ckpt"),
        ("last-v1.ckpt", None, "last-v1.ckpt"),
        ("loss=0.25.ckpt", None, "loss=0.25.ckpt"),
        ("model_90000000000000000000.pt", None, "model_90000000000000000000.pt"),
    ],
)
def test_the_step_in_a_name(name: str, number: int | None, series: str) -> None:
    assert (step_number(name), series_name(name)) == (number, series)


def only(folder: Path) -> Unit:
    [unit] = find_units(folder)
    return unit


def test_files_and_folders_of_any_name_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert find_units(folder) == []
    write_hf(folder, 5)
    for name in ("model.bin", "w.safetensors", "all.tar", "arrays.npz", "notes.txt", "best"):
        (folder / name).write_text("x")
    for name in ("runs/a/weights.pt", "nested/deep/checkpoint-7/w.pt", "epoch=3/w.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "final").mkdir()
    (folder / "final" / "config.json").write_text("{}")
    (folder / "final" / "model.safetensors").write_text("x")
    (folder / "runs" / "empty").mkdir()
    units = {unit.name: [file.path for file in unit.files] for unit in find_units(folder)}
    names = ("model.safetensors", "optimizer.pt", "sub/empty", STATE)
    assert units == {
        "checkpoint-5": [f"checkpoint-5/{name}" for name in names],
        **{name: [name] for name in ("model.bin", "w.safetensors", "all.tar", "arrays.npz")},
        **{name: [name] for name in ("notes.txt", "best", "runs/a/weights.pt")},
        "nested/deep/checkpoint-7": ["nested/deep/checkpoint-7/w.pt"],
        "epoch=3": ["epoch=3/w.pt"],
        "final": ["final/config.json", "final/model.safetensors"],
        "runs/empty": [],
    }


def test_what_is_temporary_or_a_cache_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_hf(folder, 5)
    for name in ("tmp-checkpoint-6/w.pt", "9.orbax-checkpoint-tmp-17/d", ".cache/x", ".git/x"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("x")
    for name in ("model.pt.tmp", "model.pt.part", ".model.pt.tmp9", ".tmpabc", ".state.swp"):
        (folder / name).write_text("x")
    os.mkfifo(folder / "queue")
    assert {unit.name for unit in find_units(folder)} == {"checkpoint-5"}
    (folder / ".state.json").write_text("{}")
    assert {unit.name for unit in find_units(folder)} == {"checkpoint-5", ".state.json"}


def test_links_stay_links_and_are_no_step(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_hf(folder, 5)
    (tmp_path / "elsewhere-7").mkdir()
    (folder / "outside").symlink_to(tmp_path / "elsewhere-7")
    (folder / "checkpoint-5" / "base").symlink_to("../../elsewhere-7")
    (folder / "step-9").symlink_to(folder / "checkpoint-5")
    (folder / "dangling-8").symlink_to("checkpoint-8")
    units = {unit.name: unit for unit in find_units(folder)}
    links = {link.path: link.target for unit in units.values() for link in unit.links}
    assert links == {
        "outside": str(tmp_path / "elsewhere-7"),
        "checkpoint-5/base": "../../elsewhere-7",
        "step-9": "checkpoint-5",
        "dangling-8": "checkpoint-8",
    }, "a target in the folder is relative, because the folder is elsewhere on the next machine"
    numbers = {name: unit.number for name, unit in units.items()}
    assert numbers == {"checkpoint-5": 5, "outside": None, "step-9": None, "dangling-8": None}


def test_a_run_s_config_does_not_make_it_one_checkpoint(tmp_path: Path) -> None:
    """It would be saved as a whole whenever one of its checkpoints changes."""
    run = tmp_path / "out"
    run.mkdir()
    (run / "config.json").write_text("{}")
    write_hf(run, 5)
    write_hf(run, 6)
    assert {unit.name for unit in find_units(tmp_path)} == {
        "out/checkpoint-5",
        "out/checkpoint-6",
        "out/config.json",
    }


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        (Rules(), {"checkpoint-5", "logs/a.txt", "w.bin", "w.pt"}),
        (Rules(include=("*.pt",)), {"checkpoint-5", "w.pt"}),
        (Rules(include=("checkpoint-*",)), {"checkpoint-5"}),
        (Rules(exclude=("logs",)), {"checkpoint-5", "w.bin", "w.pt"}),
        (Rules(exclude=("./logs/*",)), {"checkpoint-5", "w.bin", "w.pt"}),
        (Rules(include=("*.pt", "*.bin"), exclude=("checkpoint-*",)), {"w.bin", "w.pt"}),
    ],
)
def test_rules_narrow_what_is_saved(tmp_path: Path, rules: Rules, found: set[str]) -> None:
    write_hf(tmp_path, 5)
    (tmp_path / "logs").mkdir()
    for name in ("logs/a.txt", "w.bin", "w.pt"):
        (tmp_path / name).write_text("x")
    assert {unit.name for unit in find_units(tmp_path, rules)} == found


def test_what_is_open_for_writing_is_seen(tmp_path: Path) -> None:
    for name in ("read", "written", "appended"):
        (tmp_path / name).write_text("x")
    with (
        (tmp_path / "read").open(),
        (tmp_path / "written").open("r+"),
        (tmp_path / "appended").open("a"),
    ):
        assert files_open_for_writing(tmp_path) == {"written", "appended"}
    assert files_open_for_writing(tmp_path) == set()
