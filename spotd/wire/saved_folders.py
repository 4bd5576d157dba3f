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


@dataclass(frozen=True)
class SavedFile:
    """A file. `path` is relative to the folder; `unit` is what it was saved with, or itself."""

    path: str
    unit: str
    modified_us: int
    mode: int = _MODE


@dataclass(frozen=True)
class SavedLink:
    """A symbolic link. `target` is relative to the link and lies in the folder."""

    path: str
    unit: str
    target: str


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

    @property
    def entries(self) -> tuple[SavedFile | SavedLink, ...]:
        """All files, then all links."""
        return (*self.files, *self.links)

    @property
    def units(self) -> tuple[str, ...]:
        """Names of all units, in the order of the files, then of the links."""
        return tuple(dict.fromkeys(entry.unit for entry in self.entries))

    def to_state(self) -> dict[str, Any]:
        """Return the entry for the state of a manifest."""
        return {_KEY: {"version": _VERSION, **asdict(self)}}


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
    return SavedFolder(read_field(body, "newest", str), _read_number(body), files, links)


def _read_v1(body: Mapping[str, Any], saved_at_us: int) -> SavedFolder:
    unit = read_field(body, "unit", str)
    files = (SavedFile(path, unit, saved_at_us) for path in read_list(body, "paths", str))
    return SavedFolder(unit, _read_number(body), tuple(files))


def _read_number(body: Mapping[str, Any]) -> int | None:
    return None if body.get("number") is None else read_count(body, "number")


def _check_paths(saved: SavedFolder) -> None:
    for entry in saved.entries:
        if not _is_below(entry.path, entry.unit):
            raise WireError(f"{shown(entry.path)} is no path in {shown(entry.unit)}")
    paths = [entry.path for entry in saved.entries]
    if len(set(paths)) != len(paths):
        raise WireError("a path occurs twice in a folder's description")
    not_folders = set(paths)
    for path in paths:
        if not not_folders.isdisjoint(_parents(path)):
            raise WireError(f"{shown(path)} lies below a file or a link")
    for link in saved.links:
        place = posixpath.normpath(posixpath.join(posixpath.dirname(link.path), link.target))
        if link.target.startswith("/") or place.split("/")[0] == ".." or "\0" in link.target:
            raise WireError(f"{shown(link.path)} links to {shown(link.target)}, out of the folder")


def _is_below(path: str, unit: str) -> bool:
    parts: Iterable[str] = path.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        return False
    return bool(unit) and (path == unit or path.startswith(f"{unit}/"))


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path
