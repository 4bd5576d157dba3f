"""One rank's snapshot as a run of bytes: how it is cut, digested, and described."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotd.wire import Shard, Stream

CHUNK_BYTES = 16 << 20  # what a digest covers, and what is read or written at once
SHARDS_A_RANK = 32  # at most, until shards are as large as they get
LARGEST_SHARD_BYTES = 128 << 20  # 420 GB every 90 s in parts of 16 MiB would be $5 an hour of PUTs
_POLL_S = 0.001


class AbandonedError(Exception):
    """Whoever filled the memory is gone, or it is wanted for a newer snapshot."""


def cuts_of(size: int) -> tuple[tuple[int, int], ...]:
    """Where shards begin and end: whole chunks each, but for the last."""
    chunks = -(-size // CHUNK_BYTES)
    most = LARGEST_SHARD_BYTES // CHUNK_BYTES
    each = CHUNK_BYTES * min(most, max(1, -(-chunks // SHARDS_A_RANK)))
    return tuple((start, min(start + each, size)) for start in range(0, size, each))


def chunks_of(start: int, end: int) -> Sequence[tuple[int, int]]:
    """The chunks of a shard."""
    return [(at, min(at + CHUNK_BYTES, end)) for at in range(start, end, CHUNK_BYTES)]


@dataclass
class Filling:
    """A slot while its rank still copies into it: `filled()` says how far it is."""

    view: memoryview
    filled: Callable[[], int]
    abandoned: Callable[[], bool]

    def wait(self, end: int, pause: Callable[[float], None]) -> None:
        """Until the bytes before `end` are final. Raises AbandonedError."""
        while self.filled() < end:
            if self.abandoned():
                raise AbandonedError
            pause(_POLL_S)


class Digests:
    """The digests of a stream, made by one thread ahead of those that need them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: list[str] = []
        self._changed = threading.Condition()
        self._failed: BaseException | None = None

    def make(self, filling: Filling, pause: Callable[[float], None]) -> None:
        """All of them, in order; what goes wrong is raised where they are asked for."""
        import xxhash  # noqa: PLC0415 - the agent, which has none, cuts and reads too

        try:
            for start, end in chunks_of(0, self._size):
                filling.wait(end, pause)
                digest = xxhash.xxh3_128_hexdigest(filling.view[start:end])
                with self._changed:
                    self._found.append(digest)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            with self._changed:
                self._failed = error
                self._changed.notify_all()

    def of(self, start: int, end: int) -> tuple[str, ...]:
        """Those of a shard, once they are there. Raises AbandonedError."""
        first, last = start // CHUNK_BYTES, -(-end // CHUNK_BYTES)
        with self._changed:
            self._changed.wait_for(lambda: self._failed or len(self._found) >= last)
            if self._failed is not None:
                raise self._failed
            return tuple(self._found[first:last])


def shard_key(folder: str, rank: int, number: int) -> str:
    """Where a shard lies."""
    return f"{folder}/r{rank:05d}-{number:05d}"


def describe(folder: str, rank: int, size: int, digests: Digests, store: str = "") -> Stream:
    """The stream of a rank below `folder` of `store`. Waits for its digests; raises
    AbandonedError."""
    return Stream(
        tuple(
            Shard(
                shard_key(folder, rank, number),
                end - start,
                CHUNK_BYTES,
                digests.of(start, end),
                store=store,
            )
            for number, (start, end) in enumerate(cuts_of(size))
        )
    )
