"""The units of a save of the program's folder, as the store has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spotd.wire import (
    Manifest,
    SavedDirectory,
    SavedFile,
    SavedFolder,
    SavedLink,
    Stream,
    streams_by_path,
)
from trainer.directory.units import (
    CHECKPOINT_SUFFIXES,
    File,
    Unit,
    parents_of,
    series_name,
    step_number,
)

Identity = tuple[int, tuple[str, ...]]  # size and digests of a file's content


@dataclass(frozen=True)
class StoredUnit:
    """A unit as it is in the newest save.

    `unit` is the unit on the disk that this is; None if only the store is known.
    """

    name: str
    files: tuple[SavedFile, ...]
    streams: tuple[Stream, ...]
    links: tuple[SavedLink, ...]
    number: int | None
    unit: Unit | None = None
    empty_directories: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[str, ...]:
        """Paths of its files and links."""
        return (*(file.path for file in self.files), *(link.path for link in self.links))

    @property
    def modified_us(self) -> int:
        """Modification time of its newest file; 0 without files."""
        return max((file.modified_us for file in self.files), default=0)

    @property
    def is_checkpoint(self) -> bool:
        """Whether a program may resume from it, as far as names tell."""
        return self.number is not None or self.name.endswith(CHECKPOINT_SUFFIXES)

    def has_same_content(self, other: StoredUnit | None, *, times: bool = False) -> bool:
        """Whether both have equal bytes and modes under equal names, and equal `times`."""
        return other is not None and self.content(times=times) == other.content(times=times)

    def content(self, *, times: bool) -> tuple[object, ...]:
        """Names, modes and digests; also times, if they count."""
        files = [(file.path, file.mode, file.modified_us if times else 0) for file in self.files]
        digests = [identity_of(stream) for stream in self.streams]
        return self.name, files, digests, self.links, self.empty_directories

    def unchanged_stream(self, file: File) -> Stream | None:
        """The stream of a file that has not changed on the disk since."""
        if self.unit is None or file not in self.unit.files:
            return None
        return self.streams[[saved.path for saved in self.files].index(file.path)]

    def with_streams(self, uploaded: Mapping[Identity, Stream]) -> StoredUnit:
        """Itself, with the streams that were uploaded in place of those without keys."""
        return replace(
            self,
            streams=tuple(uploaded.get(identity_of(stream), stream) for stream in self.streams),
        )


def stored_units(manifest: Manifest, saved: SavedFolder) -> dict[str, StoredUnit]:
    """The units of a save, by name."""
    streams = streams_by_path(manifest, saved)
    files: dict[str, list[SavedFile]] = {name: [] for name in saved.units}
    links: dict[str, list[SavedLink]] = {name: [] for name in saved.units}
    empty: dict[str, list[str]] = {name: [] for name in saved.units}
    for file in saved.files:
        files[file.unit].append(file)
    for link in saved.links:
        links[link.unit].append(link)
    for directory in saved.directories:
        if directory.unit:
            empty[directory.unit].append(directory.path)
    return {
        name: StoredUnit(
            name=name,
            files=tuple(files[name]),
            streams=tuple(streams[file.path] for file in files[name]),
            links=tuple(links[name]),
            number=_stored_number(saved, name, files[name]),
            empty_directories=tuple(empty[name]),
        )
        for name in saved.units
    }


def _stored_number(saved: SavedFolder, name: str, files: Sequence[SavedFile]) -> int | None:
    if not files:
        return None
    number = step_number(name)
    if number is None and (len(files) != 1 or files[0].path != name):
        return saved.number if name == saved.newest else None
    return number


def content_of(
    units: Iterable[StoredUnit],
    newest: str,
    number: int | None,
    directories: Iterable[SavedDirectory] = (),
) -> tuple[tuple[Stream, ...], dict[str, Any]]:
    """The streams and the state of a manifest."""
    units = sorted(units, key=lambda unit: unit.modified_us)
    links = tuple(link for unit in units for link in unit.links)
    streams = tuple(stream for unit in units for stream in unit.streams)
    saved = SavedFolder(
        newest=newest,
        number=number,
        files=tuple(_files_with_hard_links(units)),
        links=links,
        directories=tuple(directories),
    )
    return streams, saved.to_state()


def _files_with_hard_links(units: Iterable[StoredUnit]) -> Iterator[SavedFile]:
    """The files of the units; of those that are names of one file, all but the first refer to it.

    A unit that is not on the disk as it was stored keeps the hard links that it had.
    """
    first: dict[object, str] = {}
    contents: dict[str, Identity] = {}
    for unit in units:
        on_disk = {file.path: file for file in unit.unit.files} if unit.unit else {}
        for saved, stream in zip(unit.files, unit.streams, strict=True):
            content, file = identity_of(stream), on_disk.get(saved.path)
            target = saved.hard_link
            if file is not None:
                target = ""
                if file.names > 1:
                    # A number is used again when its file is gone: the content must be the same.
                    target = first.setdefault((file.inode, content), saved.path)
            is_link = target != saved.path and contents.get(target) == content
            contents[saved.path] = content
            yield replace(saved, hard_link=target if is_link else "")


def directories_of(
    folder: Path, units: Iterable[StoredUnit], before: Iterable[SavedDirectory]
) -> tuple[SavedDirectory, ...]:
    """The directories that hold the units, and the empty ones, as they are on the disk.

    Those that are not there any more are as they were `before`.
    """
    units = list(units)
    empty = {path: unit.name for unit in units for path in unit.empty_directories}
    paths = {parent for unit in units for entry in unit.entries for parent in parents_of(entry)}
    known = {directory.path: directory for directory in before}
    directories = []
    paths |= {parent for path in empty for parent in (path, *parents_of(path))}
    for path in sorted(paths):
        unit = empty.get(path, "")
        try:
            stat = (folder / path).lstat()
        except OSError:
            if path in known:
                directories.append(replace(known[path], unit=unit))
            continue
        modified_us = max(stat.st_mtime_ns // 1000, 0)
        directories.append(SavedDirectory(path, unit, modified_us, stat.st_mode & 0o777))
    return tuple(directories)


def newest_of(units: Iterable[StoredUnit]) -> StoredUnit:
    """The most recently modified unit: of those with a number, or else of all.

    Of units with equal times, as copies have, it is the one with the highest number.
    """
    return max(
        units, key=lambda unit: (unit.number is not None, unit.modified_us, unit.number or 0)
    )


def highest_numbers(units: Iterable[StoredUnit]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for unit in units:
        if unit.number is not None:
            series = series_name(unit.name)
            numbers[series] = max(unit.number, numbers.get(series, 0))
    return numbers


def unchanged_since(unit: Unit | None, since_ns: int) -> Unit | None:
    return unit if unit is not None and unit.changed_ns <= since_ns else None


def identity_of(stream: Stream) -> Identity:
    digests = tuple(digest for shard in stream.shards for digest in shard.digests)
    return stream.size, digests
