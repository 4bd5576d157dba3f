"""Upload the files of a checkpoint unit to the store and download them again.

Each file is one stream, with digests per chunk. Files are read twice, for the digests and for the
upload; if the two differ, the program is still writing and the unit is not saved.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from providers.stores.base import ObjectStore
from spotd.wire import Manifest, Shard, Stream, WireError, read_count, read_field, read_list, shown
from trainer.directory.units import Unit, is_unit
from trainer.saver.reader import Chunk, Range, chunks_in, read_chunk
from trainer.saver.streams import CHUNK_BYTES, chunk_ranges, shard_key, shard_ranges

KIND = "sha256"  # digest algorithm; the agent has only the standard library
MAX_PARALLEL = 4  # shard uploads, chunk downloads
STATE = "directory"  # key in a manifest's state that lists the unit's files


class ChangedError(Exception):
    """The program changed or removed files while they were saved."""


@dataclass(frozen=True)
class ArchivedUnit:
    """A unit as described by a manifest.

    `paths` are relative to the watched folder, one per stream. `number` is the number in the unit's
    name, None if there is none.
    """

    unit: str
    number: int | None
    paths: tuple[str, ...]


def digest_unit(folder: Path, unit: Unit) -> tuple[Stream, ...]:
    """Read the unit's files; return their streams, whose shards have no keys yet.

    Raises ChangedError, OSError.
    """
    return tuple(_digest_file(folder / file.path, file.size) for file in unit.files)


def assign_keys(streams: tuple[Stream, ...], folder: str, store: str = "") -> tuple[Stream, ...]:
    """Give the shards of the streams keys below `folder` in the store with that URL."""
    return tuple(
        Stream(
            tuple(
                Shard(
                    shard_key(folder, number, part),
                    shard.size,
                    shard.chunk,
                    shard.digests,
                    KIND,
                    store,
                )
                for part, shard in enumerate(stream.shards)
            )
        )
        for number, stream in enumerate(streams)
    )


def upload(store: ObjectStore, folder: Path, unit: Unit, streams: tuple[Stream, ...]) -> None:
    """Read the unit's files again and upload them as `streams`.

    Raises ChangedError, OSError, StoreError.
    """
    with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="upload") as pool:
        uploads = []
        for file, stream in zip(unit.files, streams, strict=True):
            start = 0
            for shard in stream.shards:
                uploads.append(pool.submit(_upload_shard, store, folder / file.path, start, shard))
                start += shard.size
        try:
            for future in uploads:
                future.result()
        except BaseException:
            for future in uploads:
                future.cancel()
            raise


def download(store: ObjectStore, manifest: Manifest, unit: ArchivedUnit, folder: Path) -> None:
    """Download and verify the unit's files into `folder`.

    Raises CorruptError, StoreError, OSError.
    """
    with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="download") as pool:
        for number, (path, stream) in enumerate(zip(unit.paths, manifest.streams, strict=True)):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                os.truncate(file.fileno(), stream.size)
                write = _writer(store, file.fileno())
                # `map` raises the first error; leaving the pool waits for running downloads.
                for _ in pool.map(write, chunks_in(manifest, Range(number, 0, stream.size))):
                    pass


def manifest_state(unit: Unit, number: int | None) -> dict[str, object]:
    """The unit's entry for the state of its manifest."""
    paths = [file.path for file in unit.files]
    return {STATE: {"unit": unit.name, "number": number, "paths": paths}}


def parse_archived(manifest: Manifest) -> ArchivedUnit | None:
    """Parse the unit in a manifest; None if it has none, like the final manifest of a job.

    Raises WireError for paths outside the unit.
    """
    if STATE not in manifest.state:
        return None
    body = read_field(manifest.state, STATE, dict)
    name, paths = read_field(body, "unit", str), tuple(read_list(body, "paths", str))
    if "/" in name or not is_unit(name) or len(paths) != len(manifest.streams):
        raise WireError(f"{shown(name)} with {len(paths)} paths is not a unit of this checkpoint")
    for path in paths:
        parts = path.split("/")
        if parts[0] != name or any(part in {"", ".", ".."} or "\0" in part for part in parts):
            raise WireError(f"{shown(path)} is not a path in {shown(name)}")
    number = None if body.get("number") is None else read_count(body, "number")
    return ArchivedUnit(name, number, paths)


def _digest_file(path: Path, size: int) -> Stream:
    shards = []
    with _open_file(path) as read:
        for start, end in shard_ranges(size):
            digests = tuple(
                hashlib.sha256(read(first, last)).hexdigest()
                for first, last in chunk_ranges(start, end)
            )
            shards.append(Shard("", end - start, CHUNK_BYTES, digests, KIND))
    return Stream(tuple(shards))


def _upload_shard(store: ObjectStore, path: Path, start: int, shard: Shard) -> None:
    with _open_file(path) as read:
        data = memoryview(read(start, start + shard.size))
    for number, digest in enumerate(shard.digests):
        at = number * shard.chunk
        if hashlib.sha256(data[at : at + shard.chunk]).hexdigest() != digest:
            raise ChangedError(f"{path.name} is still written to")
    store.put(shard.key, data)


@contextmanager
def _open_file(path: Path) -> Iterator[Callable[[int, int], bytes]]:
    """Yield a function that reads bytes `first` to `last` (exclusive) of the file.

    Both raise ChangedError if the file is missing or too short.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise ChangedError(f"{path.name} was removed") from None

    def read(first: int, last: int) -> bytes:
        file.seek(first)
        data = file.read(last - first)
        if len(data) != last - first:
            raise ChangedError(f"{path.name} has become shorter")
        return data

    with file:
        yield read


def _writer(store: ObjectStore, descriptor: int) -> Callable[[Chunk], None]:
    def write(chunk: Chunk) -> None:
        data, done = memoryview(read_chunk(store, chunk)), 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], chunk.start + done)

    return write
