"""Copy job output into the deployment's store: gathered, written in pieces, never shrunk.

The record has where a stream's unbroken beginning ends; the node continues there when it is
followed again. Pieces are named by their offset and created, never overwritten, so that a piece
that is sent again with another cut can hide nothing. When a script has ended, a record says where
its streams end, so that a reader knows which bytes are missing.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from providers.stores.base import ConflictError, ObjectStore
from providers.stores.base import StoreError as ObjectStoreError
from spotd.base.clock import Clock
from spotd.domain.node import Node
from spotd.domain.stored_logs import StreamName, read_end, write_end
from spotd.store.errors import StoreError
from spotd.store.interface import Store
from spotd.wire import LogChunk, LogEnd

log = structlog.get_logger(__name__)

PIECE_BYTES = 64 << 10
PIECE_S = 1.0
CROWD = 8  # pieces waiting to be written; with more, pieces grow to their full size
HELD_BYTES = 32 << 20  # of all nodes, when the store does not answer; more is fetched again later
RETRY_FIRST_S, RETRY_CAP_S = 0.5, 10.0
CLOSE_S = 5.0


def stream_name(node: Node, stream: str) -> StreamName:
    """Return where a stream of this node lies in the deployment's store."""
    return StreamName(node.job_id, node.generation, node.rank, stream)


class ByteCoverage:
    """The bytes of a stream that were written. `done` is the end of its unbroken beginning."""

    def __init__(self, done: int) -> None:
        self.done = done
        self._ahead: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        return max([self.done, *(end for _, end in self._ahead)])

    def add(self, begin: int, end: int) -> bool:
        """Add a range; return True if `done` has moved."""
        before = self.done
        self._ahead = sorted([*self._ahead, (begin, end)])
        while self._ahead and self._ahead[0][0] <= self.done:
            self.done = max(self.done, self._ahead.pop(0)[1])
        return self.done > before


@dataclass
class _Stream:
    """One log of one node. `coverage` is the writing thread's, the rest the reading thread's."""

    node: Node
    name: str
    next: int
    coverage: ByteCoverage
    data: bytearray = field(default_factory=bytearray)
    since_s: float = 0.0
    jumped: tuple[int, int] | None = None

    @property
    def place(self) -> StreamName:
        """Where it lies in the deployment's store."""
        return stream_name(self.node, self.name)


@dataclass(frozen=True)
class _Piece:
    """Bytes from `begin`; without any, a range up to `end` that will never arrive.

    `ended` is the end of the stream, `last` that nothing comes because the node is gone.
    """

    stream: _Stream
    begin: int
    end: int
    data: bytes = b""
    last: bool = False
    ended: LogEnd | None = None


