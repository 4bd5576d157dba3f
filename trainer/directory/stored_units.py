"""The units of a save of the program's folder, as the store has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spotd.wire import Manifest, SavedFile, SavedFolder, SavedLink, Stream, streams_by_path
from trainer.directory.units import File, Unit, series_name, step_number

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

    @property
    def modified_us(self) -> int:
        """Modification time of its newest file; 0 without files."""
        return max((file.modified_us for file in self.files), default=0)

    def has_same_content(self, other: StoredUnit | None) -> bool:
        """Whether both have equal bytes under equal names."""
        return other is not None and self.content() == other.content()

    def content(self) -> tuple[object, ...]:
        """Names and digests."""
        paths = [file.path for file in self.files]
        return self.name, paths, [identity_of(stream) for stream in self.streams], self.links

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


def stored_unit(manifest: Manifest, saved: SavedFolder, name: str) -> StoredUnit:
    streams = streams_by_path(manifest, saved)
    files = tuple(file for file in saved.files if file.unit == name)
    number = step_number(name)
    if number is None and (len(files) != 1 or files[0].path != name):
        number = saved.number if name == saved.newest else None
    return StoredUnit(
        name=name,
        files=files,
        streams=tuple(streams[file.path] for file in files),
        links=tuple(link for link in saved.links if link.unit == name),
        number=number,
    )


def content_of(
    units: Iterable[StoredUnit], newest: str, number: int | None
) -> tuple[tuple[Stream, ...], dict[str, Any]]:
    """The streams and the state of a manifest."""
    units = sorted(units, key=lambda unit: unit.modified_us)
    files = tuple(file for unit in units for file in unit.files)
    links = tuple(link for unit in units for link in unit.links)
    streams = tuple(stream for unit in units for stream in unit.streams)
    return streams, SavedFolder(newest, number, files, links).to_state()


def newest_of(units: Iterable[StoredUnit]) -> StoredUnit:
    """The most recently modified unit: of those with a number, or else of all with files.

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
