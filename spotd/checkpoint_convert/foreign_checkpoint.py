"""Read the tensor layout of checkpoints written by other programs.

Supported are safetensors files and folders (with or without Hugging Face's index), DCP folders,
and exports of `spotctl ckpt export`. Only headers are read here, not the tensors' bytes.
"""

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
from spotd.checkpoint_convert.export import NOTE_FILE
from spotd.checkpoint_convert.safetensors_writer import DTYPES

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
_DTYPES = {
    safetensors_name: (torch_name, item_bytes)
    for torch_name, (item_bytes, safetensors_name) in DTYPES.items()
}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class ImportSource:
    """A checkpoint to import: the blocks of its tensors.

    `state` is the JSON state of a complete checkpoint, None for weights only. `left_out` has the
    names of entries that are not tensors.
    """

    tensors: tuple[StoredBlock, ...]
    step: int = 0
    state: Mapping[str, Any] | None = None
    left_out: tuple[str, ...] = ()


def read_source(folder: Path, prefix: str) -> ImportSource:
    """Read the layout of a folder or of one safetensors file.

    With a `prefix`, only tensors whose names begin with it are returned, with the prefix removed,
    as weights only. Raises UserError, which names the file or tensor at fault.
    """
    try:
        tensors, left_out = _read_tensors(folder)
        note = _note(folder)
    except OSError as error:
        message = f"{folder} cannot be read: {error.strerror or error}"
        raise UserError(message, "name a folder of safetensors or DCP, or a file") from None
    if prefix:
        selected = [
            replace(tensor, name=tensor.name.removeprefix(prefix))
            for tensor in tensors
            if tensor.name.startswith(prefix) and tensor.name != prefix
        ]
        if not selected:
            names = ", ".join(tensor.name for tensor in tensors[:3])
            raise UserError(f"no tensor begins with {prefix!r}", f"there are {names} and others")
        return ImportSource(
            tuple(selected), left_out=tuple(name for name in left_out if name.startswith(prefix))
        )
    if note.get("complete") is True and isinstance(note.get("state"), dict):
        return ImportSource(tuple(tensors), _step(note), note["state"])
    return ImportSource(tuple(tensors), left_out=tuple(left_out))


def _step(note: Mapping[str, Any]) -> int:
    step = note.get("step")
    if not isinstance(step, int) or not 0 <= step < 10**9:
        raise UserError(f"{NOTE_FILE} says step {step!r}", "export it again")
    return step


def _note(folder: Path) -> Mapping[str, Any]:
    path = folder / NOTE_FILE
    return _read_json(path) if folder.is_dir() and path.exists() else {}


def _read_tensors(folder: Path) -> tuple[list[StoredBlock], list[str]]:
    """Return the blocks of all tensors, and the names of entries that are not tensors."""
    if not folder.is_dir():
        return _read_safetensors(folder), []
    if (folder / INDEX).exists():
        return _read_indexed(folder), []
    if (folder / dcp_reader.INDEX).exists():
        return read_dcp(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickle_name = next((path.name for pattern in _PICKLES for path in folder.glob(pattern)), "")
        message = f"{folder} has no safetensors" + (
            f", but {pickle_name}, which is a pickle" if pickle_name else ""
        )
        raise UserError(message, "save it as safetensors first: nothing is unpickled here")
    return _merge(block for file in files for block in _read_safetensors(file)), []


def _read_indexed(folder: Path) -> list[StoredBlock]:
    """Return exactly the tensors that the index lists, each from the file that it names."""
    weight_map = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{INDEX} has no weight_map", "check whether all of it was copied")
    blocks: dict[str, StoredBlock] = {}
    for name in sorted({str(file) for file in weight_map.values()}):
        if Path(name).name != name or not (folder / name).is_file():
            raise UserError(f"{INDEX} names {name!r}, which is not there", "copy all of the folder")
        names_in_file = {tensor for tensor, file in weight_map.items() if file == name}
        blocks |= {
            block.name: block
            for block in _read_safetensors(folder / name)
            if block.name in names_in_file
        }
    missing = [name for name in weight_map if name not in blocks]
    if missing:
        message = f"{len(missing)} of the tensors that {INDEX} names are missing: "
        raise UserError(message + ", ".join(missing[:5]), "copy all of the folder again")
    return list(blocks.values())


def _merge(all_blocks: Iterable[StoredBlock]) -> list[StoredBlock]:
    blocks: dict[str, StoredBlock] = {}
    for block in all_blocks:
        if block.name in blocks:
            message = (
                f"tensor {block.name} is in {blocks[block.name].file.name} and in {block.file.name}"
            )
            raise UserError(message, f"name one of the files, or add {INDEX}")
        blocks[block.name] = block
    return list(blocks.values())


def _read_safetensors(path: Path) -> list[StoredBlock]:
    """Return the tensors of one safetensors file, ordered by offset."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _damaged(path, "is not a file")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, status.st_size - 8):
            raise _damaged(path, "has no header of safetensors")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            header = None
    if not isinstance(header, dict):
        raise _damaged(path, "has no header of safetensors")
    header.pop("__metadata__", None)
    data_offset = 8 + length
    blocks = [_tensor(path, name, entry, data_offset) for name, entry in header.items()]
    for block in blocks:
        if block.offset + block.size > status.st_size:
            raise _damaged(path, f"ends before tensor {block.name} does")
    return sorted(blocks, key=lambda block: block.offset)


def _tensor(path: Path, name: str, entry: Any, data_offset: int) -> StoredBlock:
    try:
        dtype_name, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, end]
    except (TypeError, KeyError, ValueError):
        raise _damaged(path, f"has an invalid entry for tensor {name}") from None
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise _damaged(path, f"has an invalid offset for tensor {name}")
    if not isinstance(dtype_name, str) or dtype_name not in _DTYPES:
        message = f"tensor {name} in {path.name} is of {dtype_name!r}, which is not supported"
        raise UserError(message, f"save it as one of {', '.join(_DTYPES)}")
    dtype, item_bytes = _DTYPES[dtype_name]
    if end - start != prod(shape) * item_bytes:
        raise _damaged(path, f"has {end - start} bytes of tensor {name}, {dtype_name} {shape}")
    tensor_shape = tuple(shape)
    return StoredBlock(
        name=name,
        dtype=dtype,
        tensor_shape=tensor_shape,
        start=(0,) * len(tensor_shape),
        shape=tensor_shape,
        file=path,
        offset=data_offset + start,
        size=end - start,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{path} is not JSON", "check whether all of it was copied")
    return value


def _damaged(path: Path, problem: str) -> UserError:
    return UserError(f"{path.name} {problem}", "check whether all of it was copied")
