"""The log output of a job over all its generations, read from the deployment's store by offset."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from providers.stores.base import NotFoundError, ObjectStore
from spotd.api.request.request import ApiRequest, bad_input, not_found
from spotd.api.views.resources import iso
from spotd.domain.job import Job
from spotd.domain.states import NodeState

MAX_REPLY_BYTES = 1 << 20


@dataclass(frozen=True)
class Piece:
    """Bytes of a stream from `offset` on, and when they were stored (0: unknown)."""

    offset: int
    data: bytes
    stored_us: int


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


def chunk_prefix(job_id: str, stream: Stream) -> str:
    """Return the folder of a stream's pieces; each is named by its byte offset, 12 digits."""
    return f"logs/{job_id}/g{stream.generation}/r{stream.rank}/{stream.name}/"


def read_stream(
    objects: ObjectStore, job_id: str, stream: Stream, start: int, end: int, max_bytes: int
) -> Iterator[Piece]:
    """Yield pieces of a stream from byte `start` to `end`.

    Yields at most `max_bytes` in all. Skips bytes that never arrived (rotated away on the node
    while the connection was down).
    """
    prefix = chunk_prefix(job_id, stream)
    position, remaining = start, max_bytes
    for info in objects.list(prefix):
        first = int(info.key[len(prefix) :])
        if remaining <= 0 or first >= end:
            return
        if first + info.size <= position:
            continue
        position = max(position, first)
        length = min(first + info.size, end) - position
        length = min(length, remaining)
        try:
            data = objects.get_range(info.key, position - first, length)
        except NotFoundError:
            continue  # retention deleted it after it was listed
        yield Piece(position, data, info.modified_us)
        position, remaining = position + len(data), remaining - len(data)


def read_logs(call: ApiRequest) -> tuple[dict[str, Any], bool]:
    """Return log output after the body's `cursor` (stream key -> offset), and whether to answer
    now.

    `text` is the bytes decoded as latin-1, `at` the time at which they were stored. `done` means
    that the output is complete. Without a cursor, `tail_bytes` returns only the end, and `since_us`
    only output that was stored since then.
    """
    job, context = call.job(), call.context
    cursor = _cursor(call)
    streams = _streams(call, job)
    tail_bytes = call.number("tail_bytes", 0, 0, MAX_REPLY_BYTES)
    if tail_bytes and not cursor:
        cursor = _tail_cursor(streams, tail_bytes)
    since_us = call.number("since_us", 0, 0, sys.maxsize)
    if since_us and not call.body.get("cursor"):
        objects = context.storage.objects
        for stream in streams:
            start = _offset_since(objects, job.id, stream, since_us)
            cursor[stream.key] = max(start, cursor.get(stream.key, 0))
    finished = job.outcome is not None and not any(
        node.state is not NodeState.GONE and not node.departure.kept_until_us
        for node in context.store.nodes.of_job(job.id)
    )
    chunks, more = _collect(context.storage.objects, job.id, streams, cursor, finished=finished)
    done = finished and not more
    reply = {"kind": "Logs", "job": job.name, "chunks": chunks, "cursor": cursor}
    return reply | {"more": more, "done": done}, bool(chunks) or done or more


def _collect(
    objects: ObjectStore,
    job_id: str,
    streams: list[Stream],
    cursor: dict[str, int],
    *,
    finished: bool,
) -> tuple[list[dict[str, Any]], bool]:
    """Return up to MAX_REPLY_BYTES after `cursor`, and whether there is more. Advances `cursor`.

    After a notice the newest bytes may arrive first. The cursor waits for the bytes before them,
    unless they can no longer arrive.
    """
    chunks: list[dict[str, Any]] = []
    remaining = MAX_REPLY_BYTES
    for stream in streams:
        start = cursor.get(stream.key, 0)
        if start >= stream.size:
            continue
        end = sys.maxsize if finished else stream.size
        for piece in read_stream(objects, job_id, stream, start, end, remaining):
            place = {"generation": stream.generation, "rank": stream.rank, "stream": stream.name}
            text, at = piece.data.decode("latin-1"), iso(piece.stored_us)
            chunks.append(place | {"offset": piece.offset, "text": text, "at": at})
            remaining -= len(piece.data)
            start = piece.offset + len(piece.data)
        if remaining <= 0:
            cursor[stream.key] = start
            return chunks, True
        cursor[stream.key] = max(start, stream.size)  # skips bytes that never arrived
    return chunks, False


def _streams(call: ApiRequest, job: Job) -> list[Stream]:
    """Return the requested streams: of one node (`rank`), one `generation`, or one `stream` name.

    Raises ApiError (not found) for a stream that the job cannot have.
    """
    rank, generation = call.body.get("rank"), call.body.get("generation")
    if generation is not None and generation not in range(1, job.generation + 1):
        valid = _range("--gen", 1, job.generation) if job.generation else f"spotctl why {job.name}"
        raise not_found(f"job {job.name} has no generation {generation}", valid)
    if rank is not None and rank not in range(job.spec.resources.num_nodes):
        valid = _range("--rank", 0, job.spec.resources.num_nodes - 1)
        raise not_found(f"job {job.name} has no machine of rank {rank}", valid)
    offsets: Mapping[tuple[int, int, str], int] = call.context.store.logs.offsets(job.id)
    streams = [Stream(*key, size) for key, size in offsets.items()]
    name = call.text("stream")
    if name:
        _check_name(name, {stream.name for stream in streams})
    wanted = (
        stream
        for stream in streams
        if rank in (None, stream.rank)
        and generation in (None, stream.generation)
        and name in ("", stream.name)
    )
    return sorted(wanted, key=lambda stream: stream.order)


def _range(option: str, first: int, last: int) -> str:
    return f"{option} {first}" + (f" to {last}" if last > first else "")


def _check_name(name: str, known: set[str]) -> None:
    """Raise ApiError (not found) for an impossible stream name.

    Before anything was written, any valid stream name may appear later; and setup may write
    nothing.
    """
    if name in known | {"setup"} or (not known and re.fullmatch(r"rank\d+", name)):
        return
    names = (
        ", ".join(sorted(known, key=lambda name: (name != "setup", len(name), name)))
        or "setup, rank0, rank1, ..."
    )
    raise not_found(f"there is no stream {name!r}", f"--stream with one of: {names}")


def _cursor(call: ApiRequest) -> dict[str, int]:
    value = call.body.get("cursor") or {}
    if not isinstance(value, dict) or not all(isinstance(v, int) for v in value.values()):
        raise bad_input("cursor is not from this daemon", "start again without it")
    return dict(value)


def _offset_since(objects: ObjectStore, job_id: str, stream: Stream, since_us: int) -> int:
    """Return where a stream's first piece begins that was stored since then, or its end.

    A piece whose time is unknown counts as new.
    """
    prefix = chunk_prefix(job_id, stream)
    for info in objects.list(prefix):
        if not info.modified_us or info.modified_us >= since_us:
            return int(info.key[len(prefix) :])
    return stream.size


def _tail_cursor(streams: list[Stream], tail_bytes: int) -> dict[str, int]:
    """Return the cursor at which the last `tail_bytes` begin.

    It covers every stream of the newest generations that together have that many bytes, and skips
    older ones.
    """
    cursor, counted, generation = {}, 0, 0
    for stream in reversed(streams):
        skip = counted >= tail_bytes and stream.generation != generation
        cursor[stream.key] = stream.size if skip else max(0, stream.size - tail_bytes)
        counted += 0 if skip else min(stream.size, tail_bytes)
        generation = generation if skip else stream.generation
    return cursor
