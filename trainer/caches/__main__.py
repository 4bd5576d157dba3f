"""`python -m trainer.caches restore|keep`: restore or save a job's caches, in a process of its own.

The agent starts it because the agent itself has no object store client and must not block. Input is
one line of JSON on stdin; the process ends when stdin closes. Output on stdout is one line of JSON
for each journal entry.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from providers.stores import open_store
from providers.stores.base import ConflictError, StoreError
from spotd.wire import WireError
from trainer.caches.restore import InsufficientSpaceError, restore
from trainer.caches.tree import File, TooManyFilesError, scan
from trainer.caches.upload import Cache, ChangedError, save

NICE = 19
SCANS = 3  # in the time without changes after which a cache is saved
Report = Callable[[Mapping[str, Any]], None]
_FAILED = (StoreError, WireError, InsufficientSpaceError, TooManyFilesError, OSError)


def restore_all(caches: list[Cache], report: Report) -> None:
    """Restore each cache. Failures are reported, and the program starts without that cache."""
    for cache in caches:
        started_s = time.monotonic()
        try:
            restored = restore(cache)
        except _FAILED as error:
            report({"status": "failed", "path": cache.path, "text": f"cannot be restored: {error}"})
            continue
        if restored.damaged:
            text = f"{restored.damaged} of its files are not in the store as they were saved"
            report({"status": "failed", "path": cache.path, "text": text})
        if restored.files:
            seconds = round(time.monotonic() - started_s, 3)
            counts = {"files": restored.files, "bytes": restored.bytes, "seconds": seconds}
            report({"status": "restored", "path": cache.path, **counts})


class CacheWatcher:
    """Saves one cache whenever it has changed and then stayed unchanged for `quiet_s`.

    A cache of more than `max_bytes` is not saved.
    """

    def __init__(
        self,
        cache: Cache,
        max_bytes: int,
        quiet_s: float,
        report: Report,
        should_continue: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache, self._max_bytes, self._quiet_s = cache, max_bytes, quiet_s
        self._report, self._should_continue, self._monotonic = report, should_continue, monotonic
        self._scanned: tuple[File, ...] | None = None
        self._unchanged_since_s = 0.0
        self._saved: tuple[File, ...] = ()
        self._last_error = ""

    def check(self) -> None:
        """Scan the cache and save it if due. A failure is reported once and retried."""
        try:
            files = scan(self._cache.folder)
            if files != self._scanned:
                self._scanned, self._unchanged_since_s = files, self._monotonic()
            elif (
                files != self._saved
                and self._monotonic() >= self._unchanged_since_s + self._quiet_s
            ):
                self._save(files)
        except (ChangedError, ConflictError):
            self._scanned = None  # retry after the next quiet period
        except _FAILED as error:
            self._fail(f"cannot be stored: {error}")
            self._scanned = None

    def _save(self, files: tuple[File, ...]) -> None:
        size = sum(file.size for file in files)
        if size > self._max_bytes:
            self._fail(
                f"has {size / 1e9:.3g} GB, more than the {self._max_bytes / 1e9:.3g} GB of "
                "spotd.cache.size: changes since the last save are not saved"
            )
            self._saved = files
            return
        started_s = self._monotonic()
        sent = save(self._cache, files, self._should_continue)
        self._saved, self._last_error = files, ""
        if sent:
            seconds = round(self._monotonic() - started_s, 3)
            counts = {"files": len(files), "bytes": sent, "seconds": seconds}
            self._report({"status": "kept", "path": self._cache.path, **counts})

    def _fail(self, text: str) -> None:
        if text != self._last_error:
            self._last_error = text
            self._report({"status": "failed", "path": self._cache.path, "text": text})


def main() -> int:
    """Restore once, or watch the caches until stdin closes; returns the exit code."""
    with suppress(OSError):
        os.nice(NICE)
    order = json.loads(sys.stdin.buffer.readline())
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    store = open_store(order["store_url"], order["store_options"])
    caches = [Cache(store, order["job_id"], path, Path(folder)) for path, folder in order["caches"]]
    if sys.argv[1:] == ["restore"]:
        restore_all(caches, _report)
        return 0
    quiet_s, should_continue = float(order["quiet_s"]), lambda: not ended.is_set()
    watchers = [
        CacheWatcher(cache, order["most"], quiet_s, _report, should_continue) for cache in caches
    ]
    while not ended.wait(quiet_s / SCANS):
        for watcher in watchers:
            watcher.check()
    return 0


def _report(data: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.buffer.read()
    ended.set()
    if sys.argv[1:] == ["restore"]:
        os._exit(1)  # the agent has gone


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # even if a thread still waits for the store
