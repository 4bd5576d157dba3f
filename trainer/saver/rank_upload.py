"""One rank's share of a snapshot on its way out: digested, written to the local disk and put into
the bucket side by side, all from the memory that the rank filled."""

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
from trainer.saver.streams import AbandonedError, Digests, Filling, cuts_of, describe, shard_key

# Where the two share few cores, an upload that begins at once makes the local disk wait twice as
# long and is over no sooner (docs/measurements.md). A disk that is slow keeps no bucket waiting.
FEW_CORES = 3
DISK_FIRST_S = 2.0


@dataclass(frozen=True)
class SnapshotLabel:
    """What a snapshot is, the same for all its ranks."""

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
    def last(self) -> bool:
        """Nothing comes after it from this machine."""
        return self.released or self.final

    @property
    def hurried(self) -> bool:
        """Somebody waits for it, perhaps because the machine is about to go."""
        return self.last or self.trigger == "asked"


class RankUpload:
    """`put` and then `part`; `put` may be called again after a failure and does what is left.

    `on_local` hears the seconds since `begun_s` when the local disk has all of it, or what went
    wrong with that, which hinders nothing else; `on_put` that a shard is in the bucket.
    """

    def __init__(
        self,
        label: SnapshotLabel,
        rank: int,
        size: int,
        pieces: tuple[TensorPiece, ...],
        filling: Filling,
        local: LocalTier | None,
        on_local: Callable[[float, str], None] = lambda _s, _e: None,
        on_put: Callable[[], None] = lambda: None,
    ) -> None:
        self.label, self.rank = label, rank
        self.size, self._pieces = size, pieces
        self._filling, self._local = filling, local
        self._on_local, self._on_put = on_local, on_put
        self._begun_s = time.perf_counter()
        self._moved_s = time.monotonic()  # when the disk last took a chunk
        self._digests = Digests(size)
        self._put: set[int] = set()
        self._store = ""
        self._threads = [threading.Thread(target=self._digest, name="digest", daemon=True)]
        self._waited_for = local is None or label.last  # the last one has no time for the disk
        if local is not None:
            self._threads.append(threading.Thread(target=self._keep, name="disk", daemon=True))
        for thread in self._threads:
            thread.start()

    def put(self, store: ObjectStore, pool: Executor, at_once: int, url: str = "") -> None:
        """Every shard that the bucket does not have yet, so many at once; it is the one that the
        manifest names as `url`, and where that is another one than before, all begins anew. Raises
        StoreError, AbandonedError."""
        if url != self._store:
            self._store, self._put = url, set()
        if not self._waited_for and len(os.sched_getaffinity(0)) <= FEW_CORES:
            self._threads[-1].join(DISK_FIRST_S)
        self._waited_for = True
        running: set[Future[None]] = set()
        try:
            for number, (start, end) in enumerate(cuts_of(self.size)):
                if number in self._put:
                    continue
                self._filling.wait(end, time.sleep)
                while len(running) >= at_once:
                    running = _go_on(running)
                running.add(pool.submit(self._put_shard, store, number, start, end))
            while running:
                running = _go_on(running)
        except BaseException:
            for one in running:
                one.cancel()
            wait(running)  # none is on its way when this is tried again, or the memory reused
            raise

    @property
    def bytes_put(self) -> int:
        """Of `size`, what is in the bucket."""
        cuts, put = cuts_of(self.size), tuple(self._put)  # others add to it meanwhile
        return sum(cuts[number][1] - cuts[number][0] for number in put)

    def part(self) -> RankPart:
        """What it has become. Raises AbandonedError."""
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
        """Tell the first rank of it, by the bucket. Raises StoreError."""
        store.put(part_key(self.label.folder, self.rank), self.part().to_bytes())

    def join(self, still_s: float) -> bool:
        """Wait until nobody reads the memory any more; False when the local disk has taken nothing
        for `still_s`, and holds on to it."""
        while not self.ended():
            left_s = self._moved_s + still_s - time.monotonic()
            if left_s <= 0:
                return False
            for thread in self._threads:
                thread.join(min(left_s, still_s / len(self._threads)))
        return True

    def ended(self) -> bool:
        """Whether nobody reads the memory any more."""
        return not any(thread.is_alive() for thread in self._threads)

    def _put_shard(self, store: ObjectStore, number: int, start: int, end: int) -> None:
        store.put(shard_key(self.label.folder, self.rank, number), self._filling.view[start:end])
        self._put.add(number)
        self._on_put()

    def _digest(self) -> None:
        self._digests.make(self._filling, time.sleep)

    def _stream(self) -> Stream:
        return describe(self.label.folder, self.rank, self.size, self._digests, self._store)

    def _filled(self) -> int:
        self._moved_s = time.monotonic()  # it is asked before each chunk
        return self._filling.filled()

    def _keep(self) -> None:
        label, local = self.label, self._local
        assert local is not None  # noqa: S101 - the thread is there only with one
        name = name_of(label.folder, self.rank)
        try:
            local.write(name, replace(self._filling, filled=self._filled), self.size, time.sleep)
            local.commit(name, self.part().to_bytes())
        except AbandonedError:
            local.drop(name)
        except OSError as error:
            local.drop(name)
            self._on_local(0.0, str(error))
        else:
            self._on_local(time.perf_counter() - self._begun_s, "")


def _go_on(running: set[Future[None]]) -> set[Future[None]]:
    """Those that still run when one has ended. Raises what that one did."""
    done, left = wait(running, return_when=FIRST_COMPLETED)
    for one in done:
        one.result()
    return left
