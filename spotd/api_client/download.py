"""Download of a checkpoint from the daemon: one header line, the manifest, then the shards.

Shards go to a `Sink` as they arrive; each is verified before `end_shard` is called.
"""

from __future__ import annotations

import io
import json
from typing import IO, Any, Protocol, cast

from spotd.act.checkpoints import DamagedError, ShardCheck, parse_manifest
from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.api_routes.operation import Endpoint
from spotd.base.errors import UnreachableError, UserError
from spotd.wire import HeadRef, Manifest, Shard, shards_of_unit


class Sink(Protocol):
    """Where a download goes. Methods may raise OSError, StoreError and DamagedError."""

    def begin_checkpoint(self, ref: HeadRef, manifest: Manifest, data: bytes, /) -> None:
        """Start a checkpoint; `data` are the bytes of its manifest."""
        ...

    def begin_shard(self, number: int, shard: Shard, /) -> None:
        """Start a shard: the `number`-th of the manifest, from 0."""
        ...

    def write(self, part: bytes, /) -> None:
        """Take the next bytes of the shard; they are not verified before `end_shard`."""
        ...

    def end_shard(self) -> None:
        """Finish the shard: all its bytes arrived and match their digests."""
        ...


class CheckpointDownload(io.RawIOBase):
    """Parser of the download: feeds the sink shard by shard.

    The reply leaves out the first `first` shards, which the caller already has. They belong to the
    checkpoint whose manifest has the digest `expected`. With `unit` only the shards of that unit
    are counted and sent.
    """

    def __init__(self, sink: Sink, first: int = 0, expected: str = "", unit: str = "") -> None:
        super().__init__()
        self._sink, self._unit = sink, unit
        self._shards: tuple[Shard, ...] = ()
        self._buffer = b""
        self._header: dict[str, Any] = {}
        self._manifest: Manifest | None = None
        self._number = self._first = first
        self._expected = expected
        self._remaining = 0
        self._check: ShardCheck | None = None

    @property
    def started(self) -> bool:
        """Whether the header line arrived."""
        return bool(self._header)

    @property
    def complete(self) -> bool:
        """Whether every shard arrived."""
        return self._manifest is not None and self._number == len(self._shards)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = bytes(data)
        if self._manifest is None:
            self._buffer += view
            view = self._read_manifest()
        while view and self._manifest is not None:
            view = self._write_shard(view)
        return len(data)

    def _read_manifest(self) -> bytes:
        """Read the header line and the manifest; return the bytes after it, if it is complete."""
        if not self._header:
            line, newline, rest = self._buffer.partition(b"\n")
            if not newline:
                return b""
            self._header, self._buffer = json.loads(line), rest
        manifest_bytes = int(self._header["bytes"])
        if len(self._buffer) < manifest_bytes:
            return b""
        names = ("generation", "step", "manifest", "digest")
        ref = HeadRef(*(self._header[name] for name in names))
        if self._first and ref.digest != self._expected:
            raise DamagedError("it was saved again in the meantime: run it again")
        data, rest = self._buffer[:manifest_bytes], self._buffer[manifest_bytes:]
        self._manifest, self._buffer = parse_manifest(data, ref), b""
        self._shards = shards_of_unit(self._manifest, self._unit)
        self._sink.begin_checkpoint(ref, self._manifest, data)
        self._begin_next_shard()
        return rest

    def _begin_next_shard(self) -> None:
        """Start the next shard that has bytes; empty shards end at once."""
        while self._number < len(self._shards):
            shard = self._shards[self._number]
            self._check, self._remaining = ShardCheck(shard), shard.size
            self._sink.begin_shard(self._number, shard)
            if self._remaining:
                return
            self._end_shard()

    def _write_shard(self, view: bytes) -> bytes:
        if self._check is None or not self._remaining:
            raise DamagedError("it has more bytes than its manifest says")
        part, rest = view[: self._remaining], view[self._remaining :]
        self._check.feed(part)
        self._sink.write(part)
        self._remaining -= len(part)
        if not self._remaining:
            self._end_shard()
            self._begin_next_shard()
        return rest

    def _end_shard(self) -> None:
        assert self._check is not None  # noqa: S101 - `_next` made it
        self._check.end()
        self._sink.end_shard()
        self._number += 1


def fetch_checkpoint(
    sink: Sink,
    client: Client,
    job_id: str,
    which: str,
    *,
    first: int = 0,
    expected: str = "",
    unit: str = "",
) -> None:
    """Download the checkpoint `which` (a step, a pin, "" for the newest) from shard `first` on.

    With `unit` only that unit of a program's folder is sent.

    Raises UserError when the download is cut off, DamagedError, and the errors of `sink`.
    """
    download = CheckpointDownload(sink, first, expected, unit)
    query: dict[str, object] = {"name": which, "first": first, "unit": unit}
    _fetch(client, routes.PULL_CHECKPOINT(job=job_id), download, query=query)


def fetch_outputs(
    sink: Sink, client: Client, job_id: str, *, first: int = 0, expected: str = ""
) -> None:
    """Download the files that a job left, from shard `first` of their manifest on.

    Raises UserError when the download is cut off, DamagedError, and the errors of `sink`.
    """
    download = CheckpointDownload(sink, first, expected)
    _fetch(client, routes.PULL_OUTPUTS(job=job_id), download, query={"first": first})


def _fetch(
    client: Client,
    endpoint: Endpoint,
    download: CheckpointDownload,
    *,
    query: dict[str, object],
) -> None:
    try:
        client.fetch(endpoint, cast("IO[bytes]", download), query=query)
    except UnreachableError:
        if not download.started:
            raise
    if not download.complete:
        message = "the download was cut off: the store may be unavailable, or an object damaged"
        raise UserError(message, "run it again; or: spotctl ckpt verify")


def damage_error(error: DamagedError) -> UserError:
    """Return the UserError for a checkpoint that does not match its digests."""
    message = f"the download does not match the checkpoint: {error}"
    return UserError(message, "see spotctl ckpt verify")
