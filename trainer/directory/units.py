"""What a program leaves in its folder of checkpoints: which of it is a unit, and which is whole.

A unit is a folder `checkpoint-N` (transformers, and many others) or a file or folder `*.ckpt`,
`*.pt` or `*.pth` (Lightning, torch.save), right below the watched folder. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

SETTLED_S = 2.0  # for so long a unit has not changed that shows by itself that it is whole
QUIET_S = 20.0  # and one that does not
STATE = "trainer_state.json"  # transformers writes it last
INCOMPLETE = "checkpoint-is-incomplete.txt"  # and this, while it saves at a SIGTERM
METADATA = ".metadata"  # torch.distributed.checkpoint writes it last
_FILES = (".ckpt", ".pt", ".pth")
_FOLDER = re.compile(r"checkpoint[-_]\d+")
_NUMBERS = tuple(
    re.compile(rf"{word}[=_-]*(\d+)") for word in ("step", "iter", "checkpoint", "epoch", "ckpt")
)
_ZIP = b"PK\x03\x04"  # what torch.save begins with


class UnitState(Enum):
    """How a unit looks, beside being left alone: broken, whole, or like neither."""

    BROKEN = "broken"
    WHOLE = "whole"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class File:
    """One file of a unit as it is now. `path` is relative to the watched folder, with `/`."""

    path: str
    size: int
    changed_ns: int
    inode: int


@dataclass(frozen=True)
class Unit:
    """A checkpoint of the program's own making, by its name in the watched folder."""

    name: str
    files: tuple[File, ...]

    @property
    def changed_ns(self) -> int:
        """When the youngest of its files was written."""
        return max((file.changed_ns for file in self.files), default=0)


def find_units(folder: Path) -> list[Unit]:
    """What is there, the oldest first, and of one age those without a number last. Links that lead
    out of the folder are not followed. Raises OSError."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if not is_unit(path.name):
            continue
        with contextlib.suppress(FileNotFoundError):  # the program removes its old ones
            files = tuple(sorted(_files(folder, path), key=lambda file: file.path))
            if files:
                found.append(Unit(path.name, files))
    return sorted(found, key=lambda unit: (unit.changed_ns, number_of(unit.name) is None))


def newest_in(folder: Path) -> str:
    """The path of the youngest unit that does not look broken; "" where there is none. Raises
    OSError."""
    whole = [u for u in find_units(folder) if look_at(folder, u) is not UnitState.BROKEN]
    return str(folder / whole[-1].name) if whole else ""


def is_unit(name: str) -> bool:
    """Whether a checkpoint may have this name."""
    return not name.startswith(".") and (
        name.endswith(_FILES) or _FOLDER.fullmatch(name) is not None
    )


def number_of(name: str) -> int | None:
    """The number of steps in a unit's name, or what else it counts; None: it counts nothing."""
    for pattern in _NUMBERS:
        if found := pattern.findall(name.lower()):
            return int(found[-1])
    return None


def series_of(name: str) -> str:
    """What the names of one program's successive checkpoints have in common."""
    return re.sub(r"\d+", "#", name)


def look_at(folder: Path, unit: Unit) -> UnitState:
    """By what it contains. Raises OSError."""
    paths = {file.path.rpartition("/")[2]: folder / file.path for file in unit.files}
    if INCOMPLETE in paths:
        return UnitState.BROKEN
    if STATE in paths:
        return UnitState.WHOLE if _is_json(paths[STATE]) else UnitState.BROKEN
    if METADATA in paths:
        return UnitState.WHOLE if paths[METADATA].stat().st_size else UnitState.BROKEN
    if len(unit.files) == 1 and unit.files[0].path == unit.name:
        return _look_at_file(folder / unit.name)
    return UnitState.UNKNOWN


class SettleTimer:
    """For how long units have been left alone, by the machine's own clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, tuple[Unit, float]] = {}

    def quiet_s(self, unit: Unit) -> float:
        """Seconds since it was first seen as it is now."""
        now = self._monotonic()
        before, since = self._seen.get(unit.name, (None, now))
        if before != unit:
            since = now
        self._seen[unit.name] = (unit, since)
        return now - since


def is_ready(look: UnitState, quiet_s: float, *, over: bool) -> bool:
    """Whether to save a unit that nobody has open for writing. `over`: the program has ended, and
    what shows that it is whole need not be waited for."""
    if look is UnitState.WHOLE:
        return over or quiet_s >= SETTLED_S
    return look is UnitState.UNKNOWN and quiet_s >= QUIET_S


def written_below(folder: Path, proc: Path = Path("/proc")) -> set[str]:
    """Paths relative to the folder that some process has open for writing now, as far as we may
    see."""
    root = os.path.realpath(folder) + "/"
    found = set()
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended, or is not ours to see
                found |= {path[len(root) :] for path in _written_by(entry) if path.startswith(root)}
    return found


def _written_by(process: Path) -> Iterator[str]:
    for link in (process / "fd").iterdir():
        with contextlib.suppress(OSError):
            path = str(link.readlink())
            if path.startswith("/") and _writes((process / "fdinfo" / link.name).read_text()):
                yield path


def _writes(info: str) -> bool:
    flags = re.search(r"^flags:\s*([0-7]+)", info, re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _files(folder: Path, path: Path) -> Iterator[File]:
    inside = os.path.realpath(folder) + "/"
    if not os.path.realpath(path).startswith(inside):
        return
    if not path.is_dir():
        yield _file(folder, path)
        return
    for parent, _, names in os.walk(path):
        for name in names:
            if os.path.realpath(Path(parent) / name).startswith(inside):
                yield _file(folder, Path(parent) / name)


def _file(folder: Path, path: Path) -> File:
    stat = path.stat()
    return File(path.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns, stat.st_ino)


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), Mapping)
    except ValueError:
        return False


def _look_at_file(path: Path) -> UnitState:
    with path.open("rb") as file:
        begin = file.read(len(_ZIP))
    if begin != _ZIP:
        return UnitState.UNKNOWN if begin else UnitState.BROKEN
    return (
        UnitState.WHOLE if zipfile.is_zipfile(path) else UnitState.BROKEN
    )  # its index is at its end
