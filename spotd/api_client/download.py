"""A checkpoint that the daemon sends as one run of bytes: a line, the manifest, the shards. Every
byte is verified before anything is made of it."""

from __future__ import annotations

import io
import json
from typing import IO, Any, Protocol, cast
from urllib.parse import urlencode

from spotd.act.checkpoints import DamagedError, ShardCheck, parse_manifest
from spotd.api_client.client import Client, job_path
from spotd.base.errors import UnreachableError, UserError
from spotd.wire import HeadRef, Manifest, Shard


class Sink(Protocol):
    """Where it goes. Methods raise OSError, StoreError and DamagedError."""

    def opened(self, ref: HeadRef, manifest: Manifest, data: bytes, /) -> None:
        """Which checkpoint it is; `data` are the manifest's bytes."""
        ...

    def begin(self, number: int, shard: Shard, /) -> None:
        """The next bytes are of this shard, the `number`-th of the manifest, from 0."""
        ...

    def take(self, part: bytes, /) -> None:
        """They are not verified before `end`."""
        ...

    def end(self) -> None:
        """The shard is there, all of it as it was saved."""
        ...


class CheckpointDownload(io.RawIOBase):
    """Takes the run of bytes apart. The first `first` shards of the checkpoint whose manifest has
    the digest `expected` do not come: they are there."""

    def __init__(self, sink: Sink, first: int = 0, expected: str = "") -> None:
        super().__init__()
        self._sink = sink
        self._held = b""
        self._line: dict[str, Any] = {}
        self._manifest: Manifest | None = None
        self._number = self._first = first
        self._expected = expected
        self._left = 0
        self._check: ShardCheck | None = None

    @property
    def begun(self) -> bool:
        """Something came."""
        return bool(self._line)

    @property
    def whole(self) -> bool:
        """All came."""
        return self._manifest is not None and self._number == len(self._manifest.shards)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = bytes(data)
        if self._manifest is None:
            self._held += view
            view = self._open()
        while view and self._manifest is not None:
            view = self._take(view)
        return len(data)

    def _open(self) -> bytes:
        """What is held beyond the manifest, once that is whole."""
        if not self._line:
            line, end, rest = self._held.partition(b"\n")
            if not end:
                return b""
            self._line, self._held = json.loads(line), rest
        wanted = int(self._line["bytes"])
        if len(self._held) < wanted:
            return b""
        names = ("generation", "step", "manifest", "digest")
        ref = HeadRef(*(self._line[name] for name in names))
        if self._first and ref.digest != self._expected:
            raise DamagedError(f"step {ref.step} was saved anew meanwhile: run it again")
        data, rest = self._held[:wanted], self._held[wanted:]
        self._manifest, self._held = parse_manifest(data, ref), b""
        self._sink.opened(ref, self._manifest, data)
        self._next()
        return rest

    def _next(self) -> None:
        """Empty shards have no bytes to come."""
        assert self._manifest is not None  # noqa: S101 - it came first
        shards = self._manifest.shards
        while self._number < len(shards):
            shard = shards[self._number]
            self._check, self._left = ShardCheck(shard), shard.size
            self._sink.begin(self._number, shard)
            if self._left:
                return
            self._close()

    def _take(self, view: bytes) -> bytes:
        if self._check is None or not self._left:
            raise DamagedError("there is more than its manifest says")
        part, rest = view[: self._left], view[self._left :]
        self._check.feed(part)
        self._sink.take(part)
        self._left -= len(part)
        if not self._left:
            self._close()
            self._next()
        return rest

    def _close(self) -> None:
        assert self._check is not None  # noqa: S101 - `_next` made it
        self._check.end()
        self._sink.end()
        self._number += 1


def fetch_into(
    sink: Sink, client: Client, job_id: str, which: str, first: int = 0, expected: str = ""
) -> None:
    """Have the checkpoint `which` (a step, a pin, "" for the newest) come, from shard `first` on.
    Raises UserError when it breaks off, DamagedError, and what `sink` raises."""
    incoming = CheckpointDownload(sink, first, expected)
    path = f"{job_path(job_id, '/checkpoints/data')}?{urlencode({'name': which, 'first': first})}"
    try:
        client.fetch(path, cast("IO[bytes]", incoming))
    except UnreachableError:
        if not incoming.begun:
            raise
    if not incoming.whole:
        text = "the checkpoint broke off: the store may be away, or an object of it damaged"
        raise UserError(text, "run it again; or: spotctl ckpt verify")


def refused(error: DamagedError) -> UserError:
    """What came is not what was saved."""
    text = f"what came is not what was saved: {error}"
    return UserError(text, "spotctl ckpt verify says more")
