"""Chunks of output become lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from spotd.cli import log_text
from spotd.cli.log_text import Streams


def chunk(text: str) -> dict[str, Any]:
    return {"generation": 1, "rank": 0, "stream": "rank0", "text": text}


def feed(*texts: str) -> None:
    streams = Streams({}, show_rank=False, safe=True)
    for text in texts:
        streams.feed(chunk(text))
    streams.close()


def test_pieces_are_joined_into_lines(capsys: pytest.CaptureFixture[str]) -> None:
    feed("on", "e\ntw", "o\r\nthr", "ee")
    assert capsys.readouterr().out == "one\ntwo\r\nthree"


def test_a_line_that_does_not_end_is_printed_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    feed("x" * (100 << 10), "y\n")
    assert capsys.readouterr().out == "x" * (100 << 10) + "y\n"


class Counting:
    """A pattern that counts the bytes it searches."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern, self.searched = pattern, 0

    def finditer(self, data: bytes) -> Iterator[re.Match[bytes]]:
        self.searched += len(data)
        return self.pattern.finditer(data)


def test_each_byte_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress bar or binary output may have no line end; 64 kB of it took 40 s."""
    counting = Counting(log_text._LINE_END)
    monkeypatch.setattr(log_text, "_LINE_END", counting)
    feed(*["x" * 512] * 128)
    assert counting.searched == 64 << 10
