"""Restore a cache from the store. Verifies all data and never overwrites existing files."""

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
from trainer.caches.tree import STAGING_FOLDER, File
from trainer.caches.upload import Cache
from trainer.mounts.copy import with_retries

MAX_PARALLEL = 8  # parallel downloads
ATTEMPTS, PAUSE_S = 3, 0.5


class InsufficientSpaceError(Exception):
    """The disk has not enough free space."""


@dataclass(frozen=True)
class Restored:
    """Count and bytes of the restored files; `damaged` counts those with missing or wrong data."""

    files: int
    bytes: int
    damaged: int


def restore(cache: Cache, sleep: Callable[[float], None] = time.sleep) -> Restored:
    """Download the files that the folder lacks. On an error the folder is unchanged.

    Raises InsufficientSpaceError, WireError, StoreError, OSError.
    """
    index, _ = cache.index()
    if index is None:
        return Restored(0, 0, 0)
    missing = [
        cached for cached in index.files if not os.path.lexists(cache.folder / cached.file.path)
    ]
    cache.folder.mkdir(parents=True, exist_ok=True)
    size, free = sum(cached.file.size for cached in missing), shutil.disk_usage(cache.folder).free
    if size > free:
        raise InsufficientSpaceError(f"it has {size} bytes, and the disk has room for {free}")
    staging = cache.folder / STAGING_FOLDER
    shutil.rmtree(staging, ignore_errors=True)  # left by a killed agent
    staging.mkdir(mode=0o700)
    try:
        damaged = _fetch(cache, index, missing, staging, sleep)
        restored = [
            cached.file
            for number, cached in enumerate(missing)
            if number not in damaged
            and _move_into(cache.folder, staging / str(number), cached.file)
        ]
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Restored(len(restored), sum(file.size for file in restored), len(damaged))


def _fetch(
    cache: Cache,
    index: Index,
    missing: list[CachedFile],
    staging: Path,
    sleep: Callable[[float], None],
) -> set[int]:
    """Download each missing file as `staging`/<number>; return the numbers of damaged files."""
    uses: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for number, cached in enumerate(missing):
        if cached.file.link:
            continue
        (staging / str(number)).touch(mode=0o600)
        start = 0
        for piece in cached.pieces:
            uses[piece.part].append((number, start, piece.at, piece.size))
            start += piece.size

    def fetch(part: int) -> set[int]:
        data = _get_part(cache, index.parts[part], sleep)
        if data is None:
            return {number for number, *_ in uses[part]}
        for number, start, at, size in uses[part]:
            with (staging / str(number)).open("r+b") as file:
                file.seek(start)
                file.write(data[at : at + size])
        return set()

    with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="cache") as pool:
        return set().union(*pool.map(fetch, uses))


def _get_part(cache: Cache, part: Part, sleep: Callable[[float], None]) -> memoryview | None:
    """Download a part; None if it is missing or its digest is wrong. Raises StoreError."""
    key = part_key(cache.job_id, part)
    try:
        data = with_retries(lambda: cache.store.get(key)[0], sleep, ATTEMPTS, PAUSE_S)
    except NotFoundError:
        return None
    return memoryview(data) if hashlib.sha256(data).hexdigest() == part.digest else None


def _move_into(folder: Path, source: Path, file: File) -> bool:
    """Create the file in the folder atomically; False if something exists there already."""
    target = folder / file.path
    try:
        if not target.parent.resolve().is_relative_to(folder.resolve()):
            return False  # a link of the user leads out of the folder
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.link:
            target.symlink_to(file.link)
            return True
        source.chmod(file.mode | 0o600)
        os.utime(source, ns=(file.mtime_us * 1000, file.mtime_us * 1000))
        os.link(source, target)
    except (FileExistsError, NotADirectoryError):
        return False
    return True
