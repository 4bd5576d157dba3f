"""Find checkpoints that a program wrote to its folder, and tell complete ones from broken ones.

A checkpoint *unit* is a folder `checkpoint-N` (transformers and many others) or a file or folder
`*.ckpt`, `*.pt` or `*.pth` (Lightning, torch.save) directly in the watched folder. Nothing is
unpickled.
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

SETTLED_S = 2.0  # time without changes before a unit that is provably complete is saved
QUIET_S = 20.0  # the same for a unit whose content does not show whether it is complete
STATE = "trainer_state.json"  # transformers writes it last
INCOMPLETE = "checkpoint-is-incomplete.txt"  # transformers has it while it saves at a SIGTERM
METADATA = ".metadata"  # torch.distributed.checkpoint writes it last
_FILES = (".ckpt", ".pt", ".pth")
_FOLDER = re.compile(r"checkpoint[-_]\d+")
_NUMBERS = tuple(
    re.compile(rf"{word}[=_-]*(\d+)") for word in ("step", "iter", "checkpoint", "epoch", "ckpt")
)
_ZIP = b"PK\x03\x04"  # first bytes of a torch.save file


class UnitState(Enum):
    """Completeness of a unit, judged by its content alone."""

    BROKEN = "broken"
    COMPLETE = "complete"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class File:
    """Snapshot of a file of a unit. `path` is relative to the watched folder, with `/`."""

    path: str
    size: int
    changed_ns: int
    inode: int


@dataclass(frozen=True)
class Unit:
    """A checkpoint written by the program; `name` is its entry in the watched folder."""

    name: str
    files: tuple[File, ...]

    @property
    def changed_ns(self) -> int:
        """Modification time of its newest file; 0 without files."""
        return max((file.changed_ns for file in self.files), default=0)


def find_units(folder: Path) -> list[Unit]:
    """All units in the folder, oldest first; at equal age those without a number come last.

    Links that lead out of the folder are ignored. Raises OSError.
    """
    units = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if not is_unit(path.name):
            continue
        with contextlib.suppress(FileNotFoundError):  # the program removes its old ones
            files = tuple(sorted(_files(folder, path), key=lambda file: file.path))
            if files:
                units.append(Unit(path.name, files))
    return sorted(units, key=lambda unit: (unit.changed_ns, step_number(unit.name) is None))


def newest_unit(folder: Path) -> str:
    """Path of the newest unit that is not broken; "" if there is none. Raises OSError."""
    usable = [
        unit for unit in find_units(folder) if inspect_unit(folder, unit) is not UnitState.BROKEN
    ]
    return str(folder / usable[-1].name) if usable else ""


def is_unit(name: str) -> bool:
    """Whether a checkpoint may have this name."""
    return not name.startswith(".") and (
        name.endswith(_FILES) or _FOLDER.fullmatch(name) is not None
    )


def step_number(name: str) -> int | None:
    """The step, epoch or other number in a unit's name; None if there is none."""
    for pattern in _NUMBERS:
        if numbers := pattern.findall(name.lower()):
            return int(numbers[-1])
    return None


def series_name(name: str) -> str:
    """The name with its numbers replaced by #: equal for successive checkpoints of a program."""
    return re.sub(r"\d+", "#", name)


def inspect_unit(folder: Path, unit: Unit) -> UnitState:
    """Judge a unit's completeness by its content. Raises OSError."""
    paths = {file.path.rpartition("/")[2]: folder / file.path for file in unit.files}
    if INCOMPLETE in paths:
        return UnitState.BROKEN
    if STATE in paths:
        return UnitState.COMPLETE if _is_json(paths[STATE]) else UnitState.BROKEN
    if METADATA in paths:
        return UnitState.COMPLETE if paths[METADATA].stat().st_size else UnitState.BROKEN
    if len(unit.files) == 1 and unit.files[0].path == unit.name:
        return _inspect_file(folder / unit.name)
    return UnitState.UNKNOWN


class SettleTimer:
    """Measures for how long units have not changed, by the local clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last_seen: dict[str, tuple[Unit, float]] = {}

    def quiet_s(self, unit: Unit) -> float:
        """Seconds since the unit last changed, as far as earlier calls could see."""
        now = self._monotonic()
        last_unit, since = self._last_seen.get(unit.name, (None, now))
        if last_unit != unit:
            since = now
        self._last_seen[unit.name] = (unit, since)
        return now - since


def is_ready(state: UnitState, quiet_s: float, *, ended: bool) -> bool:
    """Whether to save a unit that no process has open for writing.

    `ended` means that the program has ended: then provably complete units need no waiting.
    """
    if state is UnitState.COMPLETE:
        return ended or quiet_s >= SETTLED_S
    return state is UnitState.UNKNOWN and quiet_s >= QUIET_S


def files_open_for_writing(folder: Path, proc: Path = Path("/proc")) -> set[str]:
    """Files in the folder, by relative path, that a process visible to us has open for writing."""
    root = os.path.realpath(folder) + "/"
    open_files = set()
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended or belongs to another user
                open_files |= {
                    path[len(root) :] for path in _written_files(entry) if path.startswith(root)
                }
    return open_files


def _written_files(process: Path) -> Iterator[str]:
    for link in (process / "fd").iterdir():
        with contextlib.suppress(OSError):
            path = str(link.readlink())
            if path.startswith("/") and _writes((process / "fdinfo" / link.name).read_text()):
                yield path


def _writes(info: str) -> bool:
    flags = re.search(r"^flags:\s*([0-7]+)", info, re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _files(folder: Path, path: Path) -> Iterator[File]:
    folder_prefix = os.path.realpath(folder) + "/"
    if not os.path.realpath(path).startswith(folder_prefix):
        return
    if not path.is_dir():
        yield _file(folder, path)
        return
    for parent, _, names in os.walk(path):
        for name in names:
            if os.path.realpath(Path(parent) / name).startswith(folder_prefix):
                yield _file(folder, Path(parent) / name)


def _file(folder: Path, path: Path) -> File:
    stat = path.stat()
    return File(path.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns, stat.st_ino)


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), Mapping)
    except ValueError:
        return False


def _inspect_file(path: Path) -> UnitState:
    with path.open("rb") as file:
        magic = file.read(len(_ZIP))
    if magic != _ZIP:
        return UnitState.UNKNOWN if magic else UnitState.BROKEN
    # A zip file's index is at its end, so a truncated one is not recognised.
    return UnitState.COMPLETE if zipfile.is_zipfile(path) else UnitState.BROKEN
