"""Read one output stream of a job by offset: its pieces, its rest in the job's store, its gaps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from providers.stores.base import NotFoundError, ObjectStore, StoreError
from spotd.domain.stored_logs import StreamName, read_end
from spotd.wire import LogEnd, last_output_key, whole_characters

WHOLE = sys.maxsize  # up to the end, wherever it is


@dataclass(frozen=True)
class Piece:
    """Bytes of a stream from `offset` on, and when they were stored (0: unknown)."""

    offset: int
    data: bytes
    stored_us: int

    @property
    def end(self) -> int:
        """Return where the output continues."""
        return self.offset + len(self.data)


@dataclass(frozen=True)
class Gap:
    """Bytes that are missing from `offset` on; `size` is None where it is not known how many.

    `note` says where they are, if that is known.
    """

    offset: int
    size: int | None
    note: str = ""

    @property
    def end(self) -> int:
        """Return where the output continues."""
        return self.offset + (self.size or 0)

    @property
    def text(self) -> str:
        """Return the mark that stands in the output."""
        if self.size is None:
            return (
                "spotd: output may be missing here, it is not known how much: "
                "the machine was gone before its end was fetched"
            )
        unit = "byte of output is" if self.size == 1 else "bytes of output are"
        return f"spotd: {self.size:,} {unit} missing here{self.note}"


@dataclass(frozen=True)
class Stream:
    """One output file of one node.

    `name` is "setup" or "rank<N>". `size` is the length in bytes of its unbroken beginning.
    """

    generation: int
    rank: int
    name: str
    size: int

    @property
    def key(self) -> str:
        return f"{self.generation}/{self.rank}/{self.name}"

    @property
    def order(self) -> tuple[int, bool, int, int, str]:
        """The sort key: generation, setup before training, node, local rank."""
        return (self.generation, self.name != "setup", self.rank, len(self.name), self.name)

    def of_job(self, job_id: str) -> StreamName:
        """Return where it lies in the deployment's store."""
        return StreamName(job_id, self.generation, self.rank, self.name)


class StreamReader:
    """Reads a stream. `open_job_store` opens the store to which agents upload the rest of long
    output; `url` is its name."""

    def __init__(
        self,
        objects: ObjectStore,
        open_job_store: Callable[[], ObjectStore],
        *,
        url: str,
        job_id: str,
        stream: Stream,
    ) -> None:
        self._objects, self._open_job_store, self._url = objects, open_job_store, url
        self._name, self._stream = stream.of_job(job_id), stream
        self._end: LogEnd | None = None
        self._end_read = False
        self._remaining = 0

    def is_full(self) -> bool:
        """Return whether the last `read` ended because of its `max_bytes`."""
        return self._remaining <= 0

    @property
    def end(self) -> LogEnd | None:
        """Where the stream ends; None if its machine has not said so."""
        if not self._end_read:
            try:
                self._end = read_end(self._name, self._objects.get(self._name.end_key)[0])
            except NotFoundError:
                self._end = None
            self._end_read = True
        return self._end

    def read(self, start: int, end: int, max_bytes: int) -> Iterator[Piece | Gap]:
        """Yield the stream from byte `start` to `end`, with at most `max_bytes`.

        A gap up to `end` is only known as one if `end` is not WHOLE, or the stream's end is known.
        """
        self._remaining, position, prefix = max_bytes, start, self._name.prefix
        for info in self._objects.list(prefix):
            first = int(info.key[len(prefix) :])
            if self.is_full() or first >= end:
                break
            if first + info.size <= position:
                continue
            if first > position:
                yield from self._missing(position, first)
            if self.is_full():
                return
            position = max(position, first)
            wanted = min(first + info.size, end) - position
            try:
                data = self._fit(
                    self._objects.get_range(
                        info.key, position - first, min(wanted, self._remaining)
                    ),
                    wanted,
                )
            except NotFoundError:
                continue  # retention deleted it after it was listed
            yield Piece(position, data, info.modified_us)
            position += len(data)
        if self.is_full():
            return
        if end == WHOLE:
            end = max(self._stream.size, self.end.offset if self.end else 0)
        if position < end:
            yield from self._missing(position, end)

    def newest_end(self) -> int:
        """Return where the newest byte ends, also where bytes before it never arrived."""
        prefix, newest = self._name.prefix, self._stream.size
        for info in self._objects.list(prefix):
            newest = max(newest, int(info.key[len(prefix) :]) + info.size)
        return newest

    def _fit(self, data: bytes, wanted: int) -> bytes:
        """Count the data; if there is more than may be read, it ends with a whole character."""
        if len(data) < wanted:
            data = data[: whole_characters(data) or len(data)]
            self._remaining = 0
        else:
            self._remaining -= len(data)
        return data

    def _missing(self, begin: int, end: int) -> Iterator[Piece | Gap]:
        """Yield what is not in the deployment's store: from the job's store, or as a gap."""
        stored = self.end
        first, last = (stored.begin, stored.end) if stored else (0, 0)
        first, last = max(first, begin), min(last, end)
        if first >= last:
            yield Gap(begin, end - begin)
            return
        if begin < first:
            yield Gap(begin, first - begin)
        while first < last and not self.is_full():
            part = self._read_stored(first, last)
            yield part
            first = first + len(part.data) if isinstance(part, Piece) else last
        if last < end and not self.is_full():
            yield Gap(last, end - last)

    def _read_stored(self, first: int, last: int) -> Piece | Gap:
        assert self.end is not None  # noqa: S101 - `_missing` has checked
        key = last_output_key(
            self._name.job_id,
            generation=self._stream.generation,
            rank=self._stream.rank,
            stream=self._stream.name,
        )
        try:
            data = self._open_job_store().get_range(
                key, first - self.end.begin, min(last - first, self._remaining)
            )
        except StoreError as error:
            reason = "it is not there any more" if isinstance(error, NotFoundError) else str(error)
            return Gap(first, last - first, f"; they were stored as {self._url}/{key}: {reason}")
        if not data:
            return Gap(first, last - first)
        return Piece(first, self._fit(data, last - first), 0)
