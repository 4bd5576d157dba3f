"""The folders of other frameworks, written in the order and manner of each.

Recorded ones are in `layouts/*.json`: the files' names, sizes and the calls in their order, with
the version that made them. The others follow the source of the version that they name.
"""

from __future__ import annotations

import io
import json
import os
import random
import struct
import zipfile
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

RECORDED = Path(__file__).parent / "layouts"


@dataclass(frozen=True)
class Save:
    """One save of a program: its step, its calls, and what the folder's files are afterwards."""

    step: int
    events: Sequence[Sequence[str]]
    files: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Layout:
    """Two saves of a framework. `newest` is the unit that spotd names, by the step."""

    name: str
    source: str
    saves: Sequence[Save]
    newest: Mapping[int, str] = field(default_factory=dict)


def recorded(name: str) -> Layout:
    """A layout that was recorded with the real library."""
    data = json.loads((RECORDED / f"{name}.json").read_text())
    saves = [Save(save["step"], save["events"], save["files"]) for save in data["saves"]]
    return Layout(name, f"{data['library']} {data['version']}: {data['made_by']}", saves)


def written(name: str, source: str, saves: Sequence[Save]) -> Layout:
    return Layout(name, source, saves)


def files_in_order(*names: str, folders: Sequence[str] = ()) -> list[list[str]]:
    """Calls that write these files one after the other."""
    calls = [["mkdir", folder] for folder in folders]
    for name in names:
        calls += [["open", name], ["close", name]]
    return calls


def zip_file(size: int = 9000) -> dict[str, Any]:
    return {"size": size, "kind": "zip"}


def content(path: str, save: Save) -> bytes:
    """The bytes of a file, the same for the same path and step."""
    about = save.files.get(path, {"size": 1000})
    if "text" in about:
        return str(about["text"]).encode()
    size, noise = int(about["size"]), random.Random(f"{path} {save.step}")
    match about.get("kind"):
        case "zip":
            data = io.BytesIO()
            with zipfile.ZipFile(data, "w") as archive:
                archive.writestr(zipfile.ZipInfo("archive/data.pkl"), noise.randbytes(size - 200))
            return data.getvalue()
        case "hdf5":  # the superblock of version 0: the end of the file is at 40
            head = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + bytes(24)
            return (head + struct.pack("<Q", size)).ljust(96, b"\0") + noise.randbytes(size - 96)
        case "safetensors":
            header = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
            text = json.dumps(header).encode()
            return struct.pack("<Q", len(text)) + text + noise.randbytes(size)
        case _:
            return noise.randbytes(size)


def play(folder: Path, save: Save) -> Generator[Sequence[str], None, None]:
    """Do the calls of a save, one for each `next`; a file is half-written while it is open.

    Closing the iterator ends the program: its open files stay as they are.
    """
    final = _final_names(save)
    files: dict[str, tuple[IO[bytes], bytes]] = {}
    try:
        for call in save.events:
            _do(folder, call, files=files, data=content(final(call[1]), save))
            yield call
    finally:
        for file, _ in files.values():
            file.close()


def _do(
    folder: Path, call: Sequence[str], *, files: dict[str, tuple[IO[bytes], bytes]], data: bytes
) -> None:
    match call:
        case ["mkdir", path]:
            (folder / path).mkdir(parents=True, exist_ok=True)
        case ["open", path]:
            file: IO[bytes] = (folder / path).open("wb", buffering=0)
            # A small file is in a buffer until it is closed.
            written = len(data) // 2 if len(data) > 4096 else 0
            file.write(data[:written])
            files[path] = file, data[written:]
        case ["close", path]:
            file, rest = files.pop(path)
            file.write(rest)
            file.close()
        case ["rename", path, to]:
            (folder / path).replace(folder / to)
        case ["link", path, to]:
            os.link(folder / path, folder / to)
        case ["symlink", target, path]:
            (folder / path).symlink_to(target)
        case ["unlink", path]:
            (folder / path).unlink()
        case ["rmdir", path]:
            (folder / path).rmdir()
        case _:
            raise ValueError(call)


def _final_names(save: Save) -> Callable[[str], str]:
    """How a path is called when the save is done."""
    renames = [(call[1], call[2]) for call in save.events if call[0] == "rename"]

    def final(path: str) -> str:
        for old, new in renames:
            if path == old or path.startswith(f"{old}/"):
                path = new + path[len(old) :]
        return path

    return final


# Megatron-LM, training/checkpointing.py at 0032978f: each rank writes its file with torch.save;
# after a barrier, the first one writes the iteration into the tracker file.
def _megatron(step: int, before: Mapping[str, Any]) -> Save:
    folder = f"iter_{step:07d}"
    ranks = [f"{folder}/mp_rank_{rank:02d}" for rank in range(2)]
    names = [f"{rank}/model_optim_rng.pt" for rank in ranks]
    tracker = "latest_checkpointed_iteration.txt"
    files = {**before, **{name: zip_file() for name in names}, tracker: {"text": str(step)}}
    return Save(step, files_in_order(*names, tracker, folders=[folder, *ranks]), files)


