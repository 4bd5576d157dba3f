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


def gap(bytes_: int | None = 100) -> dict[str, Any]:
    missing = {"bytes": bytes_, "text": f"spotd: {bytes_} bytes of output are missing here"}
    return {**chunk(""), "at": None, "missing": missing}


MARK = "--- spotd: 100 bytes of output are missing here ---\n"


@pytest.mark.parametrize(
    "options",
    [
        {"safe": True},
        {"safe": False},  # --raw
        {"safe": False, "render": True},  # not on a terminal
        {"safe": False, "wanted": re.compile("two|four")},
        {"safe": False, "render": True, "tail": 3},
    ],
    ids=["terminal", "raw", "pipe", "grep", "tail"],
)
def test_a_gap_is_marked_between_lines(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tail = options.pop("tail", 0)
    streams = Streams({}, show_rank=False, **options)
    streams.tail(tail)
    for part in (chunk("one\ntw"), chunk("o"), gap(), chunk("ee\nfour\n"), gap()):
        streams.feed(part)
    streams.caught_up()
    streams.close()
    out = capsys.readouterr().out
    if tail:
        assert out == f"ee\nfour\n{MARK}"
    elif "wanted" in options:
        assert out == f"two\n{MARK}four\n{MARK}"
    else:
        assert out == f"one\ntwo\n{MARK}ee\nfour\n{MARK}"


def test_a_gap_within_a_line_over_which_others_write_ends_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A long line is printed in parts; so is a progress bar's last state."""
    streams = Streams({}, show_rank=False, safe=False)
    for part in (chunk("x" * (100 << 10)), gap(), chunk("y\n")):
        streams.feed(part)
    streams.close()
    assert capsys.readouterr().out == "x" * (100 << 10) + f"\n{MARK}y\n"
    streams = Streams({}, show_rank=False, safe=False, render=True)
    for part in (chunk("10%\r20%\r"), gap(), chunk("done\n")):
        streams.feed(part)
    streams.close()
    assert capsys.readouterr().out == f"20%\n{MARK}done\n"


def test_the_gap_of_one_machine_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    streams = Streams({}, show_rank=True, safe=False, render=True)
    other = {"rank": 1, "stream": "rank1"}
    for part in (chunk("one\ntw"), {**chunk("a\nb"), **other}, {**gap(), **other}, chunk("o\n")):
        streams.feed(part)
    streams.close()
    assert capsys.readouterr().out == f"[0] one\n[1] a\n[1] b\n[1] {MARK}[0] two\n"


def test_parts_of_a_long_line_are_no_lines_and_cut_no_character(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A megabyte without a line end, of two machines."""
    text = "\u4e16" * 300_000
    data = text.encode().decode("latin-1")
    streams = Streams({}, show_rank=True, safe=True)
    for start in range(0, len(data), 10_000):
        streams.feed(chunk(data[start : start + 10_000]))
    streams.feed({**chunk("other\n"), "rank": 1, "stream": "rank1"})
    streams.feed(chunk("end\n"))
    streams.close()
    first, second, third, rest = capsys.readouterr().out.split("\n")
    assert second == "[1] other"
    assert (first.removeprefix("[0] ") + third.removeprefix("[0] ")) == f"{text}end"
    assert rest == ""
