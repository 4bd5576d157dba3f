"""Copy all objects under a bucket URL into a folder.

Copies in parallel, verifies sizes and version tags, and skips files that are already up to date.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from providers.stores.base import ObjectInfo, ObjectStore, StoreUnavailableError
from providers.stores.dataset_copy import list_data

T = TypeVar("T")


RANGE_BYTES = 16 << 20
MAX_PARALLEL = 8  # range requests
ATTEMPTS, PAUSE_S = 10, 3.0  # per range, so that a short outage of the store does not end the job
_NEW = ".spotd-new"
Sleep = Callable[[float], None]


class MountError(Exception):
    """The data cannot be copied or mounted; the message says why and what to do."""


@dataclass(frozen=True)
class CopyResult:
    """Number of objects copied, and their bytes."""

    files: int
    bytes: int


class Copy:
    """Copies the objects of `store` into `folder`.

    `state_file` records what was copied, for a later copy into the same folder. `on_bytes(size)` is
    called for each piece read, from any thread.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: Path,
        state_file: Path,
        sleep: Callable[[float], None] = time.sleep,
        on_bytes: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self._store, self.folder, self._state_file = store, folder, state_file
        self._sleep, self._on_bytes = sleep, on_bytes

    def run(self) -> CopyResult:
        """Copy what is missing or outdated. After an error a new run continues.

        Raises MountError, StoreError, OSError.
        """
        objects = self._list_objects()
        if not objects:
            raise MountError(f"there is nothing below {self._store.url}: check the URL")
        state = self._load_state()
        missing = [item for item in objects.values() if not self._is_current(item, state)]
        size = sum(item.size for item in missing)
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if size > free:
            message = (
                f"{self._store.url} has {size} bytes to copy, and the disk has room for {free}"
            )
            raise MountError(f"{message}: request more with disk_size")
        try:
            with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="copy") as pool:
                for item in missing:
                    self._copy(item, pool)
                    state[item.key] = [item.size, item.tag, _mtime_us(self.folder / item.key)]
        finally:
            self._save_state({key: state[key] for key in objects if key in state})
        current = self._list_objects()
        changed = [item.key for item in missing if _has_changed(item, current.get(item.key))]
        if changed:
            message = f"{changed[0]} of {self._store.url} changed while it was copied"
            raise MountError(f"{message}: start the job when nothing writes to it")
        return CopyResult(len(missing), size)

    def _list_objects(self) -> dict[str, ObjectInfo]:
        items = with_retries(lambda: list_data(self._store), self._sleep, ATTEMPTS, PAUSE_S)
        return {item.key: item for item in items}

    def _is_current(self, item: ObjectInfo, state: dict[str, list[object]]) -> bool:
        path = self.folder / item.key
        return bool(item.tag) and state.get(item.key) == [item.size, item.tag, _mtime_us(path)]

    def _copy(self, item: ObjectInfo, pool: ThreadPoolExecutor) -> None:
        target = self.folder / item.key
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f".{target.name[:200]}{_NEW}")
        try:
            with new.open("wb") as file:
                os.truncate(file.fileno(), item.size)

                def fetch(start: int) -> None:
                    size = min(RANGE_BYTES, item.size - start)
                    get = lambda: self._store.get_range(item.key, start, size)  # noqa: E731
                    data = memoryview(with_retries(get, self._sleep, ATTEMPTS, PAUSE_S))
                    self._on_bytes(len(data))
                    if len(data) != size:
                        raise MountError(
                            f"{item.key} of {self._store.url} was truncated while it was copied"
                        )
                    while data:
                        written = os.pwrite(file.fileno(), data, start)
                        data, start = data[written:], start + written

                for _ in pool.map(fetch, range(0, item.size, RANGE_BYTES)):
                    pass
            new.replace(target)
        finally:
            new.unlink(missing_ok=True)

    def _load_state(self) -> dict[str, list[object]]:
        with suppress(OSError, ValueError):
            state = json.loads(self._state_file.read_bytes())
            return dict(state) if isinstance(state, dict) else {}
        return {}

    def _save_state(self, state: dict[str, list[object]]) -> None:
        """Write the state file. Failures are ignored: the next copy then copies everything."""
        with suppress(OSError):
            self._state_file.parent.mkdir(parents=True, exist_ok=True)
            new = self._state_file.with_suffix(".new")
            new.write_text(json.dumps(state))
            new.replace(self._state_file)


def _has_changed(item: ObjectInfo, current: ObjectInfo | None) -> bool:
    return current is None or (item.size, item.tag) != (current.size, current.tag)


def _mtime_us(path: Path) -> int:
    """Modification time; -1 if the file does not exist."""
    try:
        return path.stat().st_mtime_ns // 1000
    except OSError:
        return -1


def with_retries(
    call: Callable[[], T], sleep: Callable[[float], None], attempts: int, pause_s: float
) -> T:
    """Return `call()`, retried on StoreUnavailableError up to `attempts` times, `pause_s` apart.

    Raises the last error.
    """
    try:
        return call()
    except StoreUnavailableError:
        if attempts <= 1:
            raise
    sleep(pause_s)
    return with_retries(call, sleep, attempts - 1, pause_s)
