"""Memory that a training process stages its state into, and that outlives it.

An arena belongs to the saver, which makes it, touches every page of it once, and hands its file
descriptor over a unix socket; both map the same memory. It holds one or two *slots*, each with room
for a whole snapshot of one rank. Before them lies one page of words. With some the rank says how
far a slot is filled, so that the saver may follow while the rank still copies; with the others the
saver says how saving goes, so that a training loop can look at every step for nothing.

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

PAGE = 4096  # what O_DIRECT wants, whatever the machine's pages are
MOST_SLOTS = 16
_WORDS = PAGE
_STAGED_US = 16  # words from here on: what the copy into each slot took
_FENCED, _COMMITTED, _SAVES, _STAGE_US, _WRITE_US, _PUTS = range(32, 38)  # the saver's
_PENDING, _SINCE_US, _DONE_PPM = range(38, 41)
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14; Python has no name for it yet
_AT_ONCE = 64 << 20  # bytes faulted in between two looks at whether anybody still wants it
_MOST_THREADS = 8  # that fault in: a core clears 1 to 2 GB/s of a virtual machine's memory
_madvise = ctypes.CDLL(None, use_errno=True).madvise  # mmap's own holds the interpreter's lock
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclass(frozen=True)
class SaveProgress:
    """How saving goes, by the saver. `committed` is the step of the newest save that it has
    committed, -1 before the first. `saves` counts those that met no trouble; of the newest of them,
    the copy took `stage_us` microseconds, all after it until the commit `write_us`, in `puts`
    writes. `pending`: something that was begun is not yet committed or given up. It is on its way
    since `since_us` (CLOCK_MONOTONIC, of the whole machine; 0: it waits), and `done_ppm` millionths
    of its bytes are in the store."""

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
    """The memory cannot be had; the text says how much was wanted."""


def make_memory(size: int, slots: int) -> int:
    """A file descriptor of memory for an arena of that shape. Raises ArenaError."""
    if size < 1 or not 1 <= slots <= MOST_SLOTS:
        raise SharedMemoryError(
            f"{slots} slots of {size} bytes: 1 to {MOST_SLOTS} of 1 byte or more"
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
    """One mapping of an arena's memory; `size` is what a slot holds, in bytes."""

    def __init__(self, fd: int, size: int, slots: int) -> None:
        self.size, self.slots = size, slots
        self._room = _padded(size)
        self._map = mmap.mmap(fd, _WORDS + slots * self._room)
        self._whole = memoryview(self._map)
        self._words = self._whole[:_WORDS].cast("Q")

    @property
    def room(self) -> memoryview:
        """All slots, page-aligned."""
        return self._whole[_WORDS:]

    def slot(self, number: int) -> memoryview:
        """The `size` bytes of a slot, page-aligned."""
        return self.padded(number)[: self.size]

    def padded(self, number: int) -> memoryview:
        """A slot with what is behind it up to a whole page; that is never written."""
        if not 0 <= number < self.slots:
            raise ValueError(f"slot {number} of {self.slots}")
        start = _WORDS + number * self._room
        return self._whole[start : start + self._room]

    def filled(self, number: int) -> int:
        """How many bytes of a slot, from its first on, have their final content."""
        return int(self._words[number])

    def set_filled(self, number: int, count: int) -> None:
        """Say so; by the process that fills it. Stores of eight aligned bytes are atomic, and x86
        and the interpreter keep their order behind the copies."""
        self._words[number] = count

    def staged_us(self, number: int) -> int:
        """Microseconds that the copy into a filled slot took."""
        return int(self._words[_STAGED_US + number])

    def set_staged_us(self, number: int, took_us: int) -> None:
        """Say so, before the slot's last bytes are said to be final."""
        self._words[_STAGED_US + number] = took_us

    @property
    def fenced(self) -> bool:
        """Another writer owns HEAD: nothing that is staged here will be committed."""
        return bool(self._words[_FENCED])

    @property
    def told(self) -> SaveProgress:
        """What the saver has last told."""
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

    def tell(self, told: SaveProgress) -> None:
        """Say it; by the saver. What belongs to a save comes before the count of the saves."""
        words = self._words
        words[_STAGE_US], words[_WRITE_US], words[_PUTS] = told.stage_us, told.write_us, told.puts
        words[_SAVES], words[_COMMITTED] = told.saves, told.committed + 1
        words[_SINCE_US], words[_DONE_PPM] = told.since_us, told.done_ppm
        words[_PENDING], words[_FENCED] = int(told.pending), int(told.fenced)

    def fault_in(self, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Have every page of it now, and not in the first save; False if `go_on`, which several
        threads ask, said no. Raises ArenaError where memory ends."""
        end = len(self._whole)

        def touch(start: int) -> bool:
            if not go_on():
                return False
            self._populate(start, min(_AT_ONCE, end - start))
            return True

        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads, thread_name_prefix="fault-in") as pool:
            return all(pool.map(touch, range(0, end, _AT_ONCE)))

    def _populate(self, start: int, length: int) -> None:
        first = ctypes.c_char.from_buffer(self._map, start)
        if not _madvise(ctypes.addressof(first), length, _POPULATE_WRITE):
            return
        number = ctypes.get_errno()
        if number != errno.EINVAL:  # else a kernel before 5.14
            text = f"{len(self._whole) / 1e9:.1f} GB for snapshots: {os.strerror(number)}"
            raise SharedMemoryError(text)
        # A look makes a page as well, and undoes nothing of what others write there meanwhile.
        self._whole[start : start + length][::PAGE].tobytes()

    def close(self) -> None:
        """Unmap it; views of it must be gone."""
        self._words.release()
        self._whole.release()
        self._map.close()


def _padded(size: int) -> int:
    return -(-size // PAGE) * PAGE
