"""Checkpoints that other programs wrote: safetensors, alone or in Hugging Face's folder, that of
torch.distributed.checkpoint, and what `spotctl ckpt export` made of either kind. What describes
tensors is read here, and none of their bytes."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from spotd.base.errors import UserError
from spotd.checkpoint_convert import dcp_reader
from spotd.checkpoint_convert.dcp_reader import StoredBlock, read_dcp
from spotd.checkpoint_convert.export import NOTE
from spotd.checkpoint_convert.safetensors_writer import DTYPES

INDEX = "model.safetensors.index.json"
MOST_HEADER = 100_000_000  # bytes, as safetensors itself has it
_NAMES = {theirs: (ours, item) for ours, (item, theirs) in DTYPES.items()}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class ImportSource:
    """What is to be imported: the blocks of its tensors. `state` is the JSON part of a whole
    checkpoint, None where there are weights alone; `left_out` names what is no tensor."""

    tensors: tuple[StoredBlock, ...]
    step: int = 0
    state: Mapping[str, Any] | None = None
    left_out: tuple[str, ...] = ()


def read_source(folder: Path, only: str) -> ImportSource:
    """A folder, or one file of safetensors. Of the tensors those whose names begin with `only`,
    named without it, as weights alone; with "" all. Raises UserError, which names what is wrong."""
    try:
        tensors, rest = _tensors(folder)
        note = _note(folder)
    except OSError as error:
        text = f"{folder} cannot be read: {error.strerror or error}"
        raise UserError(text, "name a folder of safetensors or DCP, or a file") from None
    if only:
        found = [
            replace(one, name=one.name.removeprefix(only))
            for one in tensors
            if one.name.startswith(only) and one.name != only
        ]
        if not found:
            names = ", ".join(one.name for one in tensors[:3])
            raise UserError(f"no tensor begins with {only!r}", f"there are {names} and others")
        return ImportSource(
            tuple(found), left_out=tuple(one for one in rest if one.startswith(only))
        )
    if note.get("complete") is True and isinstance(note.get("state"), dict):
        return ImportSource(tuple(tensors), _step(note), note["state"])
    return ImportSource(tuple(tensors), left_out=tuple(rest))


def _step(note: Mapping[str, Any]) -> int:
    step = note.get("step")
    if not isinstance(step, int) or not 0 <= step < 10**9:
        raise UserError(f"{NOTE} says step {step!r}", "export it again")
    return step


def _note(folder: Path) -> Mapping[str, Any]:
    path = folder / NOTE
    return _json(path) if folder.is_dir() and path.exists() else {}


def _tensors(folder: Path) -> tuple[list[StoredBlock], list[str]]:
    """And the names of what is no tensor."""
    if not folder.is_dir():
        return _of_file(folder), []
    if (folder / INDEX).exists():
        return _indexed(folder), []
    if (folder / dcp_reader.INDEX).exists():
        return read_dcp(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        odd = next((path.name for kind in _PICKLES for path in folder.glob(kind)), "")
        text = f"{folder} has no safetensors" + (f", but {odd}, which is a pickle" if odd else "")
        raise UserError(text, "save it as safetensors first: nothing is unpickled here")
    return _together(one for file in files for one in _of_file(file)), []


def _indexed(folder: Path) -> list[StoredBlock]:
    """Exactly those that the index names, each in the file that it names."""
    places = _json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{INDEX} has no weight_map", "look whether all of it was copied")
    found: dict[str, StoredBlock] = {}
    for name in sorted({str(file) for file in places.values()}):
        if Path(name).name != name or not (folder / name).is_file():
            raise UserError(f"{INDEX} names {name!r}, which is not there", "copy all of the folder")
        wanted = {tensor for tensor, file in places.items() if file == name}
        found |= {one.name: one for one in _of_file(folder / name) if one.name in wanted}
    missing = [name for name in places if name not in found]
    if missing:
        text = f"{len(missing)} of the tensors that {INDEX} names are missing: "
        raise UserError(text + ", ".join(missing[:5]), "copy all of the folder again")
    return list(found.values())


def _together(tensors: Iterable[StoredBlock]) -> list[StoredBlock]:
    found: dict[str, StoredBlock] = {}
    for one in tensors:
        if one.name in found:
            text = f"tensor {one.name} is in {found[one.name].file.name} and in {one.file.name}"
            raise UserError(text, f"name one of the files, or add {INDEX}")
        found[one.name] = one
    return list(found.values())


def _of_file(path: Path) -> list[StoredBlock]:
    """In the order in which they lie."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _damaged(path, "is no file")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MOST_HEADER, status.st_size - 8):
            raise _damaged(path, "has no header of safetensors")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            header = None
    if not isinstance(header, dict):
        raise _damaged(path, "has no header of safetensors")
    header.pop("__metadata__", None)
    begin = 8 + length
    found = [_tensor(path, name, entry, begin) for name, entry in header.items()]
    for one in found:
        if one.at + one.size > status.st_size:
            raise _damaged(path, f"ends before tensor {one.name} does")
    return sorted(found, key=lambda one: one.at)


def _tensor(path: Path, name: str, entry: Any, begin: int) -> StoredBlock:
    try:
        kind, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, end]
    except (TypeError, KeyError, ValueError):
        raise _damaged(path, f"says nothing useful of tensor {name}") from None
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise _damaged(path, f"has no place for tensor {name}")
    if not isinstance(kind, str) or kind not in _NAMES:
        text = f"tensor {name} in {path.name} is of {kind!r}, which is not known here"
        raise UserError(text, f"save it as one of {', '.join(_NAMES)}")
    dtype, item = _NAMES[kind]
    if end - start != prod(shape) * item:
        raise _damaged(path, f"has {end - start} bytes of tensor {name}, {kind} {shape}")
    whole = tuple(shape)
    return StoredBlock(
        name, dtype, whole, (0,) * len(whole), whole, path, begin + start, end - start
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is not JSON", "look whether all of it was copied")
    return found


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path.name} {what}", "look whether all of it was copied")
