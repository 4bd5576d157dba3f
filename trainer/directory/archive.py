"""A unit's files as objects of the store, and back: a stream for each file, digested in chunks.

What is put was read and digested twice, and is what both readings found: a file that a program
still writes to never becomes a checkpoint.
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
from trainer.saver import streams
from trainer.saver.reader import Chunk, Range, chunks_in, read_chunk

KIND = "sha256"  # of the digests: the agent has the standard library alone
AT_ONCE = 4  # shards on their way up, chunks on their way down
STATE = "directory"  # of a manifest's JSON part, what says which files it is of


class ChangedError(Exception):
    """The program has changed, or removed, what was about to be saved."""


@dataclass(frozen=True)
class ArchivedUnit:
    """What a manifest says of its unit. `paths` are relative to the watched folder, one for each
    stream; `number` is the unit's own, None where its name has none."""

    unit: str
    number: int | None
    paths: tuple[str, ...]


def digest(folder: Path, unit: Unit) -> tuple[Stream, ...]:
    """Its files as they are now, as streams without a place in the store yet. Raises ChangedError,
    OSError."""
    return tuple(_digest_file(folder / file.path, file.size) for file in unit.files)


def place(found: tuple[Stream, ...], folder: str, store: str = "") -> tuple[Stream, ...]:
    """These streams where they are to lie, below `folder` of the store of that URL."""
    return tuple(
        Stream(
            tuple(
                Shard(
                    streams.shard_key(folder, number, part),
                    shard.size,
                    shard.chunk,
                    shard.digests,
                    KIND,
                    store,
                )
                for part, shard in enumerate(stream.shards)
            )
        )
        for number, stream in enumerate(found)
    )


def put(store: ObjectStore, folder: Path, unit: Unit, placed: tuple[Stream, ...]) -> None:
    """Read it again, and write it to the store that it is placed in. Raises ChangedError, OSError,
    StoreError."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="put") as pool:
        jobs = []
        for file, stream in zip(unit.files, placed, strict=True):
            start = 0
            for shard in stream.shards:
                jobs.append(pool.submit(_put_shard, store, folder / file.path, start, shard))
                start += shard.size
        try:
            for job in jobs:
                job.result()
        except BaseException:
            for job in jobs:
                job.cancel()
            raise


def fetch(store: ObjectStore, manifest: Manifest, saved: ArchivedUnit, folder: Path) -> None:
    """All files below `folder`, verified. Raises CorruptError, StoreError, OSError."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
        for number, (path, stream) in enumerate(zip(saved.paths, manifest.streams, strict=True)):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                os.truncate(file.fileno(), stream.size)
                write = _writer(store, file.fileno())
                # `map` hands on the first error; what was begun ends with the pool.
                for _ in pool.map(write, chunks_in(manifest, Range(number, 0, stream.size))):
                    pass


def state_of(unit: Unit, number: int | None) -> dict[str, object]:
    """The JSON part of its manifest."""
    paths = [file.path for file in unit.files]
    return {STATE: {"unit": unit.name, "number": number, "paths": paths}}


def read_saved(manifest: Manifest) -> ArchivedUnit | None:
    """None for a manifest of no unit, as the one that ends a job. Raises WireError for paths that
    lead anywhere but into the unit."""
    if STATE not in manifest.state:
        return None
    body = read_field(manifest.state, STATE, dict)
    name, paths = read_field(body, "unit", str), tuple(read_list(body, "paths", str))
    if "/" in name or not is_unit(name) or len(paths) != len(manifest.streams):
        raise WireError(f"{shown(name)} with {len(paths)} paths is no unit of this checkpoint")
    for path in paths:
        parts = path.split("/")
        if parts[0] != name or any(part in {"", ".", ".."} or "\0" in part for part in parts):
            raise WireError(f"{shown(path)} is no path in {shown(name)}")
    number = None if body.get("number") is None else read_count(body, "number")
    return ArchivedUnit(name, number, paths)


def _digest_file(path: Path, size: int) -> Stream:
    shards = []
    with _opened(path) as read:
        for start, end in streams.cuts_of(size):
            digests = tuple(
                hashlib.sha256(read(first, last)).hexdigest()
                for first, last in streams.chunks_of(start, end)
            )
            shards.append(Shard("", end - start, streams.CHUNK_BYTES, digests, KIND))
    return Stream(tuple(shards))


def _put_shard(store: ObjectStore, path: Path, start: int, shard: Shard) -> None:
    with _opened(path) as read:
        data = memoryview(read(start, start + shard.size))
    for number, wanted in enumerate(shard.digests):
        at = number * shard.chunk
        if hashlib.sha256(data[at : at + shard.chunk]).hexdigest() != wanted:
            raise ChangedError(f"{path.name} is still written to")
    store.put(shard.key, data)


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[int, int], bytes]]:
    """Gives the file's bytes from one to another. Raises ChangedError when they are not there."""
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
