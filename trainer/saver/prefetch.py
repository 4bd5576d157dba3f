"""The newest checkpoint on its way here before the program asks for it: while the node is prepared,
and while the program imports and builds. It lies in the memory that the program is given when it
joins. It is a hint: what the claimed HEAD names is what counts, and each byte is verified again
when it is fetched."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from providers.stores.base import ObjectStore, StoreError
from spotd.wire import Head, HeadRef, Manifest, WireError
from trainer.fence import Fence, FencedError, read_head
from trainer.hook.spotd_hook.shared_memory import SharedMemory, SharedMemoryError, make_memory
from trainer.saver.local_copies import folder_of
from trainer.saver.reader import CorruptError, Range, Reader, read_manifest
from trainer.saver.snapshot import Rank
from trainer.saver.streams import AbandonedError

_LOG = logging.getLogger(__name__)
SLOTS = 2  # what programs ask for
POLL_S = 0.2


class Prefetch:
    """Begins at once, in a thread of its own, and waits until HEAD may be claimed, so that the
    checkpoint is the last of the generation before. `claim_of` is as for `Fence.wait_claimable`;
    `nodes`: this machine takes the first of so many equal shares of the streams. Of a `suspect`
    manifest nothing is fetched."""

    def __init__(
        self,
        open_store: Callable[[], ObjectStore],
        make_fence: Callable[[ObjectStore], Fence],
        claim_of: Callable[[], tuple[str, float]],
        readers: Executor,
        *,
        nodes: int = 1,
        suspect: str = "",
    ) -> None:
        self._open_store, self._make_fence = open_store, make_fence
        self._claim_of, self._readers = claim_of, readers
        self._nodes, self._suspect = nodes, suspect
        self._stop = threading.Event()
        self._wanted: tuple[ObjectStore, str, HeadRef] | None = None
        self._lock = threading.Lock()
        self._ranks: dict[int, Rank] = {}
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def take(self, rank: int, size: int, slots: int) -> Rank | None:
        """The memory of a rank that joins, with what its slot 0 holds; None where there is none of
        that shape. Waits for what is under way, if HEAD still names it; else, and where nothing is
        yet, it is given up without waiting: a store that does not answer must hold up nobody."""
        if self._thread.is_alive():
            if not self._is_wanted():
                self.drop()
                return None
            self._thread.join()
        with self._lock:
            found = self._ranks.pop(rank, None)
        if found is None or (found.arena.size, found.arena.slots) == (size, slots):
            return found
        _drop(found.fd)
        return None

    def drop(self) -> None:
        """What nobody has taken is for nobody. Does not wait."""
        with self._lock:
            self._stop.set()
            left, self._ranks = self._ranks, {}
        for rank in left.values():
            _drop(rank.fd)

    def _is_wanted(self) -> bool:
        with self._lock:
            if self._wanted is None:
                self._stop.set()
                return False
            store, job_id, ref = self._wanted
        try:
            entry = read_head(store, job_id)
        except (StoreError, WireError):
            return False
        return entry is not None and self._newest(entry[0]) == ref

    def _newest(self, head: Head) -> HeadRef | None:
        refs = (ref for ref in (head.current, *head.previous) if ref)
        return next((ref for ref in refs if ref.manifest != self._suspect), None)

    # --- the thread

    def _run(self) -> None:
        try:
            self._prefetch()
        except AbandonedError:
            pass
        except (
            StoreError,
            WireError,
            CorruptError,
            FencedError,
            SharedMemoryError,
            OSError,
        ) as error:
            # Whoever resumes meets it again, and says so.
            _LOG.warning("nothing is fetched ahead: %s", error)

    def _prefetch(self) -> None:
        store = self._open_store()
        fence = self._make_fence(store)
        fence.wait_claimable(self._claim_of, POLL_S, self._pause)
        entry = read_head(store, fence.job_id)
        # A HEAD that is ours already has a program that trains, or had one here.
        if entry is None or entry[0].generation >= fence.generation or entry[0].final:
            return
        ref = self._newest(entry[0])
        if ref is None:
            return
        manifest = read_manifest(store, ref)
        with self._lock:
            self._check()
            self._wanted = store, fence.job_id, ref
        began_s, count = time.monotonic(), len(manifest.streams)
        sizes = {
            number: stream.size
            for number, stream in enumerate(manifest.streams)
            if number * self._nodes < count and stream.size
        }
        for number, size in sizes.items():
            self._fetch(store, manifest, number, size)
        took_s = time.monotonic() - began_s
        _LOG.info(
            "step %d was fetched ahead: %d bytes in %.3f s", ref.step, sum(sizes.values()), took_s
        )

    def _fetch(self, store: ObjectStore, manifest: Manifest, number: int, size: int) -> None:
        fd = make_memory(size, SLOTS)
        failed = threading.Event()
        try:
            arena = SharedMemory(fd, size, SLOTS)
            reader = Reader(store, manifest, [_AbandonedCopy(self._check)], self._readers)
            with ThreadPoolExecutor(1, thread_name_prefix="fault-in") as beside:
                wanted = lambda: not (self._stop.is_set() or failed.is_set())  # noqa: E731
                room = beside.submit(arena.fault_in, wanted)
                try:
                    reader.fill(arena.slot(0), [Range(number, 0, size)], lambda _: None)
                except BaseException:
                    failed.set()
                    raise
                room.result()
            with self._lock:
                self._check()
                self._ranks[number] = Rank(arena, fd, (), {0: folder_of(manifest)})
        except BaseException:
            _drop(fd)
            raise

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)
        self._check()

    def _check(self) -> None:
        if self._stop.is_set():
            raise AbandonedError


class _AbandonedCopy:
    """A copy that has nothing, and ends the reading where that is given up."""

    name = "nothing"

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def read(self, *_: object) -> bool:
        """As of `Memory`. Raises AbandonedError."""
        self._check()
        return False


def _drop(fd: int) -> None:
    """Give the memory back now, though it may still be mapped: nobody looks at it again."""
    os.ftruncate(fd, 0)
    os.close(fd)
