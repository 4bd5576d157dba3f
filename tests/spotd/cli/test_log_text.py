"""Chunks of output become lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from spotd.cli import log_text
from spotd.cli.log_text import Streams, overwrite, stamp


def chunk(text: str) -> dict[str, Any]:
    return {"generation": 1, "rank": 0, "stream": "rank0", "text": text}


def feed(*texts: str, **options: Any) -> None:
    streams = Streams({}, show_rank=False, safe=True, **options)
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


def test_a_line_is_written_over_in_place() -> None:
    """Copying a long line at each carriage return would take time in square of them."""
    line = bytearray(b"x" * (64 << 10))
    assert overwrite(line, b"ab") is line
    assert line[:3] == b"abx"
    assert overwrite(bytearray(b"x"), b"abc") == b"abc"


def test_the_state_of_a_line_is_not_copied() -> None:
    streams = Streams({}, show_rank=False, safe=True, render=True)
    streams.feed(chunk("x" * 1000 + "\r"))
    (state,) = streams._returned.values()
    streams.feed(chunk("a\rb\r"))
    (after,) = streams._returned.values()
    assert after is state
    assert after == b"b" + b"x" * 999


AT = "2026-11-28T09:00:00.500000Z"


@pytest.mark.usefixtures("berlin")
def test_each_line_has_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    streams = Streams({}, show_rank=True, safe=True, render=True, timestamps=True)
    streams.feed({**chunk("one\ntw"), "at": AT})
    streams.feed({**chunk("o\n"), "at": "2026-11-28T09:00:02.000000Z"})
    streams.feed(chunk("from an older daemon\n"))
    streams.feed({**chunk("no end"), "at": AT})
    streams.close()
    assert capsys.readouterr().out.splitlines() == [
        "2026-11-28T10:00:00+01:00 [0] one",
        "2026-11-28T10:00:02+01:00 [0] two",
        "- [0] from an older daemon",
        "2026-11-28T10:00:00+01:00 [0] no end",
    ]


@pytest.mark.usefixtures("berlin")
def test_a_line_in_parts_has_one_time(capsys: pytest.CaptureFixture[str]) -> None:
    streams = Streams({}, show_rank=False, safe=True, render=True, timestamps=True)
    streams.feed({**chunk("x" * (65 << 10)), "at": AT})
    streams.feed({**chunk("y\nz\n"), "at": AT})
    out = capsys.readouterr().out
    assert out == f"{stamp(AT)} {'x' * (65 << 10)}y\n{stamp(AT)} z\n"


BAR = ("\r 10%|#   |", "\r 50%|##  |", "\r100%|####|", "\ndone\n")


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (BAR, "100%|####|\ndone\n"),
        (("".join(BAR),), "100%|####|\ndone\n"),
        (("long text\rshort\n",), "shorttext\n"),
        (("a\r\nb\r\n",), "a\r\nb\r\n"),
        (("a\r", "\nb\n"), "a\nb\n"),  # one line end, in two pieces
        (("a\rb",), "b"),
        (("a\r",), "a"),
    ],
)
def test_a_line_that_is_written_again_is_printed_once(
    texts: tuple[str, ...], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(*texts, render=True)
    assert capsys.readouterr().out == shown


def test_without_rendering_each_state_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    feed(*BAR)
    assert capsys.readouterr().out == "\r 10%|#   |\r 50%|##  |\r100%|####|\ndone\n"


def test_lines_that_match(capsys: pytest.CaptureFixture[str]) -> None:
    feed(
        "step 1 loss 3\nnothing\nstep",
        " 2 loss 2\nend$",
        render=True,
        wanted=re.compile("loss|end.$"),
    )
    assert capsys.readouterr().out == "step 1 loss 3\nstep 2 loss 2\nend$"


def test_the_last_lines_that_match(capsys: pytest.CaptureFixture[str]) -> None:
    streams = Streams({}, show_rank=False, safe=True, render=True, wanted=re.compile("x"))
    streams.tail(2)
    streams.feed(chunk("x1\nno\nx2\nno\nx3\nno\n"))
    streams.caught_up()
    assert capsys.readouterr().out == "x2\nx3\n"
