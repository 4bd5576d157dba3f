"""Tell complete checkpoints from broken ones by their content. Nothing is unpickled."""

from __future__ import annotations

import contextlib
import json
import re
import struct
import zipfile
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from trainer.directory.units import (
    ALL_FILES,
    CHECKPOINT_SUFFIXES,
    METADATA,
    ORBAX,
    POINTERS,
    QUIET_S,
    SMALL_BYTES,
    STATE,
    UNFINISHED,
    Unit,
    find_units,
    looks_like_checkpoint,
    step_number,
)

INCOMPLETE = "checkpoint-is-incomplete.txt"  # transformers has it while it saves at a SIGTERM
_UNMARKED = (".nemo", ".ckpt", "-EMA")  # what NeMo leaves out of the marker's name, in this order
_RANK_FOLDER = re.compile(r"(mp|tp|fsdp)_rank_\d+.*")  # NeMo's, whose marker is beside it
_ZIP = b"PK\x03\x04"  # first bytes of a torch.save, .npz or .keras file
_HDF5 = b"\x89HDF\r\n\x1a\n"  # first bytes of a .h5 file
SETTLED_S = 2.0  # time without changes before a unit that is provably complete is saved
# Megatron writes the first of these before torch's METADATA, and the second after it.
_MEGATRON, _MEGATRON_LAST = "common.pt", "metadata.json"


class UnitState(Enum):
    """Completeness of a unit, judged by its content alone."""

    BROKEN = "broken"
    COMPLETE = "complete"
    UNKNOWN = "unknown"


def newest_unit(folder: Path) -> str:
    """Path of the newest checkpoint that is not broken; "" if there is none. Raises OSError.

    It is the most recently modified one of those with a number in their name or a checkpoint's
    suffix, and only if there are none, of all others.
    """
    usable = [
        unit
        for unit in find_units(folder, ALL_FILES)
        if not unit.is_log
        and not unit.is_pointer
        and inspect_unit(folder, unit) is not UnitState.BROKEN
    ]
    likely = [unit for unit in usable if looks_like_checkpoint(unit)] or usable
    newest = max(likely, key=lambda unit: unit.modified_ns, default=None)
    return "" if newest is None else str(folder / newest.name)


def inspect_unit(folder: Path, unit: Unit) -> UnitState:
    """Judge a unit's completeness by its content. Raises OSError."""
    if _is_marked_unfinished(folder / unit.name):
        return UnitState.BROKEN
    if not unit.files:
        # Something may be about to be written to an empty directory.
        return UnitState.COMPLETE if unit.links else UnitState.UNKNOWN
    if unit.is_file:
        return _inspect_file(folder / unit.name)
    return _inspect_folder(folder, unit)


def _inspect_folder(folder: Path, unit: Unit) -> UnitState:
    paths = {file.path.rpartition("/")[2]: folder / file.path for file in unit.files}
    if INCOMPLETE in paths:
        return UnitState.BROKEN
    if STATE in paths:
        return UnitState.COMPLETE if _has_json(paths, STATE) else UnitState.BROKEN
    if METADATA in paths:
        if not paths[METADATA].stat().st_size:
            return UnitState.BROKEN
        is_more_to_come = _MEGATRON in paths and not _has_json(paths, _MEGATRON_LAST)
        return UnitState.UNKNOWN if is_more_to_come else UnitState.COMPLETE
    if ORBAX in paths or _is_named_by_pointer(folder, unit):
        return UnitState.COMPLETE
    return UnitState.UNKNOWN


def _is_marked_unfinished(path: Path) -> bool:
    """Whether NeMo's marker says that this checkpoint is being written or removed."""
    name = path.name
    for ending in _UNMARKED:
        name = name.removesuffix(ending)
    folders = [path.parent]
    if _RANK_FOLDER.fullmatch(path.parent.name):
        folders.append(path.parent.parent)
    return any(
        (folder / f"{marked}{UNFINISHED}").exists()
        for folder in folders
        for marked in {path.name, name}
    )


def is_ready(state: UnitState, quiet_s: float, *, ended: bool) -> bool:
    """Whether to save a unit that no process has open for writing.

    `ended` means that the program has ended by itself and left nothing half-written: nothing needs
    waiting for then.
    """
    if state is UnitState.BROKEN:
        return False
    return ended or quiet_s >= (SETTLED_S if state is UnitState.COMPLETE else QUIET_S)


def _has_json(paths: Mapping[str, Path], name: str) -> bool:
    try:
        return isinstance(json.loads(paths[name].read_bytes()), Mapping)
    except (KeyError, ValueError):
        return False


def _is_named_by_pointer(folder: Path, unit: Unit) -> bool:
    """Whether a file beside the unit, written after it, names it as the newest checkpoint."""
    path = folder / unit.name
    for name in POINTERS:
        with contextlib.suppress(OSError, ValueError):
            pointer = path.parent / name
            stat = pointer.stat()
            if stat.st_size > SMALL_BYTES or stat.st_mtime_ns < unit.modified_ns:
                continue
            text = pointer.read_text("utf-8").strip()
            if text == path.name or (text.isdecimal() and int(text) == step_number(path.name)):
                return True
    return False


def _inspect_file(path: Path) -> UnitState:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
    if not head:
        return UnitState.BROKEN if path.name.endswith(CHECKPOINT_SUFFIXES) else UnitState.COMPLETE
    if head[:4] == _ZIP:
        # A zip file's index is at its end, so a truncated one is not recognised.
        return UnitState.COMPLETE if zipfile.is_zipfile(path) else UnitState.BROKEN
    if head == _HDF5:
        return _inspect_hdf5(path, size)
    if path.name.endswith(".safetensors"):
        return UnitState.COMPLETE if _is_whole_safetensors(path, size) else UnitState.BROKEN
    return UnitState.COMPLETE if size <= SMALL_BYTES else UnitState.UNKNOWN


def _is_whole_safetensors(path: Path, size: int) -> bool:
    """Whether the file is as long as its header says: 8 bytes, the header, the tensors."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length)) if length < size else {}
        ends = [
            tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"
        ]
    except (ValueError, KeyError, TypeError, IndexError, struct.error):
        return False
    return bool(ends) and 8 + length + max(ends) == size


def _inspect_hdf5(path: Path, size: int) -> UnitState:
    """Compare the file's size with the end of file that its superblock names.

    The library writes that when it closes or flushes the file.
    """
    with path.open("rb") as file:
        block = file.read(64).ljust(64, b"\xff")
    version = block[8]
    if version > 3 or block[13 if version < 2 else 9] != 8:
        return UnitState.UNKNOWN
    at = (40, 44, 28, 28)[version]
    (end,) = struct.unpack_from("<Q", block, at)
    if end > size:
        return UnitState.BROKEN
    is_being_written = version == 3 and block[11] & 1
    return UnitState.COMPLETE if end == size and not is_being_written else UnitState.UNKNOWN
