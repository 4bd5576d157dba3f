"""Shared memory into which a training process stages its state; it outlives the process.

The saver creates the memory, touches every page once, and sends its file descriptor over a unix
socket; both processes map it. It has one or more *slots*, each with space for one rank's snapshot,
preceded by one page of 8-byte words. In some of them the rank tells how far a slot is filled, so
that the saver can follow the copy; in the others the saver publishes its progress, so that a
training loop can check it at every step at no cost.

Standard library only, Python >= 3.10: training processes import it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

PAGE = 4096  # required by O_DIRECT, whatever the machine's page size
MAX_SLOTS = 16
_WORDS = PAGE
_STAGED_US = 16  # first of the words with each slot's copy time
_FENCED, _COMMITTED, _SAVES, _STAGE_US, _WRITE_US, _PUTS = range(32, 38)  # written by the saver
_PENDING, _SINCE_US, _DONE_PPM = range(38, 41)
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14; Python has no name for it yet
_FAULT_IN_BYTES = 64 << 20  # faulted in between two calls of `may_continue`
_MAX_FAULT_IN_THREADS = 8  # a core clears 1 to 2 GB/s in a virtual machine
_madvise = ctypes.CDLL(None, use_errno=True).madvise  # mmap.madvise holds the interpreter's lock
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclass(frozen=True)
class SaveProgress:
    """The progress of saving, published by the saver.

    `committed`: step of the newest committed save, -1 before the first. `saves`: number of saves
    without failures; for the newest of them, `stage_us` is the microseconds of the copy, `write_us`
    those from its end to the commit, and `puts` the number of writes. `pending`: a save is neither
    committed nor abandoned. `since_us`: start of its upload (CLOCK_MONOTONIC, shared by all
    processes of the machine; 0: it waits). `done_ppm`: millionths of its bytes that are in the
    store.
    """

    fenced: bool = False
    committed: int = -1
    saves: int = 0
    stage_us: int = 0
    write_us: int = 0
    puts: int = 0
    pending: bool = False
    since_us: int = 0
    done_ppm: int = 0


class SharedMemoryError(Exception):
    """The memory is not available; the text says how much was requested."""


def make_memory(size: int, slots: int) -> int:
    """Return a file descriptor of new shared memory. Raises SharedMemoryError."""
    if size < 1 or not 1 <= slots <= MAX_SLOTS:
        raise SharedMemoryError(
            f"{slots} slots of {size} bytes: 1 to {MAX_SLOTS} of 1 byte or more"
        )
    total = _WORDS + slots * _padded(size)
    fd = os.memfd_create("spotd-arena", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, total)
    except (OSError, OverflowError) as error:
        os.close(fd)
        raise SharedMemoryError(f"{total / 1e9:.1f} GB of memory for snapshots: {error}") from None
    return fd


class SharedMemory:
    """A mapping of the shared memory; `size` is the capacity of a slot in bytes."""

    def __init__(self, fd: int, size: int, slots: int) -> None:
        self.size, self.slots = size, slots
        self._slot_size = _padded(size)
        self._map = mmap.mmap(fd, _WORDS + slots * self._slot_size)
        self._view = memoryview(self._map)
        self._words = self._view[:_WORDS].cast("Q")

    @property
    def slot_area(self) -> memoryview:
        """All slots, page-aligned."""
        return self._view[_WORDS:]

    def slot(self, number: int) -> memoryview:
        """Return the `size` bytes of a slot, page-aligned."""
        return self.padded(number)[: self.size]

    def padded(self, number: int) -> memoryview:
        """Return a slot up to a whole page; the padding is never written."""
        if not 0 <= number < self.slots:
            raise ValueError(f"slot {number} of {self.slots}")
        start = _WORDS + number * self._slot_size
        return self._view[start : start + self._slot_size]

    def filled(self, number: int) -> int:
        """Return the number of leading bytes of a slot that are final."""
        return int(self._words[number])

    def set_filled(self, number: int, count: int) -> None:
        """Publish the number of final bytes; called by the process that fills the slot.

        Aligned 8-byte stores are atomic, and x86 and the interpreter keep them behind the copies.
        """
        self._words[number] = count

    def staged_us(self, number: int) -> int:
        """Return the microseconds that the copy into a filled slot took."""
        return int(self._words[_STAGED_US + number])

    def set_staged_us(self, number: int, took_us: int) -> None:
        """Publish the duration of the copy, before the last bytes are marked as final."""
        self._words[_STAGED_US + number] = took_us

    @property
    def fenced(self) -> bool:
        """Whether another generation owns HEAD: nothing staged here will be committed."""
        return bool(self._words[_FENCED])

    @property
    def progress(self) -> SaveProgress:
        """The progress last published by the saver."""
        words = self._words
        return SaveProgress(
            fenced=self.fenced,
            saves=int(words[_SAVES]),
            committed=int(words[_COMMITTED]) - 1,
            stage_us=int(words[_STAGE_US]),
            write_us=int(words[_WRITE_US]),
            puts=int(words[_PUTS]),
            pending=bool(words[_PENDING]),
            since_us=int(words[_SINCE_US]),
            done_ppm=int(words[_DONE_PPM]),
        )

    def set_progress(self, progress: SaveProgress) -> None:
        """Publish the progress; called by the saver. A save's values precede its count."""
        words = self._words
        words[_STAGE_US], words[_WRITE_US], words[_PUTS] = (
            progress.stage_us,
            progress.write_us,
            progress.puts,
        )
        words[_SAVES], words[_COMMITTED] = progress.saves, progress.committed + 1
        words[_SINCE_US], words[_DONE_PPM] = progress.since_us, progress.done_ppm
        words[_PENDING], words[_FENCED] = int(progress.pending), int(progress.fenced)

    def fault_in(self, may_continue: Callable[[], bool] = lambda: True) -> bool:
        """Allocate every page now instead of in the first save.

        `may_continue` is called by several threads; if it returns False, so does this. Raises
        SharedMemoryError if there is not enough memory.
        """
        end = len(self._view)

        def touch(start: int) -> bool:
            if not may_continue():
                return False
            self._populate(start, min(_FAULT_IN_BYTES, end - start))
            return True

        threads = min(_MAX_FAULT_IN_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads, thread_name_prefix="fault-in") as pool:
            return all(pool.map(touch, range(0, end, _FAULT_IN_BYTES)))

    def _populate(self, start: int, length: int) -> None:
        first = ctypes.c_char.from_buffer(self._map, start)
        if not _madvise(ctypes.addressof(first), length, _POPULATE_WRITE):
            return
        number = ctypes.get_errno()
        if number != errno.EINVAL:  # EINVAL: a kernel before 5.14
            text = f"{len(self._view) / 1e9:.1f} GB for snapshots: {os.strerror(number)}"
            raise SharedMemoryError(text)
        # Reading allocates a page as well, and does not overwrite what others store there.
        self._view[start : start + length][::PAGE].tobytes()

    def close(self) -> None:
        """Unmap the memory; no views of it may be left."""
        self._words.release()
        self._view.release()
        self._map.close()


def _padded(size: int) -> int:
    return -(-size // PAGE) * PAGE
