"""Divide a folder that a program writes to into units.

A *unit* is saved as a whole: a folder that is one checkpoint, or a file or link outside of such
folders. A folder is one checkpoint if its name has a step number (`checkpoint-40`, `global_step20`,
`epoch=3`, `100`), or if it holds a file that frameworks write with a checkpoint (MARKERS). Other
folders are searched for units; an empty one is a unit.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

QUIET_S = 20.0  # the same for a unit whose content does not show whether it is complete
SMALL_BYTES = 4096  # a file up to this size is written at once: it counts as complete
STATE = "trainer_state.json"  # transformers writes it last
UNFINISHED = "-unfinished"  # suffix of NeMo's marker beside a checkpoint that is being written
METADATA = ".metadata"  # torch.distributed.checkpoint writes it last
ORBAX = "_CHECKPOINT_METADATA"  # in orbax's folders, which get their name when they are complete
# Files that frameworks write into the folder of one checkpoint or model.
MARKERS = frozenset(
    {STATE, METADATA, ORBAX, "_METADATA", "config.json", "adapter_config.json", "model_index.json"}
)
# Files that name the newest checkpoint beside them: DeepSpeed, Megatron, TensorFlow.
POINTERS = ("latest", "latest_checkpointed_iteration.txt", "checkpoint")
# Written to all the time, and useful at any length: they neither delay a save nor cause one.
_LOGS = ("*.tfevents.*", "*.log", "*.jsonl", "*.ndjson", "*.csv", "*.tsv", "*.out", "*.err")
_TEMPORARY = (
    "*.tmp",
    "*.part",
    "*.incomplete",
    "tmp-*",
    "*.orbax-checkpoint-tmp*",
    ".tmp*",
    ".*.tmp*",
    ".*.sw[a-z]",
    ".~*",
    ".nfs*",
    ".fuse_hidden*",
    ".spotd*",  # our own
)
# Folders that programs make again by themselves.
IGNORED_FOLDERS = frozenset(
    {
        "__pycache__",
        ".venv",
        ".git",
        ".cache",
        ".conda",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".triton",
        "lost+found",
    }
)
CHECKPOINT_SUFFIXES = (
    ".ckpt",
    ".pt",
    ".pth",
    ".bin",
    ".safetensors",
    ".tar",
    ".npz",
    ".keras",
    ".h5",
)
_STEP_WORDS = (
    "step",
    "iter",
    "iteration",
    "checkpoint",
    "epoch",
    "ckpt",
    "update",
    "round",
    "recovery",
)
_STEPS = tuple(re.compile(rf"{word}s?[=_-]*(\d+)") for word in _STEP_WORDS)
# A number at the end, or the only one, that a separator sets off from a word.
_LAST_NUMBER = re.compile(r"(?:^|(?P<word>[a-z]*)[-_= ])(?P<number>\d{1,11})$")
_ONLY_NUMBER = re.compile(r"^\D*?(?:^|(?P<word>[a-z]*)[-_= ])(?P<number>\d{1,11})[-_= ]\D*$")
_NO_STEPS = frozenset(
    [
        "of",
        "v",
        "version",
        "fold",
        "seed",
        "exp",
        "experiment",
        "trial",
        "run",
        "rank",
        "part",
        "shard",
        "split",
        "worker",
        "gpu",
        "node",
        "job",
    ]
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d\d-\d\d-\d\d|\d{8}[-_T]\d{4,6}")
_DECIMAL = re.compile(r"\d+\.\d+")
_NAME_VERSION = re.compile(r"-v\d+(?=\.|$)")
_SUFFIXES = re.compile(r"(\.[a-z][a-z0-9]*|\.data-\d+-of-\d+)*$")
_NUMBERED_FOLDER = re.compile(r"[A-Za-z_=.-]*\d+")
_MAX_STEP = 10**12 - 1  # what a manifest's key has digits for


@dataclass(frozen=True)
class Rules:
    """Which files are saved: those that match `include` (all if it is empty) and not `exclude`.

    A pattern without `/` is compared with the name of the file and of each folder above it. One
    with `/` is compared with the path below the watched folder; `*` stands for `/`, too.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def wants(self, path: str) -> bool:
        """Whether the file with this path, relative to the watched folder, is to be saved."""
        included = not self.include or any(_matches(path, pattern) for pattern in self.include)
        return included and not any(_matches(path, pattern) for pattern in self.exclude)


ALL_FILES = Rules()


@dataclass(frozen=True)
class File:
    """Snapshot of a file of a unit. `path` is relative to the watched folder, with `/`.

    `changed_ns` is the later of the times of the last change of content and of attributes.
    """

    path: str
    size: int
    changed_ns: int
    inode: int
    modified_ns: int = 0
    mode: int = 0o644
    names: int = 1  # how many names the file has: more than one are hard links


@dataclass(frozen=True)
class Link:
    """A symbolic link. A `target` that lies in the watched folder is relative to the link."""

    path: str
    target: str
    changed_ns: int


@dataclass(frozen=True)
class Directory:
    """An empty directory."""

    path: str
    changed_ns: int


