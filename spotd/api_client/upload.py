"""Upload of a checkpoint to the daemon: byte streams, cut into shards with their digests."""

from __future__ import annotations

from collections.abc import Callable

from spotd.act.imports import CHUNK_BYTES, KIND, SHARD_BYTES, shard_key
from spotd.api_client.resumable_import import ResumableImport
from spotd.wire import Shard, Stream


class CheckpointUpload:
    """Upload into an open import. Memory holds one shard.

    `on_progress` receives the number of bytes uploaded so far. Methods raise UserError.
    """

    def __init__(
        self, session: ResumableImport, step: int, on_progress: Callable[[int], None]
    ) -> None:
        self._session, self._step, self._on_progress = session, step, on_progress
        self._buffer = bytearray()
        self._shards: list[Shard] = []
        self._done = 0
        self.streams: list[Stream] = []

    def write(self, part: bytes | memoryview) -> None:
        """Append the next bytes of the stream."""
        view = memoryview(part)
        while view:
            free = SHARD_BYTES - len(self._buffer)
            self._buffer += view[:free]
            view = view[free:]
            if len(self._buffer) == SHARD_BYTES:
                self._send()

    def end_stream(self) -> None:
        """End the stream; the bytes that follow belong to the next one."""
        if self._buffer:
            self._send()
        self.streams.append(Stream(tuple(self._shards)))
        self._shards = []

    def _send(self) -> None:
        from xxhash import xxh3_128_hexdigest

        data = bytes(self._buffer)
        self._buffer.clear()
        stream, number = len(self.streams), len(self._shards)
        cuts = range(0, len(data), CHUNK_BYTES)
        digests = tuple(xxh3_128_hexdigest(data[at : at + CHUNK_BYTES]) for at in cuts)
        query = {
            "store": self._session.store,
            "step": self._step,
            "stream": stream,
            "number": number,
            "size": len(data),
            "digests": ",".join(digests),
        }
        import_id, client = self._session.id, self._session.client
        key = shard_key(import_id, self._step, stream, number)
        if not self._session.is_stored(key, digests):
            self._session.send(lambda: client.put_shard(import_id, data, query=query))
            self._session.mark_stored(key, digests)
        self._shards.append(Shard(key, len(data), CHUNK_BYTES, digests, KIND))
        self._done += len(data)
        self._on_progress(self._done)
