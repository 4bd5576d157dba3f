"""Fetch the newest checkpoint before the training program asks for it.

It is fetched while the node is prepared and the program imports, into the memory that the program
gets when it joins. It is only a hint: the claimed HEAD decides which checkpoint is used, and every
byte is verified again when the program fetches it.
"""

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
SLOTS = 2  # as training programs request
POLL_S = 0.2


class Prefetch:
    """Waits until HEAD may be claimed, then fetches, in a thread that starts at once.

    By waiting it gets the last checkpoint of the previous generation. `current_claim` is as for
    `Fence.wait_claimable`. This machine fetches the first of `nodes` equal shares of the streams. A
    `suspect` manifest is skipped.
    """

    def __init__(
        self,
        open_store: Callable[[], ObjectStore],
        make_fence: Callable[[ObjectStore], Fence],
        current_claim: Callable[[], tuple[str, float]],
        readers: Executor,
        *,
        nodes: int = 1,
        suspect: str = "",
    ) -> None:
        self._open_store, self._make_fence = open_store, make_fence
        self._current_claim, self._readers = current_claim, readers
        self._nodes, self._suspect = nodes, suspect
        self._stop = threading.Event()
        self._target: tuple[ObjectStore, str, HeadRef] | None = None
        self._lock = threading.Lock()
        self._ranks: dict[int, Rank] = {}
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def take(self, rank: int, size: int, slots: int) -> Rank | None:
        """Return the memory of a joining rank, slot 0 prefetched, or None if there is none.

        Waits for a running fetch if HEAD still names its checkpoint. Otherwise, or before anything
        is being fetched, the prefetch is given up without waiting: a store that does not answer
        must delay nobody.
        """
        if self._thread.is_alive():
            if not self._is_wanted():
                self.drop()
                return None
            self._thread.join()
        with self._lock:
            prefetched = self._ranks.pop(rank, None)
        if prefetched is None or (prefetched.memory.size, prefetched.memory.slots) == (size, slots):
            return prefetched
        _free(prefetched.fd)
        return None

    def drop(self) -> None:
        """Give up the fetch and free all memory that no rank has taken. Does not wait."""
        with self._lock:
            self._stop.set()
            left, self._ranks = self._ranks, {}
        for rank in left.values():
            _free(rank.fd)

    def _is_wanted(self) -> bool:
        with self._lock:
            if self._target is None:
                self._stop.set()
                return False
            store, job_id, ref = self._target
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
            # The resume meets the same error and reports it.
            _LOG.warning("nothing is fetched ahead: %s", error)

    def _prefetch(self) -> None:
        store = self._open_store()
        fence = self._make_fence(store)
        fence.wait_claimable(self._current_claim, POLL_S, self._pause)
        entry = read_head(store, fence.job_id)
        # If HEAD is ours already, a program trains or trained here.
        if entry is None or entry[0].generation >= fence.generation or entry[0].final:
            return
        ref = self._newest(entry[0])
        if ref is None:
            return
        manifest = read_manifest(store, ref)
        with self._lock:
            self._check()
            self._target = store, fence.job_id, ref
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
            memory = SharedMemory(fd, size, SLOTS)
            reader = Reader(store, manifest, [_AbandonedCopy(self._check)], self._readers)
            with ThreadPoolExecutor(1, thread_name_prefix="fault-in") as executor:
                still_wanted = lambda: not (self._stop.is_set() or failed.is_set())  # noqa: E731
                faulted_in = executor.submit(memory.fault_in, still_wanted)
                try:
                    reader.fill(memory.slot(0), [Range(number, 0, size)], lambda _: None)
                except BaseException:
                    failed.set()
                    raise
                faulted_in.result()
            with self._lock:
                self._check()
                self._ranks[number] = Rank(memory, fd, (), {0: folder_of(manifest)})
        except BaseException:
            _free(fd)
            raise

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)
        self._check()

    def _check(self) -> None:
        if self._stop.is_set():
            raise AbandonedError


class _AbandonedCopy:
    """A copy without content, whose `read` ends the fetch once the prefetch is given up."""

    name = "nothing"

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def read(self, *_: object) -> bool:
        """See LocalCopy.read. Raises AbandonedError."""
        self._check()
        return False


def _free(fd: int) -> None:
    """Free the memory now, though it may still be mapped: nobody reads it again."""
    os.ftruncate(fd, 0)
    os.close(fd)
