"""A checkpoint on its way to the daemon: streams of bytes, cut into shards with their digests."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

from spotd.act.imports import CHUNK_BYTES, KIND, SHARD_BYTES, shard_key
from spotd.api_client.resumable_import import UnfinishedImport
from spotd.wire import Shard, Stream


class CheckpointUpload:
    """Of an import that is open. Memory holds one shard. `told` hears how many bytes have been
    taken over. Methods raise UserError."""

    def __init__(self, begun: UnfinishedImport, step: int, told: Callable[[int], None]) -> None:
        self._begun, self._step, self._told = begun, step, told
        self._held = bytearray()
        self._shards: list[Shard] = []
        self._done = 0
        self.streams: list[Stream] = []

    def take(self, part: bytes | memoryview) -> None:
        """The next bytes of the stream."""
        view = memoryview(part)
        while view:
            room = SHARD_BYTES - len(self._held)
            self._held += view[:room]
            view = view[room:]
            if len(self._held) == SHARD_BYTES:
                self._send()

    def end_stream(self) -> None:
        """What comes next is of the next one."""
        if self._held:
            self._send()
        self.streams.append(Stream(tuple(self._shards)))
        self._shards = []

    def _send(self) -> None:
        from xxhash import xxh3_128_hexdigest

        data = bytes(self._held)
        self._held.clear()
        stream, number = len(self.streams), len(self._shards)
        cuts = range(0, len(data), CHUNK_BYTES)
        digests = tuple(xxh3_128_hexdigest(data[at : at + CHUNK_BYTES]) for at in cuts)
        query = {
            "store": self._begun.store,
            "step": self._step,
            "stream": stream,
            "number": number,
            "size": len(data),
            "digests": ",".join(digests),
        }
        ident, client = self._begun.id, self._begun.client
        key = shard_key(ident, self._step, stream, number)
        if not self._begun.has(key, digests):
            path = f"/v1/imports/{ident}/shard?{urlencode(query)}"
            self._begun.ask(lambda: client.put(path, data))
            self._begun.note(key, digests)
        self._shards.append(Shard(key, len(data), CHUNK_BYTES, digests, KIND))
        self._done += len(data)
        self._told(self._done)
