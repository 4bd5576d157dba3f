"""Logs in two files, addressed by byte offset since the start of the stream."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.agent.base.streams import LogReader, LogWriter


def read_all(reader: LogReader, offset: int) -> tuple[int, bytes]:
    """Read from `offset` to the end; returns the actual offset and the bytes."""
    begin, data = reader.read(offset, 7)
    while piece := reader.read(begin + len(data), 7)[1]:
        data += piece
    return begin, data


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(max_size=40), max_size=12),
    st.integers(1, 50),
    st.integers(0, 300),
)
def test_what_is_read_is_what_was_written(writes: list[bytes], limit: int, offset: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.log"
        writer = LogWriter(path, limit)
        for data in writes:
            writer.write(data)
        writer.close()
        text = b"".join(writes)
        reader = LogReader(path)
        first, end = reader.bounds()
        assert end == len(text)
        assert end - first >= min(len(text), limit), "at least one file's worth is kept"
        begin, data = read_all(reader, offset)
        assert data == text[begin:]
        assert begin == max(offset, first) or not data


def test_a_reader_follows_through_rotations(tmp_path: Path) -> None:
    path = tmp_path / "setup.log"
    writer, reader = LogWriter(path, 10), LogReader(path)
    text, offset = b"", 0
    for number in range(50):
        writer.write(b"%03d\n" % number)
        begin, data = reader.read(offset, 100)
        assert begin == offset
        offset += len(data)
        while data:
            text += data
            data = reader.read(offset, 100)[1]
            offset += len(data)
    writer.close()
    assert text == b"".join(b"%03d\n" % number for number in range(50))


def test_a_disk_that_takes_nothing_holds_nobody_up(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "missing" / "rank0.log")
    writer.write(b"lost")
    assert writer.dropped_bytes == 4
    (tmp_path / "missing").mkdir()
    writer.write(b"kept")
    writer.close()
    assert (tmp_path / "missing" / "rank0.log").read_bytes() == b"kept"


def test_a_stream_that_is_not_there_is_empty(tmp_path: Path) -> None:
    reader = LogReader(tmp_path / "rank0.log")
    assert reader.bounds() == (0, 0)
    assert reader.read(5, 10) == (5, b"")


def test_another_writer_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    """A restarted program writes to the same stream."""
    path, text = tmp_path / "rank0.log", b""
    for number in range(3):
        writer = LogWriter(path, 10)
        for line in (b"%d: first\n" % number, b"%d: last\n" % number):
            writer.write(line)
            text += line
        writer.close()
    reader = LogReader(path)
    first, end = reader.bounds()
    assert (end, read_all(reader, first)) == (len(text), (first, text[first:]))


def test_what_a_full_disk_refused_leaves_a_gap_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.log"
    writer, reader = LogWriter(path, 60), LogReader(path)
    for number in range(8):
        with monkeypatch.context() as full:
            if number in (1, 2, 5):
                full.setattr(os, "write", _refuse)
            writer.write(b"line %d\n" % number)
    assert reader.read(0, 100) == (0, b"line 0\n")
    assert reader.read(7, 100) == (21, b"line 3\nline 4\n")
    assert reader.read(35, 100) == (42, b"line 6\nline 7\n")
    assert reader.bounds() == (0, 56)
    assert reader.unbroken_from(0) == 42
    assert reader.unbroken_from(50) == 50
    for number in range(8, 12):  # the full file is rotated with its gaps
        writer.write(b"line %d\n" % number)
    assert reader.read(35, 100) == (42, b"line 6\nline 7\nline 8\nline 9\nline 10\nlin")
    assert reader.read(81, 100) == (81, b"e 11\n")
    assert reader.unbroken_from(0) == 42
    writer.close()
    again = LogWriter(path, 60)
    again.write(b"the next writer\n")
    assert reader.bounds() == (0, 56 + 7 + 7 + 8 + 8 + 16)


def test_a_gap_at_the_very_end_is_known_once_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = LogWriter(tmp_path / "rank0.log"), LogReader(tmp_path / "rank0.log")
    writer.write(b"first\n")
    with monkeypatch.context() as full:
        full.setattr(os, "write", _refuse)
        writer.write(b"lost\n")
    assert reader.bounds() == (0, 6)
    writer.record_dropped()
    assert reader.bounds() == (0, 11)
    assert reader.unbroken_from(0) == 11


def _refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, "the disk is full")
