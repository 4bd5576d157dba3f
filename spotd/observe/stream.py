"""One node's follow stream, without I/O: bytes in, facts out."""

from __future__ import annotations

from dataclasses import dataclass, field

from spotd.wire import (
    MAX_LINE_BYTES,
    Heartbeat,
    JournalEntry,
    LogChunk,
    WireError,
    parse_line,
)


@dataclass
class Fed:
    """What some bytes held. `garbage` counts lines that were none of ours; `gap` is true when an
    entry is missing before one of `entries`: the stream must be opened again."""

    entries: list[JournalEntry] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    logs: list[LogChunk] = field(default_factory=list)
    garbage: int = 0
    gap: bool = False


class NodeStream:
    """Cuts the stream into lines and checks their order. `after_seq` is the last recorded entry."""

    def __init__(self, after_seq: int) -> None:
        self.seq = after_seq
        self._rest = b""
        self._skipping = False  # inside a line that is too long

    def feed(self, data: bytes) -> Fed:
        """Facts of the lines that `data` completes. Entries that came before are left out."""
        fed = Fed()
        *lines, rest = (self._rest + data).split(b"\n")
        for number, line in enumerate(lines):
            if number == 0 and self._skipping:
                self._skipping = False
            elif line:
                self._take(line, fed)
        self._rest = rest
        if len(rest) > MAX_LINE_BYTES:
            self._rest, self._skipping = b"", True
            fed.garbage += 1
        return fed

    def _take(self, line: bytes, fed: Fed) -> None:
        try:
            found = parse_line(line)
        except WireError:
            fed.garbage += 1
            return
        match found:
            case JournalEntry():
                if found.seq <= self.seq:
                    return
                fed.gap = fed.gap or found.seq != self.seq + 1
                if not fed.gap:
                    self.seq = found.seq
                    fed.entries.append(found)
            case Heartbeat():
                fed.heartbeats.append(found)
            case LogChunk():
                fed.logs.append(found)
