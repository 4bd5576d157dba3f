"""Upload the files of a watched folder to the store and download them again.

Each file is one stream, with digests per chunk. Files are read twice, for the digests and for the
upload; if the two differ, the program is still writing and the file is not saved.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from providers.stores.base import ObjectStore
from spotd.wire import Manifest, Shard, Stream
from trainer.directory.stored_units import Identity, StoredUnit, identity_of
from trainer.directory.units import File
from trainer.saver.reader import Chunk, Range, chunks_in, read_chunk
from trainer.saver.streams import CHUNK_BYTES, chunk_ranges, shard_key, shard_ranges

KIND = "sha256"  # digest algorithm; the agent has only the standard library
MAX_PARALLEL = 4  # shard uploads, chunk downloads


class ChangedError(Exception):
    """The program changed or removed files while they were saved."""


@dataclass
class DownloadedFiles:
    """The verified files of a download: the same content is downloaded once.

    `group` is the first name of a file that has several.
    """

    contents: dict[Path, Identity] = field(default_factory=dict)
    paths: dict[Identity, Path] = field(default_factory=dict)
    names: dict[tuple[str, Identity], Path] = field(default_factory=dict)

    def add(self, path: Path, content: Identity, group: str) -> None:
        """Remember a file."""
        self.contents[path] = content
        self.paths[content] = self.names[group, content] = path

    def place(self, target: Path, content: Identity, group: str) -> bool:
        """Make `target` a name of the file of this group, or a copy of one with that content.

        Returns False if there is none.
        """
        path = self.names.get((group, content))
        if path is not None and self.contents[path] == content:
            with suppress(OSError):  # removed, or a file system without hard links
                os.link(path, target)
                return True
        path = self.paths.get(content)
        if path is not None and self.contents[path] == content and path.exists():
            shutil.copyfile(path, target)
            return True
        return False


def digest_file(path: Path, size: int) -> Stream:
    """Read a file of `size` bytes; return its stream, whose shards have no keys yet.

    Raises ChangedError, OSError.
    """
    shards = []
    with _open_file(path) as read:
        for start, end in shard_ranges(size):
            digests = tuple(
                hashlib.sha256(read(first, last)).hexdigest()
                for first, last in chunk_ranges(start, end)
            )
            shards.append(Shard("", end - start, CHUNK_BYTES, digests, KIND))
    return Stream(tuple(shards))


def assign_keys(streams: Sequence[Stream], folder: str, store: str) -> tuple[Stream, ...]:
    """Give the shards of the streams keys below `folder` in the store with that URL."""
    return tuple(
        _keyed(stream, folder, number, store=store) for number, stream in enumerate(streams)
    )


def _keyed(stream: Stream, folder: str, number: int, *, store: str) -> Stream:
    return Stream(
        tuple(
            replace(shard, key=shard_key(folder, number, part), store=store)
            for part, shard in enumerate(stream.shards)
        )
    )


def upload_file(
    store: ObjectStore, path: Path, stream: Stream, *, folder: str, number: int
) -> Stream:
    """Upload a file below `folder` as the stream with this number; return the stream with its keys.

    Raises ChangedError, OSError, StoreError.
    """
    keyed, start = _keyed(stream, folder, number, store=""), 0
    for shard in keyed.shards:
        _upload_shard(store, path, start, shard)
        start += shard.size
    return keyed


def upload(
    store: ObjectStore, folder: Path, files: Sequence[File], streams: Sequence[Stream]
) -> None:
    """Read the files again and upload them as `streams`, one for each.

    Raises ChangedError, OSError, StoreError.
    """
    with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="upload") as pool:
        uploads = []
        for file, stream in zip(files, streams, strict=True):
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


def download(
    store: ObjectStore,
    manifest: Manifest,
    unit: StoredUnit,
    folder: Path,
    downloaded: DownloadedFiles,
) -> None:
    """Download and verify the files of a unit of a save into `folder`, and make its links.

    Files get the times and the mode that they had, and hard links to files in `downloaded` are hard
    links again. Raises CorruptError, StoreError, OSError.
    """
    part = replace(manifest, streams=unit.streams)
    with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="download") as pool:
        for number, (saved_file, stream) in enumerate(zip(unit.files, unit.streams, strict=True)):
            target, content = folder / saved_file.path, identity_of(stream)
            target.parent.mkdir(parents=True, exist_ok=True)
            group = saved_file.hard_link or saved_file.path
            if not downloaded.place(target, content, group):
                with target.open("wb") as file:
                    os.truncate(file.fileno(), stream.size)
                    write = _writer(store, file.fileno())
                    # `map` raises the first error; leaving the pool waits for running downloads.
                    for _ in pool.map(write, chunks_in(part, Range(number, 0, stream.size))):
                        pass
            target.chmod(saved_file.mode)
            modified_ns = saved_file.modified_us * 1000
            os.utime(target, ns=(modified_ns, modified_ns))
            downloaded.add(target, content, group)
    for link in unit.links:  # after the files: none is written through a link
        path = folder / link.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(link.target)
    for directory in unit.empty_directories:
        (folder / directory).mkdir(parents=True, exist_ok=True)


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
