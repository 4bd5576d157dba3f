"""Test `spotctl ckpt export` of a checkpoint of two ranks, read back with torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotd.checkpoint_convert.safetensors_writer import DTYPES, NamedTensor, byte_runs, split_files
from spotd.wire import Block, TensorLayout
from tests.fixtures.examples import examples
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.cli.saves import Saver
from tests.spotd.cli.sharded import SHAPES, save_sharded, tensor_bytes


def read_safetensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Read a file by the specification: name to (dtype, shape, bytes)."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__")["format"] == "pt"
    ends = sorted(entry["data_offsets"] for entry in header.values())
    assert [a for a, _ in ends] == [0, *(b for _, b in ends[:-1])], "there is a gap"
    assert ends[-1][1] == len(data) - 8 - length
    assert length % 8 == 0
    return {
        name: (entry["dtype"], entry["shape"], data[8 + length :][slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


class Exports:
    """A job and its `spotctl ckpt export`."""

    def __init__(
        self, rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        self.saver = Saver(rig, rig.submit())
        self._rig, self._spotctl, self._capsys = rig, spotctl, capsys
        self.out = folder / "out"

    def run(self, kind: str, *more: str, code: int = 0) -> tuple[dict[str, Any], str]:
        """Run the command. Returns its JSON output and stderr."""
        arguments = ("ckpt", "export", "gpt", "--format", kind, "--into", str(self.out), *more)
        exit_code = self._spotctl(self._rig, *arguments, "-o", "json")
        out, err = self._capsys.readouterr()
        assert exit_code == code, err
        return json.loads(out) if out else {}, err


@pytest.fixture
def exports(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Exports:
    return Exports(rig, spotctl, capsys, tmp_path)


def check_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (tensor.dtype, tensor.shape), name
        assert tensor_bytes(actual[name]) == tensor_bytes(tensor), name


def test_safetensors_has_every_tensor_and_a_note(exports: Exports) -> None:
    tensors = save_sharded(exports.saver)
    summary, _ = exports.run("safetensors")
    assert summary["files"] == ["checkpoint.safetensors", "spotd.json"]
    assert (summary["kind"], summary["step"], summary["tensors"]) == (
        "CheckpointExported",
        10,
        len(SHAPES),
    )
    tensors_read = read_safetensors(exports.out / "checkpoint.safetensors")
    assert {name: DTYPES[kind][1] for name, (kind, _) in SHAPES.items()} == {
        name: dtype for name, (dtype, _, _) in tensors_read.items()
    }
    for name, tensor in tensors.items():
        assert tensors_read[name][1:] == (list(tensor.shape), tensor_bytes(tensor)), name
    note = json.loads((exports.out / "spotd.json").read_text())
    assert (note["job"], note["step"], note["state"]["config"]) == ("gpt", 10, {"width": 30})


def test_hf_has_the_weights_in_shards_and_an_index(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotd.checkpoint_convert.export.HF_BYTES", 4900)
    tensors = save_sharded(exports.saver)
    exports.run("hf")
    index = json.loads((exports.out / "model.safetensors.index.json").read_text())
    weights = {name[6:]: t for name, t in tensors.items() if name.startswith("model.")}
    assert index["weight_map"].keys() == weights.keys()
    assert len(set(index["weight_map"].values())) == 2
    assert index["metadata"]["total_size"] == sum(len(tensor_bytes(t)) for t in weights.values())
    for name, tensor in weights.items():
        file = read_safetensors(exports.out / index["weight_map"][name])
        assert file[name][2] == tensor_bytes(tensor), name


def test_torch_reads_its_own_file_without_unpickling_anything_else(exports: Exports) -> None:
    import torch

    tensors = save_sharded(exports.saver)
    summary, _ = exports.run("torch")
    assert summary["files"] == ["checkpoint.pt", "spotd.json"]
    tensors_read = torch.load(exports.out / "checkpoint.pt", weights_only=True)
    check_same(tensors_read, tensors)
    storages = {t.untyped_storage().data_ptr() for t in tensors_read.values() if t.numel()}
    assert len(storages) == len(tensors) - 1, "each has its own; one is empty"


def test_dcp_loads_its_folder(exports: Exports) -> None:
    import torch
    from torch.distributed.checkpoint import state_dict_loader

    tensors = save_sharded(exports.saver)
    exports.run("dcp", "--only", "")
    # As a model's state dictionary would ask for it: nested.
    target = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    model = {name[6:]: target[name] for name in tensors if name.startswith("model.")}
    rest = {name: target[name] for name in tensors if not name.startswith("model.")}
    with pytest.warns(UserWarning, match="single process"):
        state_dict_loader.load({"model": model, **rest}, checkpoint_id=exports.out, no_dist=True)
    check_same(target, tensors)


def test_a_pin_and_a_part_of_the_names(exports: Exports) -> None:
    save_sharded(exports.saver, 10)
    exports.saver.save(20)
    exports._spotctl(exports._rig, "ckpt", "pin", "gpt", "best", "--step", "10")
    exports._capsys.readouterr()
    summary, _ = exports.run("safetensors", "--step", "best", "--only", "adamw.mean.")
    assert (summary["step"], summary["tensors"], summary["bytes"]) == (10, 1, 4800)
    assert list(read_safetensors(exports.out / "checkpoint.safetensors")) == ["rows.weight"]


def test_damage_leaves_nothing_behind(exports: Exports) -> None:
    save_sharded(exports.saver)
    shard = min(exports.saver.file("jobs").rglob("r00001-00001"))
    data = bytearray(shard.read_bytes())
    data[3] ^= 1
    shard.write_bytes(data)
    _, err = exports.run("safetensors", code=1)
    assert "the download does not match the checkpoint" in err
    shard.unlink()
    _, err = exports.run("safetensors", code=1)
    assert "cut off" in err
    assert list(exports.out.parent.glob("out*")) == []


@pytest.mark.parametrize(
    "block",
    [
        Block((0,), (1023,), 0, 0),
        Block((1,), (1024,), 0, 0),
        Block((0,), (1024,), 1, 0),
        Block((0,), (1024,), 0, 4),
        Block((), (), 0, 0),
    ],
    ids=["part", "beyond", "no stream", "beyond its stream", "flat"],
)
def test_a_layout_that_is_none(exports: Exports, block: Block) -> None:
    exports.saver.save_tensors(10, [b"1" * 4096], [TensorLayout("t", "int32", (1024,), (block,))])
    assert "tensor t " in exports.run("safetensors", code=1)[1]


def test_invalid_exports_fail_before_anything_is_written(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = TensorLayout("t", "quint8", (4,), (Block((0,), (4,), 0, 0),))
    exports.saver.save_tensors(10, [b"1234"], [odd])
    assert "is of quint8" in exports.run("hf", code=1)[1]
    assert "no tensor of step 10 begins with 'x.'" in exports.run("hf", "--only", "x.", code=1)[1]
    assert not exports.out.exists()
    exports.out.mkdir()
    (exports.out / "mine").touch()
    assert "is there already" in exports.run("hf", code=1)[1]
    assert [path.name for path in exports.out.iterdir()] == ["mine"]
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("spotd.checkpoint_convert.torch_files.find_spec", lambda _name: None)
    assert "pip install 'torch" in exports.run("dcp", code=1)[1]


def test_groups_hold_one_tensor_at_least() -> None:
    tensors = [
        NamedTensor(str(size), TensorLayout(str(size), "uint8", (size,), ()))
        for size in (9, 3, 2, 1, 6)
    ]
    assert [[t.name for t in group] for group in split_files(tensors, 5)] == [
        ["9"],
        ["3", "2"],
        ["1"],
        ["6"],
    ]


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_a_block_s_bytes_go_where_its_elements_are(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), max_size=4)))
    at = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    block = Block(
        at, tuple(data.draw(st.integers(1, n - a)) for n, a in zip(shape, at, strict=True)), 0, 0
    )
    item = data.draw(st.sampled_from([1, 2, 4]))
    expected = []
    for index in indices(block.shape):
        flat = 0
        for a, i, n in zip(at, index, shape, strict=True):
            flat = flat * n + a + i
        expected += range(flat * item, flat * item + item)
    begin = data.draw(st.integers(0, len(expected)))
    end = data.draw(st.integers(begin, len(expected)))
    actual = [
        byte
        for first, count in byte_runs(shape, block, item, begin, end)
        for byte in range(first, first + count)
    ]
    assert actual == expected[begin:end]


def indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return all indices of a shape in row-major order."""
    prefixes: list[tuple[int, ...]] = [()]
    for count in shape:
        prefixes = [(*prefix, i) for prefix in prefixes for i in range(count)]
    return prefixes
