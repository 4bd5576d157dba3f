"""Complete and broken checkpoints, by their content."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.trainer.directory.rig import torch_file, write_hf
from trainer.directory.completeness import (
    INCOMPLETE,
    UnitState,
    inspect_unit,
    is_ready,
    newest_unit,
)
from trainer.directory.units import METADATA, SMALL_BYTES, STATE, Unit, find_units


def only(folder: Path) -> Unit:
    [unit] = find_units(folder)
    return unit


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
    small = [UnitState.COMPLETE, UnitState.BROKEN, UnitState.BROKEN, UnitState.COMPLETE]
    assert states == small
    (tmp_path / "last.ckpt").write_bytes(b"\x80\x02" + bytes(SMALL_BYTES))
    assert inspect_unit(tmp_path, find_units(tmp_path)[-1]) is UnitState.UNKNOWN


def test_a_cut_safetensors_file_is_broken(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"w": np.zeros(2000, np.float32)}, tmp_path / "w.safetensors")
    assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.COMPLETE
    data = (tmp_path / "w.safetensors").read_bytes()
    for length in (0, 5, 40, len(data) - 1):
        (tmp_path / "w.safetensors").write_bytes(data[:length])
        assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.BROKEN


def test_a_pointer_that_names_it_shows_that_a_folder_is_complete(tmp_path: Path) -> None:
    """As DeepSpeed and Megatron write them, after the checkpoint."""
    for step in (10, 20):
        (tmp_path / f"global_step{step}").mkdir()
        (tmp_path / f"global_step{step}" / "w.pt").write_bytes(bytes(2 * SMALL_BYTES))
    (tmp_path / "latest").write_text("global_step10")
    units = {unit.name: unit for unit in find_units(tmp_path)}
    assert inspect_unit(tmp_path, units["global_step10"]) is UnitState.COMPLETE
    assert inspect_unit(tmp_path, units["global_step20"]) is UnitState.UNKNOWN
    (tmp_path / "latest").unlink()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20\n")
    assert inspect_unit(tmp_path, units["global_step20"]) is UnitState.COMPLETE


def test_how_long_each_is_left_alone() -> None:
    def ready(state: UnitState, quiet_s: float, *, ended: bool = False) -> bool:
        return is_ready(state, quiet_s, ended=ended)

    assert ready(UnitState.COMPLETE, 2.0)
    assert not ready(UnitState.COMPLETE, 1.9)
    assert ready(UnitState.COMPLETE, 0.0, ended=True)
    assert ready(UnitState.UNKNOWN, 20.0)
    assert not ready(UnitState.UNKNOWN, 19.9)
    assert ready(UnitState.UNKNOWN, 0.0, ended=True)
    assert not ready(UnitState.BROKEN, 1e9, ended=True)


def test_a_program_is_to_go_on_from_the_youngest_that_is_not_broken(tmp_path: Path) -> None:
    assert newest_unit(tmp_path / "none") == ""
    for step, age_s in ((10, 100), (9, 50)):
        path = write_hf(tmp_path, step)
        for file in [*path.rglob("*"), path]:
            os.utime(file, (1e9 - age_s, 1e9 - age_s))
    write_hf(tmp_path, 11)
    (tmp_path / "checkpoint-11" / STATE).write_text("{")
    assert newest_unit(tmp_path) == str(tmp_path / "checkpoint-9")


def hdf5(version: int, end: int, size: int, flags: int = 0) -> bytes:
    """A file with the superblock of that version, whose end of file is `end`."""
    head = bytearray(96)
    head[:9] = b"\x89HDF\r\n\x1a\n" + bytes([version])
    head[13 if version < 2 else 9] = 8
    head[11] = flags
    struct.pack_into("<Q", head, {0: 40, 1: 44, 2: 28, 3: 28}[version], end)
    return bytes(head).ljust(size, b"x")


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (hdf5(0, 9000, 9000), UnitState.COMPLETE),
        (hdf5(1, 9000, 9000), UnitState.COMPLETE),
        (hdf5(2, 9000, 9000), UnitState.COMPLETE),
        (hdf5(3, 9000, 9000), UnitState.COMPLETE),
        (hdf5(3, 9000, 9000, flags=1), UnitState.UNKNOWN),
        (hdf5(0, 9000, 8000), UnitState.BROKEN),
        (hdf5(0, 2048, 9000), UnitState.UNKNOWN),
        (hdf5(0, 9000, 9000)[:20], UnitState.BROKEN),
        (b"", UnitState.BROKEN),
    ],
)
def test_an_hdf5_file_is_whole_where_its_superblock_ends_it(
    tmp_path: Path, data: bytes, state: UnitState
) -> None:
    (tmp_path / "model.weights.h5").write_bytes(data)
    assert inspect_unit(tmp_path, only(tmp_path)) is state


@pytest.mark.parametrize("name", ["n-epoch=3.ckpt", "n-epoch=3-EMA.ckpt", "n-epoch=3.nemo"])
@pytest.mark.parametrize("folder", ["", "mp_rank_00"])
def test_nemo_s_marker_has_no_ending_and_no_rank(tmp_path: Path, name: str, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / name).write_bytes(torch_file("weights"))
    assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.COMPLETE
    (tmp_path / "n-epoch=3-unfinished").touch()
    assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.BROKEN


def test_megatron_s_metadata_comes_after_torch_s(tmp_path: Path) -> None:
    folder = tmp_path / "iter_0000100"
    folder.mkdir()
    for name in ("common.pt", METADATA):
        (folder / name).write_bytes(b"x")
    assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.UNKNOWN
    (folder / "metadata.json").write_text("{}")
    assert inspect_unit(tmp_path, only(tmp_path)) is UnitState.COMPLETE
