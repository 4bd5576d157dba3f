"""Search a job's whole stored output, the newest first, a bounded part of it per request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from spotd.api.request.request import ApiRequest, bad_input
from spotd.api.routes.logs import stream_reader
from spotd.api.views.log_stream import WHOLE, Gap, Stream, StreamReader

SEARCH_BYTES = 4 << 20  # that one request reads
LINE_BYTES = 64 << 10  # a longer line may be searched in parts
MOST_MATCHES = 500  # lines in one reply
MOST_CHARACTERS = 2000  # of a line in the reply
_BEFORE = re.compile(r"(\d+/\d+/\w+):(\d{1,19})")


def search_logs(call: ApiRequest) -> dict[str, Any]:
    """Return the lines that have `text`, in upper or lower case, the newest stream first.

    One reply searches at most SEARCH_BYTES. `next` is `before` of the next request, null once all
    was searched; `left_bytes` are older and were not searched yet, `missing_bytes` were not fetched
    from their machine and cannot be.
    """
    job, text = call.job(), call.query.get("text", "").lower()
    if not text:
        raise bad_input("text is empty", "text=Error")
    streams = [Stream(*key, size) for key, size in call.context.store.logs.offsets(job.id).items()]
    todo = _todo(sorted(streams, key=lambda stream: stream.order), call.query.get("before", ""))
    items: list[dict[str, Any]] = []
    searched, missing, room = 0, 0, MOST_MATCHES
    while todo and room and SEARCH_BYTES - searched >= LINE_BYTES:
        stream, limit = todo.pop()
        reader = stream_reader(call, job, stream)
        end = reader.newest_end() if limit == WHOLE else limit
        begin, lines, gaps = _lines(reader, end, SEARCH_BYTES - searched)
        matches = [(at, line) for at, line in lines if text in line.lower()]
        if len(matches) > room:
            matches = matches[-room:]
            begin = matches[0][0]  # those before it are found again
        if matches:
            items.append(_found(stream, matches))
        searched, room = searched + end - begin, room - len(matches)
        missing += sum(max(gap.end - max(gap.offset, begin), 0) for gap in gaps)
        if begin:
            todo.append((stream, begin))
    return {
        "kind": "LogSearch",
        "job": job.name,
        "items": items,
        "searched_bytes": searched - missing,
        "missing_bytes": missing,
        "left_bytes": sum(min(stream.size, limit) for stream, limit in todo),
        "next": f"{todo[-1][0].key}:{todo[-1][1]}" if todo else None,
    }


def _todo(streams: Sequence[Stream], before: str) -> list[tuple[Stream, int]]:
    """Return the streams that are still to be searched, the newest last, and up to where.

    What began after the first page is newer than `before`, and left out.
    """
    if not before:
        return [(stream, WHOLE) for stream in streams]
    match = _BEFORE.fullmatch(before)
    at = next((n for n, stream in enumerate(streams) if match and stream.key == match[1]), None)
    if match is None or at is None:
        raise bad_input("before is not from this daemon", "leave it out")
    older = [(stream, WHOLE) for stream in streams[:at]]
    return [*older, (streams[at], int(match[2]))]


def _lines(
    reader: StreamReader, end: int, most: int
) -> tuple[int, list[tuple[int, str]], list[Gap]]:
    """Return up to `most` bytes before `end` as lines with their offsets, where they begin, and
    the gaps in them.

    The first line is left to the next request unless it begins there.
    """
    start = max(0, end - most)
    runs: list[tuple[int, bytearray]] = []  # without the bytes that never arrived
    gaps = []
    for piece in reader.read(start, end, most):
        if isinstance(piece, Gap):
            gaps.append(piece)
        elif runs and runs[-1][0] + len(runs[-1][1]) == piece.offset:
            runs[-1][1].extend(piece.data)
        else:
            runs.append((piece.offset, bytearray(piece.data)))
    begin = start
    if start and runs and runs[0][0] == start and (cut := runs[0][1].find(b"\n") + 1):
        begin = start + cut
        runs[0] = (begin, runs[0][1][cut:])
    lines: list[tuple[int, str]] = []
    for at, data in runs:
        parts = bytes(data).splitlines(keepends=True)
        offsets = accumulate(map(len, parts), initial=at)
        lines += [
            (offset, part.rstrip(b"\r\n").decode(errors="replace"))
            for offset, part in zip(offsets, parts, strict=False)
        ]
    return begin, lines, gaps


def _found(stream: Stream, matches: Sequence[tuple[int, str]]) -> dict[str, Any]:
    lines = [{"offset": at, "text": line[:MOST_CHARACTERS]} for at, line in matches]
    place = {"generation": stream.generation, "rank": stream.rank, "stream": stream.name}
    return {**place, "lines": lines}
