"""`python -m trainer.caches restore|keep`: a job's caches, beside the agent, which has neither the
time nor the client of a bucket. What to do comes as a line of JSON on stdin; it ends when stdin
does. What became of it goes to stdout, a line of JSON for each journal entry."""

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
from trainer.caches.restore import NoRoomError, restore
from trainer.caches.tree import File, TooManyError, look
from trainer.caches.upload import Cache, ChangedError, save

NICE = 19
LOOKS = 3  # in the time after which what has not changed has settled
Tell = Callable[[Mapping[str, Any]], None]
_FAILED = (StoreError, WireError, NoRoomError, TooManyError, OSError)


def restore_all(caches: list[Cache], tell: Tell) -> None:
    """Each of them; what cannot be had is told, and the program does without."""
    for cache in caches:
        began_s = time.monotonic()
        try:
            found = restore(cache)
        except _FAILED as error:
            tell({"status": "failed", "path": cache.path, "text": f"cannot be restored: {error}"})
            continue
        if found.damaged:
            text = f"{found.damaged} of its files are not in the store as they were saved"
            tell({"status": "failed", "path": cache.path, "text": text})
        if found.files:
            seconds = round(time.monotonic() - began_s, 3)
            said = {"files": found.files, "bytes": found.bytes, "seconds": seconds}
            tell({"status": "restored", "path": cache.path, **said})


class Watch:
    """One cache, looked at again and again. `most` bytes of it are kept."""

    def __init__(
        self,
        cache: Cache,
        most: int,
        quiet_s: float,
        tell: Tell,
        go_on: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache, self._most, self._quiet_s = cache, most, quiet_s
        self._tell, self._go_on, self._monotonic = tell, go_on, monotonic
        self._seen: tuple[File, ...] | None = None
        self._since_s = 0.0
        self._done: tuple[File, ...] = ()
        self._told = ""

    def turn(self) -> None:
        """Save it, if it has changed and settled. A failure is told once, and tried again."""
        try:
            seen = look(self._cache.folder)
            if seen != self._seen:
                self._seen, self._since_s = seen, self._monotonic()
            elif seen != self._done and self._monotonic() >= self._since_s + self._quiet_s:
                self._save(seen)
        except (ChangedError, ConflictError):
            self._seen = None  # another time
        except _FAILED as error:
            self._fail(f"cannot be kept: {error}")
            self._seen = None

    def _save(self, seen: tuple[File, ...]) -> None:
        size = sum(file.size for file in seen)
        if size > self._most:
            self._fail(
                f"has {size / 1e9:.3g} GB, more than the {self._most / 1e9:.3g} GB of "
                "spotd.cache.size: what it has beyond the last save is not kept"
            )
            self._done = seen
            return
        began_s = self._monotonic()
        sent = save(self._cache, seen, self._go_on)
        self._done, self._told = seen, ""
        if sent:
            seconds = round(self._monotonic() - began_s, 3)
            said = {"files": len(seen), "bytes": sent, "seconds": seconds}
            self._tell({"status": "kept", "path": self._cache.path, **said})

    def _fail(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._tell({"status": "failed", "path": self._cache.path, "text": text})


def main() -> int:
    """Until it is done, or told to end."""
    with suppress(OSError):
        os.nice(NICE)
    order = json.loads(sys.stdin.buffer.readline())
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    store = open_store(order["store_url"], order["store_options"])
    caches = [Cache(store, order["job_id"], path, Path(folder)) for path, folder in order["caches"]]
    if sys.argv[1:] == ["restore"]:
        restore_all(caches, _tell)
        return 0
    quiet_s, go_on = float(order["quiet_s"]), lambda: not ended.is_set()
    watches = [Watch(cache, order["most"], quiet_s, _tell, go_on) for cache in caches]
    while not ended.wait(quiet_s / LOOKS):
        for watch in watches:
            watch.turn()
    return 0


def _tell(data: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.buffer.read()
    ended.set()
    if sys.argv[1:] == ["restore"]:
        os._exit(1)  # nobody waits for it


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # whatever a store that does not answer holds
