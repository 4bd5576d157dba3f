"""Upload of one rank's share of a snapshot.

It is digested, written to the local disk and put into the store in parallel, all from the memory
that the rank filled.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from providers.stores.base import ObjectStore
from spotd.wire import Stream
from trainer.saver.disk import LocalTier, name_of
from trainer.saver.parts import RankPart, TensorPiece, part_key
from trainer.saver.streams import (
    AbandonedError,
    Digests,
    FillingSlot,
    describe_stream,
    shard_key,
    shard_ranges,
)

MAX_CONCURRENCY = 8

SUCCESSES_BEFORE_INCREASE = 10  # too much concurrency costs a save a minute

# On few cores, an upload that starts at once doubles the time of the local disk and ends no sooner
# (docs/measurements.md). A slow disk does not delay the store for longer than DISK_FIRST_S.
FEW_CORES = 3
DISK_FIRST_S = 2.0


@dataclass(frozen=True)
class SnapshotLabel:
    """The properties of a snapshot, the same for all its ranks."""

    folder: str
    generation: int
    step: int
    world_size: int
    created_at_us: int
    trigger: str = ""
    released: bool = False
    final: bool = False
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        """No further snapshot comes from this machine."""
        return self.released or self.final

    @property
    def is_urgent(self) -> bool:
        """Somebody waits for this snapshot, perhaps because the machine is about to end."""
        return self.is_last or self.trigger in ("asked", "final")


class RankUpload:
    """Uploads one rank's share: call `put`, then `part`.

    `put` may be called again after a failure and uploads what is missing. `on_local` receives the
    seconds until the local disk had all of it, or an error message; a failing disk does not stop
    the upload. `on_put` is called for each shard that reached the store.
    """

    def __init__(
        self,
        label: SnapshotLabel,
        rank: int,
        size: int,
        pieces: tuple[TensorPiece, ...],
        slot: FillingSlot,
        local: LocalTier | None,
        on_local: Callable[[float, str], None] = lambda _s, _e: None,
        on_put: Callable[[], None] = lambda: None,
    ) -> None:
        self.label, self.rank = label, rank
        self.size, self._pieces = size, pieces
        self._slot, self._local = slot, local
        self._on_local, self._on_put = on_local, on_put
        self._started_s = time.perf_counter()
        self._disk_progress_at_s = time.monotonic()  # when the disk last took a chunk
        self._digests = Digests(size)
        self._uploaded: set[int] = set()
        self._store = ""
        self._threads = [threading.Thread(target=self._digest, name="digest", daemon=True)]
        # The last snapshot does not wait for the disk.
        self._waited_for_disk = local is None or label.is_last
        if local is not None:
            self._threads.append(
                threading.Thread(target=self._write_local, name="disk", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    def put(self, store: ObjectStore, pool: Executor, concurrency: int, url: str = "") -> None:
        """Put every missing shard into the store, `concurrency` at a time.

        `url` is how the manifest names the store; with another `url` than before, all shards are
        put again. Raises StoreError, AbandonedError.
        """
        if url != self._store:
            self._store, self._uploaded = url, set()
        if not self._waited_for_disk and len(os.sched_getaffinity(0)) <= FEW_CORES:
            self._threads[-1].join(DISK_FIRST_S)
        self._waited_for_disk = True
        uploads: set[Future[None]] = set()
        try:
            for number, (start, end) in enumerate(shard_ranges(self.size)):
                if number in self._uploaded:
                    continue
                self._slot.wait(end, time.sleep)
                while len(uploads) >= concurrency:
                    uploads = _wait_for_any(uploads)
                uploads.add(pool.submit(self._put_shard, store, number, start, end))
            while uploads:
                uploads = _wait_for_any(uploads)
        except BaseException:
            for upload in uploads:
                upload.cancel()
            wait(uploads)  # no upload may run during a retry or when the memory is reused
            raise

    @property
    def bytes_put(self) -> int:
        """Bytes of the snapshot that are in the store, of `size`."""
        ranges, uploaded = shard_ranges(self.size), tuple(self._uploaded)  # other threads add to it
        return sum(ranges[number][1] - ranges[number][0] for number in uploaded)

    def part(self) -> RankPart:
        """Return the description of the share. Raises AbandonedError."""
        label = self.label
        return RankPart(
            folder=label.folder,
            generation=label.generation,
            step=label.step,
            rank=self.rank,
            world_size=label.world_size,
            created_at_us=label.created_at_us,
            stream=self._stream(),
            pieces=self._pieces,
            state=label.state if not self.rank else {},
            trigger=label.trigger,
            released=label.released,
            final=label.final,
        )

    def publish(self, store: ObjectStore) -> None:
        """Put the part into the store, where rank 0's saver collects it. Raises StoreError."""
        store.put(part_key(self.label.folder, self.rank), self.part().to_bytes())

    def join(self, stall_s: float) -> bool:
        """Wait until nothing reads the memory.

        Returns False if the local disk took no data for `stall_s`.
        """
        while not self.ended():
            remaining_s = self._disk_progress_at_s + stall_s - time.monotonic()
            if remaining_s <= 0:
                return False
            for thread in self._threads:
                thread.join(min(remaining_s, stall_s / len(self._threads)))
        return True

    def ended(self) -> bool:
        """Return whether nothing reads the memory any more."""
        return not any(thread.is_alive() for thread in self._threads)

    def _put_shard(self, store: ObjectStore, number: int, start: int, end: int) -> None:
        store.put(shard_key(self.label.folder, self.rank, number), self._slot.view[start:end])
        self._uploaded.add(number)
        self._on_put()

    def _digest(self) -> None:
        self._digests.compute(self._slot, time.sleep)

    def _stream(self) -> Stream:
        return describe_stream(self.label.folder, self.rank, self.size, self._digests, self._store)

    def _filled(self) -> int:
        self._disk_progress_at_s = time.monotonic()  # called before each chunk
        return self._slot.filled()

    def _write_local(self) -> None:
        label, local = self.label, self._local
        assert local is not None  # noqa: S101 - the thread starts only with one
        name = name_of(label.folder, self.rank)
        try:
            local.write(name, replace(self._slot, filled=self._filled), self.size, time.sleep)
            local.commit(name, self.part().to_bytes())
        except AbandonedError:
            local.discard(name)
        except OSError as error:
            local.discard(name)
            self._on_local(0.0, str(error))
        else:
            self._on_local(time.perf_counter() - self._started_s, "")


def _wait_for_any(uploads: set[Future[None]]) -> set[Future[None]]:
    """Wait until one upload ends and return those still running. Raises its error."""
    done, pending = wait(uploads, return_when=FIRST_COMPLETED)
    for upload in done:
        upload.result()
    return pending


class UploadConcurrency:
    """`count` is between 1 and `MAX_CONCURRENCY`. Used by one thread."""

    def __init__(self) -> None:
        self.count = MAX_CONCURRENCY
        self._successes = 0

    def reduce(self) -> None:
        """Halve the concurrency after an upload timed out."""
        self.count, self._successes = max(1, self.count // 2), 0

    def add_success(self) -> None:
        """Count a save without failures; after several of them allow one more upload."""
        self._successes += 1
        if self._successes >= SUCCESSES_BEFORE_INCREASE:
            self.count, self._successes = min(MAX_CONCURRENCY, self.count + 1), 0
