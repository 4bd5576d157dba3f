"""One stream of output by offset: whole, with gaps, with its rest in the job's store."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.stores.base import ObjectStore, StoreDeniedError
from providers.stores.local import LocalStore
from spotd.api.views.log_stream import WHOLE, Gap, Piece, Stream, StreamReader
from spotd.domain.stored_logs import write_end
from spotd.wire import LogEnd, last_output_key

TEXT = b"".join(b"line %04d\n" % number for number in range(1000))  # 10,000 bytes


class Shelf:
    """A stream in the deployment's store, and its rest in the job's store."""

    def __init__(self, folder: Path) -> None:
        self.objects = LocalStore(folder / "box")
        self.job_store: ObjectStore = LocalStore(folder / "job")
        self.stream = Stream(1, 0, "rank0", 0)
        self.key = last_output_key("j1", generation=1, rank=0, stream="rank0")

    def put(self, begin: int, end: int) -> None:
        self.objects.put(self.stream.of_job("j1").piece_key(begin), TEXT[begin:end])

    def finish(self, offset: int, begin: int = 0, end: int = 0) -> None:
        record = write_end(LogEnd(1, "rank0", offset, begin=begin, end=end))
        self.objects.put(self.stream.of_job("j1").end_key, record)
        if end:
            self.job_store.put(self.key, TEXT[begin:end])

    def read(self, start: int = 0, end: int = WHOLE, most: int = 1 << 20) -> list[Piece | Gap]:
        def open_store() -> ObjectStore:
            return self.job_store

        url = "s3://bucket"
        reader = StreamReader(self.objects, open_store, url=url, job_id="j1", stream=self.stream)
        return list(reader.read(start, end, most))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def shape(parts: list[Piece | Gap]) -> list[tuple[str, int, int | None]]:
    """Each part by its kind, offset and size; every piece has the bytes of its place."""
    for part in parts:
        assert isinstance(part, Gap) or part.data == TEXT[part.offset : part.end]
    return [
        ("gap", part.offset, part.size)
        if isinstance(part, Gap)
        else ("piece", part.offset, len(part.data))
        for part in parts
    ]


def test_each_gap_has_its_size(shelf: Shelf) -> None:
    shelf.put(100, 200)
    shelf.put(150, 300)  # sent again with another cut
    shelf.put(5000, 5100)
    pieces = [("piece", 100, 100), ("piece", 200, 100), ("gap", 300, 4700), ("piece", 5000, 100)]
    assert shape(shelf.read()) == [("gap", 0, 100), *pieces]
    shelf.finish(9000)
    assert shape(shelf.read(100)) == [*pieces, ("gap", 5100, 3900)]
    assert shape(shelf.read(100, 250)) == [("piece", 100, 100), ("piece", 200, 50)]
    assert shape(shelf.read(400, 700)) == [("gap", 400, 300)]
    assert Gap(0, 4700).text == "spotd: 4,700 bytes of output are missing here"


def test_the_rest_is_read_from_the_job_s_store(shelf: Shelf) -> None:
    shelf.put(0, 1000)
    shelf.put(9900, 10_000)
    shelf.finish(10_000, begin=800, end=9950)
    assert shape(shelf.read()) == [("piece", 0, 1000), ("piece", 1000, 8900), ("piece", 9900, 100)]
    assert shape(shelf.read(2000, most=500)) == [("piece", 2000, 500)]
    shelf.finish(10_000, begin=3000, end=9000)
    assert shape(shelf.read(500)) == [
        ("piece", 500, 500),
        ("gap", 1000, 2000),
        ("piece", 3000, 6000),
        ("gap", 9000, 900),
        ("piece", 9900, 100),
    ]


def test_a_rest_that_cannot_be_read_is_named(shelf: Shelf) -> None:
    class Denied(LocalStore):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            raise StoreDeniedError("no access")

    shelf.put(0, 1000)
    shelf.finish(10_000, begin=1000, end=10_000)
    shelf.job_store.delete(shelf.key)
    (_, gap) = shelf.read()
    assert isinstance(gap, Gap)
    assert gap.size == 9000
    assert gap.text.endswith(f"stored as s3://bucket/{shelf.key}: it is not there any more")
    shelf.job_store = Denied(shelf.objects._root)
    (_, gap) = shelf.read()
    assert isinstance(gap, Gap)
    assert gap.text.endswith(f"stored as s3://bucket/{shelf.key}: no access")


def test_a_limit_does_not_cut_a_character(shelf: Shelf) -> None:
    text = "\u4e16" * 1000
    shelf.objects.put(shelf.stream.of_job("j1").piece_key(0), text.encode())
    (piece,) = shelf.read(most=100)
    assert isinstance(piece, Piece)
    assert piece.data.decode() == text[:33]
    assert sum(len(part.data) for part in shelf.read(99) if isinstance(part, Piece)) == 2901
