"""The log output of a job over all its generations, read from the deployment's store by offset."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from providers.stores.base import ObjectStore
from spotd.api.request.request import ApiRequest, bad_input, not_found
from spotd.api.views.log_stream import WHOLE, Gap, Piece, Stream, StreamReader
from spotd.api.views.resources import iso
from spotd.domain.job import Job
from spotd.domain.node import Node

MAX_REPLY_BYTES = 1 << 20
END = "/end"  # after a stream's key in a cursor: all of it, and the mark at its end, was sent


def read_logs(call: ApiRequest) -> tuple[dict[str, Any], bool]:
    """Return log output after the body's `cursor` (stream key -> offset), and whether to answer
    now.

    `text` is the bytes decoded as latin-1, `at` the time at which they were stored. A chunk with
    `missing` is a gap: `bytes` are missing there, null if it is not known how many. `done` means
    that no more comes. Without a cursor, `tail_bytes` returns only the end, and `since_us`
    only output that was stored since then.
    """
    job, context = call.job(), call.context
    cursor = _cursor(call)
    streams = _streams(call, job)
    tail_bytes = call.number("tail_bytes", 0, 0, MAX_REPLY_BYTES)
    if tail_bytes and not cursor:
        cursor = _tail_cursor(streams, tail_bytes)
    since_us = call.number("since_us", 0, 0, sys.maxsize)
    nodes = context.store.nodes.of_job(job.id)
    over = _machines_over(job, nodes)
    if since_us and not call.body.get("cursor"):
        objects = context.storage.objects
        for stream in streams:
            start = _offset_since(objects, job.id, stream, since_us)
            cursor[stream.key] = max(start, cursor.get(stream.key, 0))
            if start >= stream.size and (stream.generation, stream.rank) in over:
                cursor[stream.key + END] = start
    finished = job.outcome is not None and len(over) == len(_places(nodes))
    chunks, more = _collect(call, job, streams, cursor, over)
    done = finished and not more
    reply = {"kind": "Logs", "job": job.name, "chunks": chunks, "cursor": cursor}
    return reply | {"more": more, "done": done}, bool(chunks) or done or more


def stream_reader(call: ApiRequest, job: Job, stream: Stream) -> StreamReader:
    """Return the reader of a stream of this job."""
    storage, url = call.context.storage, job.spec.checkpoint.store
    return StreamReader(
        storage.objects,
        lambda: storage.open_store(url),
        url=url,
        job_id=job.id,
        stream=stream,
    )


def _collect(
    call: ApiRequest,
    job: Job,
    streams: list[Stream],
    cursor: dict[str, int],
    over: set[tuple[int, int]],
) -> tuple[list[dict[str, Any]], bool]:
    """Return up to MAX_REPLY_BYTES after `cursor`, and whether there is more. Advances `cursor`.

    After a notice the newest bytes may arrive first. The cursor waits for the bytes before them,
    unless they can no longer arrive.
    """
    chunks: list[dict[str, Any]] = []
    remaining = MAX_REPLY_BYTES
    for stream in streams:
        ended = (stream.generation, stream.rank) in over
        start, is_new = cursor.get(stream.key, 0), stream.key + END not in cursor
        if start >= stream.size and not (ended and is_new):
            continue
        reader = stream_reader(call, job, stream)
        for part in reader.read(start, WHOLE if ended else stream.size, remaining):
            chunks.append(_chunk(stream, part))
            remaining -= len(part.data) if isinstance(part, Piece) else 0
            start = part.end
        if reader.is_full():
            cursor[stream.key] = start
            return chunks, True
        cursor[stream.key] = start = max(start, stream.size)
        if ended:
            cursor[stream.key + END] = start
            if is_new and reader.end is None and _is_last(stream, streams):
                chunks.append(_chunk(stream, Gap(start, None)))
    return chunks, False


def _chunk(stream: Stream, part: Piece | Gap) -> dict[str, Any]:
    """Return a part of the output for the reply; a gap has no text, and says what is missing."""
    place = {"generation": stream.generation, "rank": stream.rank, "stream": stream.name}
    if isinstance(part, Piece):
        text, at = part.data.decode("latin-1"), iso(part.stored_us)
        return {**place, "offset": part.offset, "text": text, "at": at}
    missing = {"bytes": part.size, "text": part.text}
    return {**place, "offset": part.offset, "text": "", "at": None, "missing": missing}


def _machines_over(job: Job, nodes: Sequence[Node]) -> set[tuple[int, int]]:
    """Return the generations and ranks whose machines send nothing more.

    After the end of a job, a machine may be retained for its user.
    """
    sending = [
        node
        for node in nodes
        if node.active and not (job.outcome is not None and node.departure.kept_until_us)
    ]
    return _places(nodes) - _places(sending)


def _places(nodes: Sequence[Node]) -> set[tuple[int, int]]:
    return {(node.generation, node.rank) for node in nodes}


def _is_last(stream: Stream, streams: list[Stream]) -> bool:
    """Return whether a machine that was lost may have printed more into this stream.

    Once its program prints, the output of `setup` is complete.
    """
    place = (stream.generation, stream.rank)
    others = {other.name for other in streams if (other.generation, other.rank) == place}
    return stream.name != "setup" or others == {"setup"}


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
    prefix = stream.of_job(job_id).prefix
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
        if skip:
            cursor[stream.key + END] = stream.size
        cursor[stream.key] = stream.size if skip else max(0, stream.size - tail_bytes)
        counted += 0 if skip else min(stream.size, tail_bytes)
        generation = generation if skip else stream.generation
    return cursor
