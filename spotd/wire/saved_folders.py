"""The files of a program's folder, as the state of a checkpoint's manifest describes them.

A manifest with such a description has one stream for each file, in the same order. Shards may lie
in the folder of an earlier checkpoint of the job: a file that has not changed is stored once.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spotd.wire.checkpoints import Manifest, Shard, Stream
from spotd.wire.fields import WireError, read_count, read_field, read_list, shown

_KEY = "directory"  # in a manifest's state
_VERSION = 2  # version 1 described one unit, and had neither times nor links
_MODE = 0o644  # of a file of version 1
_DIRECTORY_MODE = 0o755


@dataclass(frozen=True)
class SavedFile:
    """A file. `path` is relative to the folder; `unit` is what it was saved with, or itself.

    `hard_link` is the path of an earlier file in the list that is a name of the same file.
    """

    path: str
    unit: str
    modified_us: int
    mode: int = _MODE
    hard_link: str = ""


@dataclass(frozen=True)
class SavedLink:
    """A symbolic link. A `target` that lies in the folder is relative to the link."""

    path: str
    unit: str
    target: str

    @property
    def leads_out(self) -> bool:
        """Whether the target lies outside of the folder, where nothing is saved."""
        place = posixpath.normpath(posixpath.join(posixpath.dirname(self.path), self.target))
        return self.target.startswith("/") or place.split("/")[0] == ".."


@dataclass(frozen=True)
class SavedDirectory:
    """A directory. `unit` is what an empty one was saved with; "" if saved files lie below it."""

    path: str
    unit: str
    modified_us: int
    mode: int = _DIRECTORY_MODE


@dataclass(frozen=True)
class SavedFolder:
    """A folder as it was when a checkpoint was saved.

    `newest` is the unit whose change caused the save, and `number` the step in its name: without
    one, the checkpoint's step is the count of the saves.
    """

    newest: str
    number: int | None
    files: tuple[SavedFile, ...] = ()
    links: tuple[SavedLink, ...] = ()
    directories: tuple[SavedDirectory, ...] = ()  # a save of an older agent names none

    @property
    def entries(self) -> tuple[SavedFile | SavedLink, ...]:
        """All files, then all links."""
        return (*self.files, *self.links)

    @property
    def units(self) -> tuple[str, ...]:
        """Names of all units, in the order of the files, the links, then the directories."""
        named = [*(entry.unit for entry in self.entries), *(d.unit for d in self.directories)]
        return tuple(dict.fromkeys(filter(None, named)))

    def to_state(self) -> dict[str, Any]:
        """Return the entry for the state of a manifest."""
        body = asdict(self)
        for file in body["files"]:  # there may be many, and few are hard links
            if not file["hard_link"]:
                del file["hard_link"]
        return {_KEY: {"version": _VERSION, **body}}


def parse_saved_folder(manifest: Manifest) -> SavedFolder | None:
    """Parse the description in a manifest; None if it has none.

    Raises WireError for paths that lead out of the folder.
    """
    if _KEY not in manifest.state:
        return None
    body = read_field(manifest.state, _KEY, dict)
    saved = _read_folder(body) if "version" in body else _read_v1(body, manifest.created_at_us)
    if len(saved.files) != len(manifest.streams):
        raise WireError(f"{len(saved.files)} files in {len(manifest.streams)} streams")
    _check_paths(saved)
    return saved


def streams_by_path(manifest: Manifest, saved: SavedFolder) -> Mapping[str, Stream]:
    """Return the stream of each file."""
    return {file.path: stream for file, stream in zip(saved.files, manifest.streams, strict=True)}


def shards_of_unit(manifest: Manifest, unit: str) -> tuple[Shard, ...]:
    """Return the shards of one unit of a folder, in order; all shards for "".

    Raises KeyError if the manifest has no such unit, WireError.
    """
    if not unit:
        return manifest.shards
    saved = parse_saved_folder(manifest)
    if saved is None or unit not in saved.units:
        raise KeyError(unit)
    return tuple(
        shard
        for file, stream in zip(saved.files, manifest.streams, strict=True)
        if file.unit == unit
        for shard in stream.shards
    )


def _read_folder(body: Mapping[str, Any]) -> SavedFolder:
    if body["version"] != _VERSION:
        raise WireError(f"a folder's description has version {shown(body['version'])}")
    files = tuple(
        SavedFile(
            path=read_field(item, "path", str),
            unit=read_field(item, "unit", str),
            modified_us=read_count(item, "modified_us"),
            mode=read_count(item, "mode") & 0o777,
            hard_link=read_field(item, "hard_link", str) if "hard_link" in item else "",
        )
        for item in read_list(body, "files", dict)
    )
    links = tuple(
        SavedLink(
            path=read_field(item, "path", str),
            unit=read_field(item, "unit", str),
            target=read_field(item, "target", str),
        )
        for item in read_list(body, "links", dict)
    )
    directories = tuple(
        SavedDirectory(
            path=read_field(item, "path", str),
            unit=read_field(item, "unit", str),
            modified_us=read_count(item, "modified_us"),
            mode=read_count(item, "mode") & 0o777,
        )
        for item in (read_list(body, "directories", dict) if "directories" in body else ())
    )
    return SavedFolder(
        newest=read_field(body, "newest", str),
        number=_read_number(body),
        files=files,
        links=links,
        directories=directories,
    )


def _read_v1(body: Mapping[str, Any], saved_at_us: int) -> SavedFolder:
    unit = read_field(body, "unit", str)
    files = (SavedFile(path, unit, saved_at_us) for path in read_list(body, "paths", str))
    return SavedFolder(unit, _read_number(body), tuple(files))


def _read_number(body: Mapping[str, Any]) -> int | None:
    return None if body.get("number") is None else read_count(body, "number")


def _check_paths(saved: SavedFolder) -> None:
    for entry in (*saved.entries, *saved.directories):
        if not _is_below(entry.path, entry.unit or entry.path.split("/")[0]):
            raise WireError(f"{shown(entry.path)} is no path in {shown(entry.unit)}")
    not_folders = {entry.path for entry in saved.entries}
    paths = [*not_folders, *(directory.path for directory in saved.directories)]
    if len(set(paths)) != len(saved.entries) + len(saved.directories):
        raise WireError("a path occurs twice in a folder's description")
    for path in paths:
        if not not_folders.isdisjoint(_parents(path)):
            raise WireError(f"{shown(path)} lies below a file or a link")
    for link in saved.links:
        if not link.target or "\0" in link.target:
            raise WireError(f"{shown(link.path)} links to {shown(link.target)}")
    earlier: set[str] = set()
    for file in saved.files:
        if file.hard_link and file.hard_link not in earlier:
            raise WireError(f"{shown(file.path)} is a hard link to {shown(file.hard_link)}")
        earlier.add(file.path)


def _is_below(path: str, unit: str) -> bool:
    parts: Iterable[str] = path.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        return False
    return bool(unit) and (path == unit or path.startswith(f"{unit}/"))


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path
