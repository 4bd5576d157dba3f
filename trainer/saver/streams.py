"""A rank's snapshot as a byte stream: its division into shards and chunks, and their digests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotd.wire import Shard, Stream

CHUNK_BYTES = 16 << 20  # covered by one digest, read and written at once
SHARDS_PER_RANK = 32  # at most, until shards are as large as they get
LARGEST_SHARD_BYTES = 128 << 20  # 420 GB every 90 s in parts of 16 MiB would be $5 an hour of PUTs
_POLL_S = 0.001


class AbandonedError(Exception):
    """The snapshot is not wanted any more, or the process that filled it is gone."""


def shard_ranges(size: int) -> tuple[tuple[int, int], ...]:
    """Return (start, end) of each shard; all but the last consist of whole chunks."""
    chunks = -(-size // CHUNK_BYTES)
    most = LARGEST_SHARD_BYTES // CHUNK_BYTES
    each = CHUNK_BYTES * min(most, max(1, -(-chunks // SHARDS_PER_RANK)))
    return tuple((start, min(start + each, size)) for start in range(0, size, each))


def chunk_ranges(start: int, end: int) -> Sequence[tuple[int, int]]:
    """Return (start, end) of each chunk between `start` and `end`."""
    return [(at, min(at + CHUNK_BYTES, end)) for at in range(start, end, CHUNK_BYTES)]


@dataclass
class FillingSlot:
    """A memory slot that its rank is still filling: `filled()` bytes are final."""

    view: memoryview
    filled: Callable[[], int]
    abandoned: Callable[[], bool]

    def wait(self, end: int, pause: Callable[[float], None]) -> None:
        """Wait until the bytes before `end` are final. Raises AbandonedError."""
        while self.filled() < end:
            if self.abandoned():
                raise AbandonedError
            pause(_POLL_S)


class Digests:
    """The digests of a stream, computed by one thread ahead of their use."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._digests: list[str] = []
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def compute(self, slot: FillingSlot, pause: Callable[[float], None]) -> None:
        """Compute all of them in order. An error is raised by `get`."""
        import xxhash  # noqa: PLC0415 - the agent has none and needs only ranges

        try:
            for start, end in chunk_ranges(0, self._size):
                slot.wait(end, pause)
                digest = xxhash.xxh3_128_hexdigest(slot.view[start:end])
                with self._changed:
                    self._digests.append(digest)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised by `get`
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def get(self, start: int, end: int) -> tuple[str, ...]:
        """Wait for the digests of a shard and return them. Raises AbandonedError."""
        first, last = start // CHUNK_BYTES, -(-end // CHUNK_BYTES)
        with self._changed:
            self._changed.wait_for(lambda: self._error or len(self._digests) >= last)
            if self._error is not None:
                raise self._error
            return tuple(self._digests[first:last])


def shard_key(folder: str, rank: int, number: int) -> str:
    """Return the store key of a shard."""
    return f"{folder}/r{rank:05d}-{number:05d}"


def describe_stream(folder: str, rank: int, size: int, digests: Digests, store: str = "") -> Stream:
    """Return the description of a rank's stream at `folder` of `store`.

    Waits for its digests. Raises AbandonedError.
    """
    return Stream(
        tuple(
            Shard(
                shard_key(folder, rank, number),
                end - start,
                CHUNK_BYTES,
                digests.get(start, end),
                store=store,
            )
            for number, (start, end) in enumerate(shard_ranges(size))
        )
    )
