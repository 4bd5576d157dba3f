"""Job output on its way into the deployment's store: gathered, written in pieces, never twice."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field

import structlog

from providers.stores.base import ObjectStore
from providers.stores.base import StoreError as ObjectStoreError
from spotd.model import Node
from spotd.store.base import Store, StoreError
from spotd.wire import LogChunk

log = structlog.get_logger(__name__)

PIECE_BYTES = 64 << 10
PIECE_S = 1.0
_RETRY_S = 1.0


def log_key(node: Node, stream: str, offset: int) -> str:
    """Where a piece of output lies; pieces sort by their offset."""
    return f"logs/{node.job_id}/g{node.generation}/r{node.rank}/{stream}/{offset:012d}"


@dataclass
class _Piece:
    node: Node
    stream: str
    offset: int
    data: bytearray = field(default_factory=bytearray)
    since_s: float = 0.0


class Output:
    """Takes chunks from the follower; one thread writes them, so that a slow store delays nothing
    but the logs."""

    def __init__(self, store: Store, objects: ObjectStore) -> None:
        self._store = store
        self._objects = objects
        self._open: dict[tuple[str, str], _Piece] = {}
        self._full: queue.Queue[_Piece | None] = queue.Queue()
        self._thread = threading.Thread(target=self._write_all, name="output", daemon=True)
        self._thread.start()

    def take(self, node: Node, chunk: LogChunk) -> None:
        """Gather a chunk; what does not follow on from the last one starts a new piece."""
        key, data = (node.id, chunk.stream), chunk.text.encode("latin-1", "replace")
        piece = self._open.get(key)
        if piece is not None and chunk.offset != piece.offset + len(piece.data):
            self._full.put(self._open.pop(key))
            piece = None
        if piece is None:
            piece = _Piece(node, chunk.stream, chunk.offset, since_s=time.monotonic())
            self._open[key] = piece
        piece.data += data
        if len(piece.data) >= PIECE_BYTES:
            self._full.put(self._open.pop(key))

    def flush(self, node_id: str = "") -> None:
        """Hand on what has waited long enough; everything of `node_id` at once."""
        now_s = time.monotonic()
        for key, piece in list(self._open.items()):
            if key[0] == node_id or now_s - piece.since_s >= PIECE_S:
                self._full.put(self._open.pop(key))

    def close(self) -> None:
        """Write what there is, then end."""
        for key in list(self._open):
            self._full.put(self._open.pop(key))
        self._full.put(None)
        self._thread.join(timeout=10)

    def _write_all(self) -> None:
        while (piece := self._full.get()) is not None:
            try:
                self._write(piece)
            except (ObjectStoreError, StoreError) as error:
                # The offset is not recorded: the node sends it again when it is followed anew.
                log.warning("output not stored", node=piece.node.id, error=str(error))
                time.sleep(_RETRY_S)

    def _write(self, piece: _Piece) -> None:
        self._objects.put(log_key(piece.node, piece.stream, piece.offset), bytes(piece.data))
        end = piece.offset + len(piece.data)
        self._store.record_log_offset(piece.node.id, piece.stream, end)
