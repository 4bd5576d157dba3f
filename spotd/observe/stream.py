"""Parse one node's follow stream without I/O: bytes in, facts out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spotd.wire import (
    MAX_LINE_BYTES,
    Heartbeat,
    JournalEntry,
    LogChunk,
    LogEnd,
    WireError,
    parse_line,
)

_STREAM = re.compile(r"setup|rank\d{1,5}")  # becomes part of a key in the store


@dataclass
class StreamResult:
    """The contents of some bytes.

    `garbage` counts unreadable lines. `gap` is True if an entry is missing before one of `entries`,
    and the stream has to be opened again.
    """

    entries: list[JournalEntry] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    logs: list[LogChunk | LogEnd] = field(default_factory=list)
    garbage: int = 0
    gap: bool = False


class NodeStream:
    """Cuts the stream into lines and checks their order. `after_seq` is the last recorded entry.

    A gap right behind the entry `gap_after` is passed over: it was met before, so it is in the
    node's journal itself (a line that its disk lost) and opening the stream again mends nothing.
    """

    def __init__(self, after_seq: int, gap_after: int = -1) -> None:
        self.seq = after_seq
        self._gap_after = gap_after
        self._rest = bytearray()
        self._skipping = False  # inside a line that is too long

    def feed(self, data: bytes) -> StreamResult:
        """Return the facts of the lines that `data` completes. Repeated entries are left out."""
        fed = StreamResult()
        # A long line comes in many pieces: each of them is copied and searched once.
        first, *more = data.split(b"\n")
        self._rest += first
        lines = [bytes(self._rest), *more[:-1]] if more else []
        rest = bytearray(more[-1]) if more else self._rest
        for line in lines:
            if self._skipping:
                self._skipping = False
            elif len(line) > MAX_LINE_BYTES:
                fed.garbage += 1
            elif line:
                self._take(line, fed)
        self._rest = bytearray() if self._skipping else rest
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest, self._skipping = bytearray(), True
            fed.garbage += 1
        return fed

    def _take(self, line: bytes, fed: StreamResult) -> None:
        try:
            parsed = parse_line(line)
        except WireError:
            fed.garbage += 1
            return
        match parsed:
            case JournalEntry():
                self._take_entry(parsed, fed)
            case Heartbeat():
                fed.heartbeats.append(parsed)
            case LogChunk() | LogEnd() if _sound(parsed):
                fed.logs.append(parsed)
            case _:
                fed.garbage += 1

    def _take_entry(self, entry: JournalEntry, fed: StreamResult) -> None:
        if entry.seq > self.seq and not fed.gap:
            if entry.seq > self.seq + 1 and self.seq != self._gap_after:
                fed.gap = True
                return
            self.seq = entry.seq
            fed.entries.append(entry)


def _sound(chunk: LogChunk | LogEnd) -> bool:
    """Return whether a node of ours would send this."""
    named = _STREAM.fullmatch(chunk.stream) is not None
    if isinstance(chunk, LogEnd):
        return named and chunk.begin <= chunk.end <= chunk.offset
    try:
        chunk.text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return named
