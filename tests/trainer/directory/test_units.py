"""Finding checkpoint units and judging whether they are complete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.trainer.directory.rig import torch_file, write_hf
from trainer.directory.units import (
    INCOMPLETE,
    METADATA,
    STATE,
    Unit,
    UnitState,
    files_open_for_writing,
    find_units,
    inspect_unit,
    is_ready,
    newest_unit,
    series_name,
    step_number,
)


@pytest.mark.parametrize(
    ("name", "number", "series"),
    [
        ("checkpoint-500", 500, "checkpoint-#"),
        ("epoch=3-step=1200.ckpt", 1200, "epoch=#-step=#.ckpt"),
        ("epoch=3-step=1200-v1.ckpt", 1200, "epoch=#-step=#-v#.ckpt"),
        ("epoch=3.ckpt", 3, "epoch=#.ckpt"),
        ("ckpt_7.pt", 7, "ckpt_#.pt"),
        ("last.ckpt", None, "last.ckpt"),
        ("last-v1.ckpt", None, "last-v#.ckpt"),
        ("loss=0.25.ckpt", None, "loss=#.#.ckpt"),
    ],
)
def test_what_a_name_says(name: str, number: int | None, series: str) -> None:
    assert (step_number(name), series_name(name)) == (number, series)


def only(folder: Path) -> Unit:
    [unit] = find_units(folder)
    return unit


def test_only_checkpoints_are_found_and_nothing_outside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert find_units(folder) == []
    write_hf(folder, 5)
    (tmp_path / "secret.ckpt").write_text("another's")
    (folder / "outside.ckpt").symlink_to(tmp_path / "secret.ckpt")
    (folder / "checkpoint-5" / "outside").symlink_to(tmp_path / "secret.ckpt")
    (folder / "best.ckpt").symlink_to(folder / "checkpoint-5" / "optimizer.pt")
    (folder / "runs").mkdir()
    (folder / "tmp-checkpoint-6").mkdir()
    (folder / ".hidden.ckpt").write_text("")
    (folder / "notes.txt").write_text("")
    paths = {unit.name: [file.path for file in unit.files] for unit in find_units(folder)}
    names = ("model.safetensors", "optimizer.pt", "sub/empty", STATE)
    assert paths == {
        "checkpoint-5": [f"checkpoint-5/{name}" for name in names],
        "best.ckpt": ["best.ckpt"],
    }


def test_the_looks_of_units(tmp_path: Path) -> None:
    path = write_hf(tmp_path, 5, complete=False)
    assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.UNKNOWN
    (path / STATE).write_text('{"global_step": ')
    assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.BROKEN
    (path / STATE).write_text('{"global_step": 5}')
    assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.COMPLETE
    (path / INCOMPLETE).write_text("")
    assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.BROKEN


def test_the_looks_of_distributed_checkpoints_and_files(tmp_path: Path) -> None:
    (tmp_path / "step=1.ckpt").mkdir()
    (tmp_path / "step=1.ckpt" / METADATA).write_bytes(b"")
    assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.BROKEN
    (tmp_path / "step=1.ckpt" / METADATA).write_bytes(b"x")
    assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.COMPLETE
    archive = torch_file("weights")
    states = []
    for data in (archive, archive[:-30], b"", b"\x80\x02 another format"):
        (tmp_path / "last.ckpt").write_bytes(data)
        [unit] = [unit for unit in find_units(tmp_path) if unit.name == "last.ckpt"]
        states.append(inspect_unit(tmp_path, unit))
    assert states == [UnitState.COMPLETE, UnitState.BROKEN, UnitState.BROKEN, UnitState.UNKNOWN]


def test_how_long_each_is_left_alone() -> None:
    def ready(state: UnitState, quiet_s: float, *, ended: bool = False) -> bool:
        return is_ready(state, quiet_s, ended=ended)

    assert ready(UnitState.COMPLETE, 2.0)
    assert not ready(UnitState.COMPLETE, 1.9)
    assert ready(UnitState.COMPLETE, 0.0, ended=True)
    assert ready(UnitState.UNKNOWN, 20.0)
    assert not ready(UnitState.UNKNOWN, 19.9, ended=True), "the program may have been killed in it"
    assert not ready(UnitState.BROKEN, 1e9, ended=True)


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


def test_a_program_is_to_go_on_from_the_youngest_that_is_not_broken(tmp_path: Path) -> None:
    assert newest_unit(tmp_path / "none") == ""
    for step, age_s in ((10, 100), (9, 50)):
        path = write_hf(tmp_path, step)
        for file in [*path.rglob("*"), path]:
            os.utime(file, (1e9 - age_s, 1e9 - age_s))
    write_hf(tmp_path, 11)
    (tmp_path / "checkpoint-11" / STATE).write_text("{")
    assert newest_unit(tmp_path) == str(tmp_path / "checkpoint-9")