# The same with `--ckpt-format torch_dist`, core/dist_checkpointing/serialization.py of 0.16.1.
def _megatron_dist(step: int, before: Mapping[str, Any]) -> Save:
    folder, tracker = f"iter_{step:07d}", "latest_checkpointed_iteration.txt"
    files = {
        f"{folder}/common.pt": zip_file(2000),
        f"{folder}/__0_0.distcp": {"size": 20_000},
        f"{folder}/__1_0.distcp": {"size": 20_000},
        f"{folder}/.metadata": {"size": 900},
        f"{folder}/metadata.json": {"text": '{"sharded_backend": "torch_dist"}'},
        tracker: {"text": str(step)},
    }
    return Save(step, files_in_order(*files, folders=[folder]), {**before, **files})


# nemo_toolkit 3.0.0, utils/callbacks/nemo_model_checkpoint.py: a marker without the file's ending
# while a checkpoint is written and while one is removed; the `-last` one is replaced each time.
def _nemo(epoch: int, loss: str, before: Mapping[str, Any], last: str) -> Save:
    stem = f"name--val_loss={loss}-epoch={epoch}"
    calls: list[list[str]] = []
    for name in (stem, f"{stem}-last"):
        marker = f"{name}-unfinished"
        calls += files_in_order(marker, f"{name}.ckpt") + [["unlink", marker]]
    if last:
        marker = f"{last.removesuffix('.ckpt')}-unfinished"
        calls += [*files_in_order(marker), ["unlink", last], ["unlink", marker]]
    kept = {name: about for name, about in before.items() if name != last}
    new = {f"{stem}.ckpt": zip_file(), f"{stem}-last.ckpt": zip_file()}
    return Save(epoch, calls, {**kept, **new})


# The same with distributed checkpoints: folders without an ending.
def _nemo_folders(step: int, before: Mapping[str, Any]) -> Save:
    name = f"megatron_gpt--val_loss=2.31-step={step}-consumed_samples={step * 8}.0"
    marker = f"{name}-unfinished"
    files = {
        f"{name}/model_weights/common.pt": zip_file(2000),
        f"{name}/model_weights/__0_0.distcp": {"size": 20_000},
        f"{name}/model_weights/.metadata": {"size": 900},
        f"{name}/model_weights/metadata.json": {"text": "{}"},
    }
    calls = [
        *files_in_order(marker),
        *files_in_order(*files, folders=[name, f"{name}/model_weights"]),
        ["unlink", marker],
    ]
    return Save(step, calls, {**before, **files})


# torchtune 0.6.1, training/checkpointing/_checkpointer.py (FullModelHFCheckpointer): the epoch's
# folder, then copies of the tokenizer's files, then one recipe state for all.
def _torchtune(epoch: int, before: Mapping[str, Any], unit: str = "epoch") -> Save:
    folder = f"{unit}_{epoch}"
    files: dict[str, Mapping[str, Any]] = {
        f"{folder}/model-00001-of-00002.safetensors": {"size": 30_000, "kind": "safetensors"},
        f"{folder}/model-00002-of-00002.safetensors": {"size": 30_000, "kind": "safetensors"},
        f"{folder}/model.safetensors.index.json": {"size": 9000},
        f"{folder}/config.json": {"text": "{}"},
        f"{folder}/original/params.json": {"text": "{}"},
        "recipe_state/recipe_state.pt": zip_file(),
    }
    folders = [folder, f"{folder}/original", "recipe_state"]
    return Save(epoch, files_in_order(*files, folders=folders), {**before, **files})


# ultralytics 8.4.190, engine/trainer.py: args.yaml at the start, results.csv after each epoch,
# write_bytes to last.pt, to best.pt if it is the best, and to epochN.pt every save_period.
def _ultralytics(epoch: int, before: Mapping[str, Any]) -> Save:
    train = "detect/train2"
    files: dict[str, Mapping[str, Any]] = {
        f"{train}/results.csv": {"size": 100 * epoch},
        f"{train}/weights/last.pt": zip_file(),
        f"{train}/weights/best.pt": zip_file(),
        f"{train}/weights/epoch{epoch}.pt": zip_file(),
    }
    if not before:
        files = {f"{train}/args.yaml": {"text": "epochs: 3\nsave_period: 1\n"}, **files}
    return Save(epoch, files_in_order(*files, folders=[f"{train}/weights"]), {**before, **files})


def _two(make: Callable[..., Save], first: int, second: int, *more: Any) -> list[Save]:
    one = make(first, {}, *more)
    return [one, make(second, one.files, *more)]


def _two_of_nemo() -> list[Save]:
    one = _nemo(2, "0.1", {}, "")
    return [one, _nemo(3, "0.09", one.files, "name--val_loss=0.1-epoch=2-last.ckpt")]


LAYOUTS = [
    *map(recorded, ["deepspeed", "timm", "keras-weights", "keras-whole", "keras-backup", "orbax"]),
    written("megatron", "Megatron-LM 0032978f", _two(_megatron, 100, 200)),
    written("megatron-dist", "megatron-core 0.16.1", _two(_megatron_dist, 100, 200)),
    written("nemo", "nemo_toolkit 3.0.0", _two_of_nemo()),
    written("nemo-folders", "nemo_toolkit 3.0.0", _two(_nemo_folders, 100, 200)),
    written("torchtune", "torchtune 0.6.1", _two(_torchtune, 0, 1)),
    written("torchtune-steps", "torchtune 0.6.1", _two(_torchtune, 50, 100, "step")),
    written("ultralytics", "ultralytics 8.4.190", _two(_ultralytics, 1, 2)),
]
