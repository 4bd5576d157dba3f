"""What lies below an address of a bucket, copied into a folder: in parallel, verified by size and
version tag, and what is there already as it is in the bucket not again."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from providers.stores.base import ObjectInfo, ObjectStore
from providers.stores.dataset_copy import is_data
from trainer.mounts.retries import tried

RANGE_BYTES = 16 << 20
AT_ONCE = 8  # ranges on their way
TRIES, PAUSE_S = 10, 3.0  # of one range: a store that is away for a moment ends no job
_NEW = ".spotd-new"
Pause = Callable[[float], None]


class MountError(Exception):
    """It cannot be copied; the text says why, and what to do."""


@dataclass(frozen=True)
class Copied:
    """How many objects were copied, of how many there are, and their bytes."""

    files: int
    of: int
    bytes: int


class Copy:
    """Of all that `store` has into `folder`. `note` is a file that tells a later copy into the same
    folder what is there, and `came(size)` hears of the bytes that arrive, in any thread."""

    def __init__(
        self,
        store: ObjectStore,
        folder: Path,
        note: Path,
        pause: Callable[[float], None] = time.sleep,
        came: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self._store, self.folder, self._note, self._pause = store, folder, note, pause
        self._came = came

    def run(self) -> Copied:
        """Raises MountError, StoreError, OSError; run again, it goes on where it was."""
        objects = self._listed()
        if not objects:
            raise MountError(f"there is nothing below {self._store.url}: look at the address")
        known = self._known()
        missing = [one for one in objects.values() if not self._is_there(one, known)]
        size = sum(one.size for one in missing)
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if size > free:
            text = f"{self._store.url} has {size} bytes to copy, and the disk has room for {free}"
            raise MountError(f"{text}: ask for more with disk_size")
        try:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="copy") as pool:
                for one in missing:
                    self._copy(one, pool)
                    known[one.key] = [one.size, one.tag, _written_us(self.folder / one.key)]
        finally:
            self._remember({key: known[key] for key in objects if key in known})
        then = self._listed()
        changed = [one.key for one in missing if _is_other(one, then.get(one.key))]
        if changed:
            text = f"{changed[0]} of {self._store.url} changed while it was copied"
            raise MountError(f"{text}: let the job begin when nobody writes there")
        return Copied(len(missing), len(objects), size)

    def _listed(self) -> dict[str, ObjectInfo]:
        return {
            one.key: one for one in tried(lambda: list(self._files()), self._pause, TRIES, PAUSE_S)
        }

    def _files(self) -> Iterator[ObjectInfo]:
        """Without what consoles make for empty folders."""
        for one in self._store.list(""):
            if is_data(one):
                yield one

    def _is_there(self, one: ObjectInfo, known: dict[str, list[object]]) -> bool:
        path = self.folder / one.key
        return bool(one.tag) and known.get(one.key) == [one.size, one.tag, _written_us(path)]

    def _copy(self, one: ObjectInfo, pool: ThreadPoolExecutor) -> None:
        target = self.folder / one.key
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f".{target.name[:200]}{_NEW}")
        try:
            with new.open("wb") as file:
                os.truncate(file.fileno(), one.size)

                def fetch(start: int) -> None:
                    size = min(RANGE_BYTES, one.size - start)
                    get = lambda: self._store.get_range(one.key, start, size)  # noqa: E731
                    data = memoryview(tried(get, self._pause, TRIES, PAUSE_S))
                    self._came(len(data))
                    if len(data) != size:
                        raise MountError(f"{one.key} of {self._store.url} became shorter")
                    while data:
                        written = os.pwrite(file.fileno(), data, start)
                        data, start = data[written:], start + written

                for _ in pool.map(fetch, range(0, one.size, RANGE_BYTES)):
                    pass
            new.replace(target)
        finally:
            new.unlink(missing_ok=True)

    def _known(self) -> dict[str, list[object]]:
        with suppress(OSError, ValueError):
            found = json.loads(self._note.read_bytes())
            return dict(found) if isinstance(found, dict) else {}
        return {}

    def _remember(self, known: dict[str, list[object]]) -> None:
        """Without it, all is copied again."""
        with suppress(OSError):
            self._note.parent.mkdir(parents=True, exist_ok=True)
            new = self._note.with_suffix(".new")
            new.write_text(json.dumps(known))
            new.replace(self._note)


def _is_other(one: ObjectInfo, then: ObjectInfo | None) -> bool:
    return then is None or (one.size, one.tag) != (then.size, then.tag)


def _written_us(path: Path) -> int:
    """When; -1 where it is not there."""
    try:
        return path.stat().st_mtime_ns // 1000
    except OSError:
        return -1
