"""A data set in a store of this machine's own region, brought there once.

The first machine that wants it copies it here from where it is declared, puts that copy into the
region's store, and leaves a marker last, created and never overwritten; those after it copy from
there. Who copies says so by a lease that is moved by compare-and-swap, so that one of them does;
one that has died is followed by the next, which sends what is not there yet.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from providers.stores.base import ConflictError, NotFoundError, ObjectInfo, ObjectStore
from trainer.mounts.copying import AT_ONCE, LEASE, MARKER, Copy, MountError, Pause, is_file

POLL_S = 5.0
BEAT_S = 10.0
GONE_AFTER_S = 60.0  # without a beat, and whoever copied is gone


@dataclass(frozen=True)
class Fare:
    """What it costs to bring a data set over. `microusd_per_gb` None: nobody's price is known."""

    microusd_per_gb: int | None
    max_microusd: int

    def check(self, url: str, size: int) -> None:
        """Raises MountError above the cap."""
        if self.microusd_per_gb is None:
            raise MountError(
                f"what {size / 1e9:.3g} GB of {url} cost on their way here is on no list: say "
                "usd_per_gb in its [datasets.NAME], or let the job run beside the data"
            )
        cost = size / 1e9 * self.microusd_per_gb
        if cost > self.max_microusd:
            raise MountError(
                f"{size / 1e9:.3g} GB of {url} would cost ${cost / 1e6:.2f} on their way here, "
                f"more than its max_usd of ${self.max_microusd / 1e6:.2f}: raise that, or let the "
                "job run beside the data"
            )


class Staging:
    """Of `source` into `near`, and into `folder` here. `say(text)` hears what is being done."""

    def __init__(
        self,
        source: ObjectStore,
        near: ObjectStore,
        fare: Fare,
        copy_of: Callable[[ObjectStore], Copy],
        folder: Path,
        say: Callable[[str], None] = lambda _text: None,
        *,
        pause: Pause = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._near, self._fare = source, near, fare
        self._copy_of, self._folder, self._say = copy_of, folder, say
        self._pause, self._monotonic = pause, monotonic
        self._who = secrets.token_hex(8)
        self._tag: str | None = None

    def run(self) -> bool:
        """Have all of it in the folder; whether it was staged now, by us. Raises MountError,
        StoreError, OSError; run again, it goes on where it was."""
        if not self._is_staged():
            self._fare.check(self._source.url, sum(one.size for one in self._listed(self._source)))
        if self._await_turn():
            self._copy_of(self._near).run()
            return False
        ended = threading.Event()
        beats = threading.Thread(target=self._beat, args=(ended,), name="lease", daemon=True)
        beats.start()
        try:
            self._say(f"{self._source.url} is copied to {self._near.url}, once for this region")
            self._copy_of(self._source).run()
            self._send()
        finally:
            ended.set()
            beats.join()
        return True

    def _await_turn(self) -> bool:
        """True when it is staged, False when it is ours to do."""
        seen, since_s = "", self._monotonic()
        while True:
            if self._is_staged():
                return True
            if self._take(None if not seen or self._monotonic() < since_s + GONE_AFTER_S else seen):
                return False
            now = self._lease()
            if now != seen:
                seen, since_s = now, self._monotonic()
            self._pause(POLL_S)

    def _take(self, tag: str | None) -> bool:
        """The lease, if nobody has it, or it has still that version."""
        data = json.dumps({"who": self._who, "beat": secrets.token_hex(4)}).encode()
        try:
            self._tag = self._near.put_if(LEASE, data, tag)
        except (ConflictError, NotFoundError):
            return False
        return True

    def _lease(self) -> str:
        try:
            return self._near.get(LEASE)[1]
        except NotFoundError:
            return ""

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(BEAT_S):
            if not self._take(self._tag):
                return  # somebody thought that we were gone: what both send is the same

    def _is_staged(self) -> bool:
        try:
            self._near.get(MARKER)
        except NotFoundError:
            return False
        return True

    def _listed(self, store: ObjectStore) -> list[ObjectInfo]:
        return [one for one in store.list("") if is_file(one)]

    def _send(self) -> None:
        """What is not in the region's store yet; then the marker, when all of it is."""
        wanted = {one.key: one.size for one in self._listed(self._source)}
        there = {one.key: one.size for one in self._listed(self._near)}
        missing = [key for key, size in wanted.items() if there.get(key) != size]
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="stage") as pool:
            for _ in pool.map(lambda key: self._near.put(key, self._folder / key), missing):
                pass
        there = {one.key: one.size for one in self._listed(self._near)}
        differs = [key for key, size in wanted.items() if there.get(key) != size]
        if differs:
            raise MountError(f"{differs[0]} did not arrive in {self._near.url} as it was sent")
        told = {"from": self._source.url, "objects": len(wanted), "bytes": sum(wanted.values())}
        try:
            self._near.put_if(MARKER, json.dumps(told).encode(), None)
        except ConflictError:
            return  # another one that went on after us was faster