@dataclass(frozen=True)
class Unit:
    """A checkpoint, file or link written by the program; `name` is its path in the folder.

    `directories` are the empty ones in it, or itself.
    """

    name: str
    files: tuple[File, ...] = ()
    links: tuple[Link, ...] = ()
    directories: tuple[Directory, ...] = ()

    @property
    def changed_ns(self) -> int:
        """Time of its newest change; 0 without content."""
        entries: tuple[File | Link | Directory, ...] = (
            *self.files,
            *self.links,
            *self.directories,
        )
        return max((entry.changed_ns for entry in entries), default=0)

    @property
    def modified_ns(self) -> int:
        """Modification time of its newest file, by which programs compare; 0 without files."""
        return max((file.modified_ns for file in self.files), default=0)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)

    @property
    def is_file(self) -> bool:
        """Whether it is a single file."""
        return len(self.files) == 1 and self.files[0].path == self.name

    @property
    def is_log(self) -> bool:
        """Whether it is a file that the program appends to all the time."""
        return self.is_file and _matches_any(self.name, _LOGS)

    @property
    def is_empty_directory(self) -> bool:
        """Whether it has nothing in it."""
        return not self.files and not self.links

    @property
    def is_pointer(self) -> bool:
        """Whether it only refers to other units: a link, or a small text file."""
        if not self.files:
            return True
        return self.is_file and self.name.rpartition("/")[2] in POINTERS

    @property
    def number(self) -> int | None:
        """The step, epoch or other number in its name, or in the name of its newest file.

        Links, logs and empty directories are no step of their own.
        """
        if not self.files or self.is_log:
            return None
        number = step_number(self.name)
        if number is not None or self.is_file:
            return number
        for file in sorted(self.files, key=lambda file: file.modified_ns, reverse=True):
            for part in reversed(file.path[len(self.name) + 1 :].split("/")):
                if (number := step_number(part)) is not None:
                    return number
        return None


def find_units(folder: Path, rules: Rules = ALL_FILES) -> list[Unit]:
    """All units in the folder, oldest change first; at equal age those without a number come last.

    Temporary names and folders that are caches are ignored. Raises OSError.
    """
    if not folder.is_dir():
        return []
    units = _units_in(_Tree(folder, rules), folder)
    return sorted(units, key=lambda unit: (unit.changed_ns, unit.number is None))


def looks_like_checkpoint(unit: Unit) -> bool:
    """Whether a program may resume from it, as far as names tell."""
    if not unit.files:
        return False
    return not unit.is_file or unit.number is not None or unit.name.endswith(CHECKPOINT_SUFFIXES)


def parents_of(path: str) -> Iterator[str]:
    """The folders above a path, the innermost first."""
    while path := path.rpartition("/")[0]:
        yield path


def step_number(name: str) -> int | None:
    """The step, epoch or other number in a name; None if there is none.

    A number behind a word such as `step` counts most, then one at the end of the name that is set
    off by a separator. Dates, versions and numbers of parts are no steps.
    """
    span = _step_span(name.rpartition("/")[2])
    return None if span is None else int(name.rpartition("/")[2][slice(*span)])


def series_name(path: str) -> str:
    """The path with # for its step: equal for successive checkpoints of a program.

    Other numbers that change with the step have # as well: the epoch, and decimals such as a loss.
    The version that Lightning appends to a name that is taken is left out.
    """
    parent, slash, name = path.rpartition("/")
    span = _step_span(name)
    if span is None:
        return path
    numbers = {span, *(match.span() for match in _DECIMAL.finditer(name))}
    for pattern in _STEPS:
        numbers |= {match.span(1) for match in pattern.finditer(name.lower())}
    series, end = "", 0
    for first, last in sorted(numbers):
        if first >= end:
            series, end = f"{series}{name[end:first]}#", last
    return f"{parent}{slash}{_NAME_VERSION.sub('', series + name[end:])}"


def _step_span(name: str) -> tuple[int, int] | None:
    lower = name.lower()
    for pattern in _STEPS:
        if matches := list(pattern.finditer(lower)):
            return _checked_span(lower, matches[-1].span(1))
    stem = _SUFFIXES.sub("", lower)
    stem = _DATE.sub(lambda match: "." * len(match[0]), stem)
    match = _LAST_NUMBER.search(stem) or _ONLY_NUMBER.search(stem)
    if match is None or match["word"] in _NO_STEPS:
        return None
    return match.span("number")


def _checked_span(name: str, span: tuple[int, int]) -> tuple[int, int] | None:
    return span if int(name[slice(*span)]) <= _MAX_STEP else None


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

    def forget_all_but(self, units: Sequence[Unit]) -> None:
        """Drop the times of units that are gone."""
        names = {unit.name for unit in units}
        self._last_seen = {name: entry for name, entry in self._last_seen.items() if name in names}


def files_open_for_writing(folder: Path) -> set[str]:
    """Files in the folder, by relative path, that a process visible to us has open for writing."""
    root = os.path.realpath(folder) + "/"
    open_files = set()
    for entry in Path("/proc").iterdir():
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


