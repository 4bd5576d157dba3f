"""Log text: joins chunks of several output streams into lines and makes them safe to print."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

from spotd.base.text import clean, place
from spotd.cli.local_time import instant
from spotd.cli.render import print_message
from spotd.wire import whole_characters

_Key = tuple[int, int, str]  # generation, rank, stream

_MAX_LINE = 64 << 10
_LINE_END = re.compile(rb"\r\n|\r|\n")
# Colours and other text attributes are harmless; all other escape sequences are removed.
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def safe_line(text: str) -> str:
    """Return a line that is safe to print: colours stay, other control characters are removed."""
    parts = _COLOUR.split(text)
    safe = [
        part if index % 2 else clean(_ESCAPE.sub("", part).replace("\t", "    "))
        for index, part in enumerate(parts)
    ]
    return "".join(safe) + ("\x1b[0m" if len(parts) > 1 else "")


def overwrite(old: bytearray, new: bytes) -> bytearray:
    """Write `new` over the beginning of `old`, as a terminal does after a carriage return.

    It happens in place: a program may write over a long line very often.
    """
    old[: len(new)] = new
    return old


def stamp(at: str | None) -> str:
    """Return a time of the API as one word, as `instant` shows it; "-" if it is unknown."""
    return instant(at).replace(" ", "T") if at else "-"


def _key(chunk: Mapping[str, Any]) -> _Key:
    return chunk["generation"], chunk["rank"], chunk["stream"]


class Streams:
    """Joins the chunks of a reply into lines, with one buffer for each stream.

    Where output is missing, a line of its own says so; it is printed whatever is `wanted`.

    With `render`, of a line that is written several times, as progress bars do by a carriage
    return, only its last state is printed. With `wanted`, only lines that it matches are.
    """

    def __init__(
        self,
        nodes: dict[int, dict[str, Any]],
        *,
        show_rank: bool,
        safe: bool,
        render: bool = False,
        wanted: re.Pattern[str] | None = None,
        timestamps: bool = False,
    ) -> None:
        self._nodes = nodes
        self._show_rank = show_rank
        self._safe = safe
        self._render = render
        self._is_raw = not safe and not render
        self._wanted = wanted
        self._timestamps = timestamps
        self._unended: _Key | None = None  # the stream whose last printed part has no line end
        self._partial: dict[_Key, bytearray] = {}
        self._returned: dict[_Key, bytearray] = {}  # before a carriage return
        self._at: dict[_Key, str | None] = {}  # when the last piece was stored
        self._generation = 0
        self._tail: deque[tuple[dict[str, Any], bytes]] | None = None

    def tail(self, lines: int) -> None:
        """Hold back all but the last `lines` lines until `caught_up`; 0 holds nothing back."""
        self._tail = deque(maxlen=lines) if lines else None

    def feed(self, chunk: dict[str, Any]) -> None:
        """Print the complete lines of one chunk of the API."""
        key = _key(chunk)
        if chunk.get("missing"):
            self._gap(chunk, chunk["missing"]["text"])
            return
        self._at[key] = chunk.get("at")
        partial = self._partial.pop(key, bytearray())
        data, end = chunk["text"].encode("latin-1"), 0
        # Only what is new is searched: a line may be very long, and come in very small pieces.
        for match in _LINE_END.finditer(data):
            text = self._over(key, bytes(partial) + data[end : match.start()])
            if self._render and match[0] == b"\r":
                self._returned[key] = text if isinstance(text, bytearray) else bytearray(text)
            else:
                self._line(chunk, bytes(text) + match[0])
            partial.clear()
            end = match.end()
        partial += data[end:]
        if len(partial) > _MAX_LINE:
            whole = whole_characters(partial)
            self._line(chunk, bytes(self._over(key, bytes(partial[:whole]))))
            del partial[:whole]
        if partial:
            self._partial[key] = partial

    def _gap(self, chunk: dict[str, Any], text: str) -> None:
        """End the line before a gap, and print the mark of the gap."""
        key = _key(chunk)
        self._close(key)
        self._print(chunk, f"--- {text} ---\n".encode())

    def _over(self, key: _Key, text: bytes) -> bytes | bytearray:
        """Return the text over the state that the line had before."""
        before = self._returned.pop(key, None)
        return text if before is None else overwrite(before, text)

    def caught_up(self) -> None:
        """Print the lines that `tail` held back, and flush."""
        held_back, self._tail = self._tail, None
        for chunk, line in held_back or ():
            self._print(chunk, line)
        sys.stdout.flush()

    def close(self) -> None:
        """Print the lines that have no line end."""
        for key in dict.fromkeys((*self._returned, *self._partial)):
            self._close(key)
        sys.stdout.flush()

    def _close(self, key: _Key) -> None:
        """Print the line of a stream that has no line end yet."""
        if key not in self._partial and key not in self._returned:
            return
        generation, rank, name = key
        chunk = {"generation": generation, "rank": rank, "stream": name}
        chunk["at"] = self._at.get(key)
        self._line(chunk, bytes(self._over(key, bytes(self._partial.pop(key, b"")))))

    def _line(self, chunk: dict[str, Any], line: bytes) -> None:
        if self._wanted and not self._wanted.search(line.decode(errors="replace").rstrip("\r\n")):
            return
        self._print(chunk, line)

    def _print(self, chunk: dict[str, Any], line: bytes) -> None:
        if self._tail is not None:
            self._tail.append((chunk, line))
            return
        out, continues = sys.stdout.buffer, _key(chunk) == self._unended
        if self._unended and (chunk.get("missing") or (not continues and not self._is_raw)):
            out.write(b"\n")  # a line of another stream, or a mark, begins with a line of its own
            continues = False
        self._announce(chunk["generation"])
        if self._timestamps and not continues:
            out.write(f"{stamp(chunk.get('at'))} ".encode())
        self._unended = None if line.endswith((b"\n", b"\r")) else _key(chunk)
        if self._show_rank and not continues:
            out.write(f"[{chunk['rank']}] ".encode())
        if not self._safe:
            out.write(line)
            return
        body = line.rstrip(b"\r\n")
        ending = line[len(body) :].decode()
        out.write((safe_line(body.decode(errors="replace")) + ending).encode())

    def _announce(self, generation: int) -> None:
        if generation == self._generation:
            return
        sys.stdout.flush()
        node = self._nodes.get(generation)
        place_text = f" on {place(node)}" if node else ""
        if self._generation or generation > 1:
            print_message(f"--- generation {generation}{place_text} ---")
        self._generation = generation
