"""A cache on its way from the store: every byte is verified, and what is there already is never
written over."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from providers.stores.base import NotFoundError
from trainer.caches.index import CachedFile, Index, Part, part_key
from trainer.caches.tree import NEW, File
from trainer.caches.upload import Cache
from trainer.mounts.retries import tried

AT_ONCE = 8  # parts on their way down
TRIES, PAUSE_S = 3, 0.5


class NoRoomError(Exception):
    """The disk cannot take it."""


@dataclass(frozen=True)
class Restored:
    """How many files and bytes are there now that were not; of `damaged` ones the store has not
    what its index says."""

    files: int
    bytes: int
    damaged: int


def restore(cache: Cache, pause: Callable[[float], None] = time.sleep) -> Restored:
    """Put into its folder what is not there. Raises NoRoomError, WireError, StoreError, OSError;
    nothing of it is in the folder then."""
    index, _ = cache.index()
    if index is None:
        return Restored(0, 0, 0)
    missing = [one for one in index.files if not os.path.lexists(cache.folder / one.file.path)]
    cache.folder.mkdir(parents=True, exist_ok=True)
    wanted, free = sum(one.file.size for one in missing), shutil.disk_usage(cache.folder).free
    if wanted > free:
        raise NoRoomError(f"it has {wanted} bytes, and the disk has room for {free}")
    new = cache.folder / NEW
    shutil.rmtree(new, ignore_errors=True)  # of an agent that was killed
    new.mkdir(mode=0o700)
    try:
        damaged = _fetch(cache, index, missing, new, pause)
        placed = [
            one.file
            for number, one in enumerate(missing)
            if number not in damaged and _place(cache.folder, new / str(number), one.file)
        ]
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return Restored(len(placed), sum(file.size for file in placed), len(damaged))


def _fetch(
    cache: Cache, index: Index, missing: list[CachedFile], new: Path, pause: Callable[[float], None]
) -> set[int]:
    """The files of `missing` by their numbers; those of which not all is there."""
    uses: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for number, one in enumerate(missing):
        if one.file.link:
            continue
        (new / str(number)).touch(mode=0o600)
        start = 0
        for piece in one.pieces:
            uses[piece.part].append((number, start, piece.at, piece.size))
            start += piece.size

    def fetch(part: int) -> set[int]:
        data = _get(cache, index.parts[part], pause)
        if data is None:
            return {number for number, *_ in uses[part]}
        for number, start, at, size in uses[part]:
            with (new / str(number)).open("r+b") as file:
                file.seek(start)
                file.write(data[at : at + size])
        return set()

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cache") as pool:
        return set().union(*pool.map(fetch, uses))


def _get(cache: Cache, part: Part, pause: Callable[[float], None]) -> memoryview | None:
    """None for one that is not there, or is another one. Raises StoreError."""
    key = part_key(cache.job_id, part)
    try:
        data = tried(lambda: cache.store.get(key)[0], pause, TRIES, PAUSE_S)
    except NotFoundError:
        return None
    return memoryview(data) if hashlib.sha256(data).hexdigest() == part.digest else None


def _place(folder: Path, made: Path, file: File) -> bool:
    """Whether it is there now and was not; in one step, so that what the user has stays."""
    target = folder / file.path
    try:
        if not target.parent.resolve().is_relative_to(folder.resolve()):
            return False  # by a link of the user's own
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.link:
            target.symlink_to(file.link)
            return True
        made.chmod(file.mode | 0o600)
        os.utime(made, ns=(file.mtime_us * 1000, file.mtime_us * 1000))
        os.link(made, target)
    except (FileExistsError, NotADirectoryError):
        return False
    return True