class Output:
    """Takes chunks from the follower; one thread writes them, so that a slow store delays nothing
    but the logs.

    `written` is called on that thread when all is written of a node that `unwritten` was asked of.
    """

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        clock: Clock,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock
        self._written = written
        self._streams: dict[str, dict[str, _Stream]] = {}
        self._gathering: list[_Stream] = []  # those with data, in no order
        self._pieces: queue.Queue[_Piece | None] = queue.Queue()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._dropped: set[str] = set()
        self._queued: Counter[str] = Counter()  # pieces by node, until they are written
        self._awaited: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="output", daemon=True)
        self._thread.start()

    @property
    def nodes(self) -> set[str]:
        """Return the nodes whose output is not complete."""
        return set(self._streams)

    # --- on the follower's thread

    def begin(self, node: Node, offsets: Mapping[str, int]) -> None:
        """Note that the node is followed (again) and sends each stream from these offsets."""
        known = self._streams.setdefault(node.id, {})
        self._cut(known.values())
        for stream in known.values():
            stream.next, stream.jumped = offsets.get(stream.name, 0), None
        for name, offset in offsets.items():
            known.setdefault(name, _Stream(node, name, offset, ByteCoverage(offset)))

    def take(self, node: Node, chunk: LogChunk) -> None:
        """Collect a chunk; one that does not continue the last one starts a new piece."""
        stream = self._stream(node, chunk.stream)
        data = chunk.text.encode("latin-1")
        if not self._hold(node.id, len(data)):
            return
        if chunk.offset == stream.next:
            # The node goes on behind the jump: what it passed over was rotated away. After a
            # notice it sends the newest bytes first, and comes back.
            if stream.jumped is not None:
                self._queue(_Piece(stream, *stream.jumped))
            stream.jumped = None
        else:
            self._cut([stream])
            ahead = chunk.offset > stream.next
            stream.jumped = (stream.next, chunk.offset) if ahead else None
        if not stream.data:
            stream.since_s = self._clock.monotonic_s()
            self._gathering.append(stream)
        stream.data += data
        stream.next = chunk.offset + len(data)
        if len(stream.data) >= PIECE_BYTES:
            self._cut([stream])

    def finish(self, node: Node, end: LogEnd) -> None:
        """Note where a stream ends: what did not arrive before is missing.

        Not if some of it was dropped here: it is sent again.
        """
        stream = self._stream(node, end.stream)
        self._cut([stream])
        stream.next, stream.jumped = end.offset, None
        if not self.drops(node.id):
            self._queue(_Piece(stream, 0, end.offset, ended=end))

    def drops(self, node_id: str) -> bool:
        """Return whether output of the node was dropped and has to be fetched again."""
        with self._lock:
            return node_id in self._dropped

    def unwritten(self, node_id: str) -> bool:
        """Return whether output of the node still waits to be written."""
        with self._lock:
            if self._queued[node_id]:
                self._awaited.add(node_id)
                return True
            self._awaited.discard(node_id)
            del self._queued[node_id]
            return False

    def flush(self, node_id: str = "") -> None:
        """Pass on pieces that have waited long enough, and all of `node_id` at once."""
        if not self._gathering:
            return
        now_s, crowded = self._clock.monotonic_s(), self._pieces.qsize() > CROWD
        for stream in self._gathering:
            ripe = not crowded and now_s - stream.since_s >= PIECE_S
            if ripe or stream.node.id == node_id:
                self._cut([stream])
        self._gathering = [stream for stream in self._gathering if stream.data]

    def end(self, node_id: str) -> None:
        """Note that the node sends nothing more: pieces out of order are all there will be."""
        streams = self._streams.pop(node_id, {})
        self._cut(streams.values())
        for stream in streams.values():
            self._queue(_Piece(stream, 0, 0, last=True))
        with self._lock:
            self._dropped.discard(node_id)

    def incomplete(self) -> list[str]:
        """Return nodes whose output was partly dropped, to be followed again once there is room."""
        with self._lock:
            if not self._dropped or self._held_bytes > HELD_BYTES // 4:
                return []
            dropped, self._dropped = self._dropped, set()
        return sorted(dropped)

    def close(self) -> None:
        """Write the collected output, within CLOSE_S; the next follower fetches the rest again."""
        for streams in self._streams.values():
            self._cut(streams.values())
        self._pieces.put(None)
        self._thread.join(CLOSE_S)
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _hold(self, node_id: str, length: int) -> bool:
        with self._lock:
            if self._held_bytes + length > HELD_BYTES or node_id in self._dropped:
                self._dropped.add(node_id)
                return False
            self._held_bytes += length
        return True

    def _cut(self, streams: Iterable[_Stream]) -> None:
        for stream in streams:
            if stream.data:
                data, stream.data = bytes(stream.data), bytearray()
                self._queue(_Piece(stream, stream.next - len(data), stream.next, data))

    def _queue(self, piece: _Piece) -> None:
        with self._lock:
            self._queued[piece.stream.node.id] += 1
        self._pieces.put(piece)

    def _stream(self, node: Node, name: str) -> _Stream:
        known = self._streams.setdefault(node.id, {})
        return known.setdefault(name, _Stream(node, name, 0, ByteCoverage(0)))

    # --- on the writing thread

    def _write_all(self) -> None:
        while (piece := self._pieces.get()) is not None:
            try:
                self._write_patiently(piece)
            except Exception:
                # One piece must not keep all others back. The gap it leaves is asked for again when
                # the node is followed anew.
                log.exception("a piece of output is given up", node=piece.stream.node.id)
            self._count_written(piece)

    def _count_written(self, piece: _Piece) -> None:
        node_id = piece.stream.node.id
        with self._lock:
            self._held_bytes -= len(piece.data)
            self._queued[node_id] -= 1
            done = not self._queued[node_id]
            if done:
                del self._queued[node_id]
            awaited = done and node_id in self._awaited
        if awaited:
            self._written()

    def _write_patiently(self, piece: _Piece) -> None:
        """Again and again while a store is away, until we close."""
        pause_s = RETRY_FIRST_S
        while not self._closing.is_set():
            try:
                self._write(piece)
                return
            except (ObjectStoreError, StoreError) as error:
                log.warning("output not stored", node=piece.stream.node.id, error=str(error))
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, RETRY_CAP_S)

    def _write(self, piece: _Piece) -> None:
        stream, coverage = piece.stream, piece.stream.coverage
        if piece.data:
            self._put(stream.place.piece_key(piece.begin), piece.data)
        if piece.last:
            coverage.add(coverage.done, coverage.end)
        elif piece.ended is not None:
            self._put_end(stream.place, piece.ended)
            coverage.add(0, piece.ended.offset)
        else:
            coverage.add(piece.begin, piece.end)
        self._store.logs.record_offset(stream.node.id, stream.name, coverage.done)

    def _put(self, key: str, data: bytes) -> None:
        try:
            self._objects.put_if(key, data, None)
        except ConflictError:
            there, tag = self._objects.get(key)
            if len(there) < len(data):  # the same bytes by another cut: only ever make it longer
                self._objects.put_if(key, data, tag)

    def _put_end(self, place: StreamName, end: LogEnd) -> None:
        try:
            self._objects.put_if(place.end_key, write_end(end), None)
        except ConflictError:
            there, tag = self._objects.get(place.end_key)
            if read_end(place, there).offset < end.offset:
                self._objects.put_if(place.end_key, write_end(end), tag)