class _Tree:
    """The watched folder, and what is to be saved of it."""

    def __init__(self, folder: Path, rules: Rules) -> None:
        self.folder, self.rules = folder, rules
        self._prefix = os.path.realpath(folder) + "/"

    def file(self, path: Path) -> File | None:
        """The file's snapshot, unless it is none, or not to be saved."""
        relative = path.relative_to(self.folder).as_posix()
        stat = path.lstat()
        if not _is_regular(stat.st_mode) or not self.rules.wants(relative):
            return None
        return File(
            path=relative,
            size=stat.st_size,
            changed_ns=max(stat.st_mtime_ns, stat.st_ctime_ns),
            inode=stat.st_ino,
            modified_ns=stat.st_mtime_ns,
            mode=stat.st_mode & 0o777,
            names=stat.st_nlink,
        )

    def link(self, path: Path) -> Link | None:
        """The link, unless it is not to be saved."""
        relative = path.relative_to(self.folder).as_posix()
        target = str(path.readlink())
        place = os.path.normpath(os.path.join(os.path.realpath(path.parent), target))  # noqa: PTH118
        if not self.rules.wants(relative):
            return None
        if target.startswith("/") and f"{place}/".startswith(self._prefix):
            # The folder is elsewhere on the next machine.
            target = os.path.relpath(place, os.path.realpath(path.parent))
        return Link(relative, target, path.lstat().st_ctime_ns)

    def directory(self, path: Path) -> Directory | None:
        """The empty directory, unless it is not to be saved."""
        relative = path.relative_to(self.folder).as_posix()
        if not self.rules.wants(relative):
            return None
        return Directory(relative, path.lstat().st_ctime_ns)


def _units_in(tree: _Tree, container: Path) -> Iterator[Unit]:
    entries = _entries(container)
    if not entries and container != tree.folder:
        with contextlib.suppress(FileNotFoundError):
            if step_number(container.name) is None and (empty := tree.directory(container)):
                yield Unit(empty.path, directories=(empty,))
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.name in IGNORED_FOLDERS:
            continue
        path = Path(entry.path)
        with contextlib.suppress(FileNotFoundError):  # the program removes its old ones
            if _matches_any(entry.name, _TEMPORARY) or entry.name.endswith(UNFINISHED):
                continue
            if entry.is_dir(follow_symlinks=False) and not _is_checkpoint_folder(path):
                yield from _units_in(tree, path)
            elif unit := _unit(tree, path):
                yield unit


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _unit(tree: _Tree, path: Path) -> Unit | None:
    files: list[File] = []
    links: list[Link] = []
    directories: list[Directory] = []
    for entry in _below(path):
        if entry.is_symlink():
            links += filter(None, [tree.link(entry)])
        elif entry.is_dir():
            directories += filter(None, [tree.directory(entry)])
        else:
            files += filter(None, [tree.file(entry)])
    if not files and not links:
        return None
    return Unit(
        name=path.relative_to(tree.folder).as_posix(),
        files=tuple(sorted(files, key=lambda file: file.path)),
        links=tuple(sorted(links, key=lambda link: link.path)),
        directories=tuple(sorted(directories, key=lambda directory: directory.path)),
    )


def _below(path: Path) -> Iterator[Path]:
    """Files, links and empty directories below a folder; or itself, if it is none."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for parent, folders, names in os.walk(path):
        if not folders and not names:
            yield Path(parent)
        folders[:] = [name for name in folders if name not in IGNORED_FOLDERS]
        links = [name for name in folders if Path(parent, name).is_symlink()]
        for name in (*names, *links):
            yield Path(parent, name)


def _is_checkpoint_folder(path: Path) -> bool:
    number, has_word = step_number(path.name), _has_step_word(path.name)
    entries = _entries(path)
    is_marked = not MARKERS.isdisjoint(entry.name for entry in entries)
    folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    if number is not None and has_word and is_marked:
        return True
    if number is not None and (has_word or _NUMBERED_FOLDER.fullmatch(path.name)):
        # A run's folder may have a number, too: then its checkpoints have others.
        return not any(
            _has_step_word(folder.name) and step_number(folder.name) not in (None, number)
            for folder in folders
        )
    # A run's own folder may have a config.json beside the folder of its checkpoints.
    return is_marked and not any(_is_checkpoint_folder(Path(folder.path)) for folder in folders)


def _has_step_word(name: str) -> bool:
    return any(pattern.search(name.lower()) for pattern in _STEPS)


def _is_regular(mode: int) -> bool:
    return mode & 0o170000 == 0o100000  # S_IFREG


def _matches(path: str, pattern: str) -> bool:
    if "/" in pattern:
        return fnmatchcase(path, pattern.removeprefix("./").rstrip("/")) or fnmatchcase(
            path, pattern.removeprefix("./").rstrip("/") + "/*"
        )
    return any(fnmatchcase(part, pattern) for part in path.split("/"))


def _matches_any(path: str, patterns: Sequence[str]) -> bool:
    name = path.rpartition("/")[2]
    return any(fnmatchcase(name, pattern) for pattern in patterns)
