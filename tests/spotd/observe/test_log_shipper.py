"""Logs on their way into the store: every byte in its place, whatever is sent again or fails."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.stores.base import StoreUnavailableError
from providers.stores.local import LocalStore
from spotd.base.clock import SystemClock
from spotd.domain.node import Node
from spotd.domain.stored_logs import read_end
from spotd.observe import log_shipper
from spotd.observe.log_shipper import PIECE_BYTES, ByteCoverage, Output, stream_name
from spotd.store.sql_store import SqlStore
from spotd.wire import LogChunk, LogEnd
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.spotd.store import build

SAID = random.Random(5).randbytes(300_000)


class Flaky(LocalStore):
    """A store that can be away."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.there = threading.Event()
        self.there.set()
        self.refused = 0
        self.bugs: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        if not self.bugs.empty():
            raise self.bugs.get()
        if not self.there.is_set():
            self.refused += 1
            raise StoreUnavailableError("away")
        return super().put_if(key, data, tag)


class Bench:
    """An output with one node."""

    def __init__(self, store: SqlStore, folder: Path) -> None:
        build.placed(store)
        self.store = store
        self.node: Node = build.node(store)
        self.objects = Flaky(folder / "objects")
        self.output = Output(store, self.objects, SystemClock())

    def offsets(self) -> dict[str, int]:
        found = self.store.logs.offsets("j1")
        return {stream: offset for (_, _, stream), offset in found.items()}

    def say(self, begin: int, end: int, stream: str = "rank0") -> None:
        text = SAID[begin:end].decode("latin-1")
        self.output.take(self.node, LogChunk(1, stream, begin, text))

    def recorded(self, stream: str = "rank0") -> int:
        return self.offsets().get(stream, 0)

    def wait_recorded(self, end: int) -> None:
        self.output.flush(self.node.id)
        wait_until(f"{end} bytes on record", lambda: self.recorded() == end)

    def stored(self) -> bytes:
        """Put together by offset, from the beginning; "." where a byte is missing."""
        found = bytearray()
        prefix = stream_name(self.node, "rank0").prefix
        for info in self.objects.list(prefix):
            begin = int(info.key[len(prefix) :])
            found += b"." * (begin - len(found))
            found += self.objects.get(info.key)[0][max(len(found) - begin, 0) :]
        return bytes(found)


@contextmanager
def bench(store: SqlStore, folder: Path) -> Iterator[Bench]:
    found = Bench(store, folder)
    try:
        yield found
    finally:
        found.objects.there.set()
        found.output.close()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20))), st.integers(0, 30))
def test_coverage_is_the_unbroken_beginning(spans: list[tuple[int, int]], done: int) -> None:
    coverage, known = ByteCoverage(done), set(range(done))
    for begin, length in spans:
        coverage.add(begin, begin + length)
        known |= set(range(begin, begin + length))
        unbroken = next(byte for byte in range(200) if byte not in known)
        assert coverage.done == unbroken
        assert coverage.end == max([*known, -1]) + 1


def test_pieces_are_gathered_and_on_record_when_they_are_stored(
    store: SqlStore, tmp_path: Path
) -> None:
    with bench(store, tmp_path) as found:
        for begin in range(0, 150_000, 500):
            found.say(begin, begin + 500)
        found.wait_recorded(150_000)
        assert found.stored() == SAID[:150_000]
        assert len(list(found.objects.list("logs/"))) <= 150_000 // PIECE_BYTES + 1


def test_what_waits_is_written_within_a_second_or_so(store: SqlStore, tmp_path: Path) -> None:
    with bench(store, tmp_path) as found:
        found.say(0, 10)
        wait_until("written", lambda: found.output.flush() or found.recorded() == 10)


def test_an_end_writes_what_there_is(store: SqlStore, tmp_path: Path) -> None:
    with bench(store, tmp_path) as found:
        found.say(0, 10)
    assert found.recorded() == 10


def test_a_second_telling_by_other_cuts_changes_nothing(store: SqlStore, tmp_path: Path) -> None:
    """A piece was written and its offset not recorded: the node sends it again, cut otherwise. A
    short piece must not replace a long one of the same beginning."""
    with bench(store, tmp_path) as found:
        found.say(0, 60_000)
        found.wait_recorded(60_000)
        found.output.begin(found.node, {"rank0": 0})
        found.say(0, 100)
        found.wait_recorded(60_000)
        found.output.begin(found.node, {"rank0": 0})
        wait_until("nothing waits", found.output._pieces.empty)
        assert found.stored() == SAID[:60_000]
        found.say(0, 62_000)
        found.wait_recorded(62_000)
        assert found.stored() == SAID[:62_000]


def test_the_tail_first_is_stored_and_the_rest_still_asked_for(
    store: SqlStore, tmp_path: Path
) -> None:
    """After a notice the newest bytes come first. Whoever follows next must go on before them."""
    with bench(store, tmp_path) as found:
        found.say(0, 1000)
        found.say(50_000, 60_000)
        found.wait_recorded(1000)
        wait_until("the tail", lambda: found.stored()[50_000:] == SAID[50_000:60_000])
        found.say(1000, 50_000)
        found.wait_recorded(60_000)
        found.say(60_000, 61_000)
        found.wait_recorded(61_000)
        assert found.stored() == SAID[:61_000]


def test_a_tail_that_is_all_there_will_be_counts_in_the_end(
    store: SqlStore, tmp_path: Path
) -> None:
    with bench(store, tmp_path) as found:
        found.say(0, 1000)
        found.say(50_000, 60_000)
        found.wait_recorded(1000)
        found.output.end(found.node.id)
        wait_until("all on record", lambda: found.recorded() == 60_000)
        assert found.output.nodes == set()


def test_what_was_rotated_away_is_not_asked_for_again(store: SqlStore, tmp_path: Path) -> None:
    with bench(store, tmp_path) as found:
        found.output.begin(found.node, {"rank0": 0})
        found.say(20_000, 30_000)
        found.say(30_000, 40_000)
        found.wait_recorded(40_000)
        assert found.stored() == b"." * 20_000 + SAID[20_000:40_000]


def test_a_store_that_is_away_costs_nothing(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shipper, "RETRY_FIRST_S", 0.01)
    with bench(store, tmp_path) as found:
        found.objects.there.clear()
        for begin in range(0, 300_000, 10_000):
            found.say(begin, begin + 10_000)
        wait_until("it was tried", lambda: found.objects.refused > 2)
        assert found.recorded() == 0
        found.objects.there.set()
        found.wait_recorded(300_000)
        assert found.stored() == SAID


def test_a_piece_that_a_bug_is_in_the_way_of_is_its_own(store: SqlStore, tmp_path: Path) -> None:
    """The one writing thread goes on, and the gap is asked for again."""
    with bench(store, tmp_path) as found:
        found.objects.bugs.put(ZeroDivisionError("a bug"))
        found.say(0, 100)
        found.output.flush(found.node.id)
        found.say(100, 200)
        found.say(0, 50, "rank1")
        found.output.flush(found.node.id)
        wait_until("the others to be written", lambda: found.recorded("rank1") == 50)
        assert found.recorded() == 0
        found.output.begin(found.node, {"rank0": 0})
        found.say(0, 100)
        found.wait_recorded(200)
        assert found.stored() == SAID[:200]


def test_more_than_we_can_hold_is_fetched_again(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing behind a hole counts, however much arrives there, and the hole is reported once
    there is room."""
    monkeypatch.setattr(log_shipper, "HELD_BYTES", 200_000)
    with bench(store, tmp_path) as found:
        found.objects.there.clear()
        for begin in range(0, 250_000, 10_000):
            found.say(begin, begin + 10_000)
        assert found.output.incomplete() == []
        found.objects.there.set()
        found.wait_recorded(200_000)
        found.say(250_000, 260_000)
        found.say(260_000, 270_000)
        found.output.flush(found.node.id)
        assert wait_until("reported", found.output.incomplete) == [found.node.id]
        assert found.output.incomplete() == []
        wait_until("all is written", lambda: found.output._held_bytes == 0)
        assert found.recorded() == 200_000
        found.output.begin(found.node, found.offsets())
        for begin in range(200_000, 300_000, 10_000):
            found.say(begin, begin + 10_000)
        found.wait_recorded(300_000)
        assert found.stored() == SAID


def test_an_end_says_what_is_missing_once_all_before_it_is_written(
    store: SqlStore, tmp_path: Path
) -> None:
    with bench(store, tmp_path) as found:
        place = stream_name(found.node, "rank0")
        found.objects.there.clear()
        found.say(0, 1000)
        found.say(50_000, 60_000)
        found.output.finish(found.node, LogEnd(1, "rank0", 60_000, begin=900, end=60_000))
        assert found.output.unwritten(found.node.id)
        assert found.recorded() == 0
        found.objects.there.set()
        wait_until("written", lambda: not found.output.unwritten(found.node.id))
        assert found.recorded() == 60_000
        end = read_end(place, found.objects.get(place.end_key)[0])
        assert (end.offset, end.begin, end.end) == (60_000, 900, 60_000)
        # A later program of the same machine goes on with the stream.
        found.say(60_000, 61_000)
        found.output.finish(found.node, LogEnd(1, "rank0", 61_000))
        found.output.finish(
            found.node, LogEnd(1, "rank0", 60_500)
        )  # told again by another follower
        wait_until("written", lambda: not found.output.unwritten(found.node.id))
        assert read_end(place, found.objects.get(place.end_key)[0]).offset == 61_000


def test_what_was_dropped_here_is_not_called_missing(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shipper, "HELD_BYTES", 20_000)
    with bench(store, tmp_path) as found:
        found.objects.there.clear()
        for begin in range(0, 40_000, 10_000):
            found.say(begin, begin + 10_000)
        assert found.output.drops(found.node.id)
        found.output.finish(found.node, LogEnd(1, "rank0", 40_000))
        found.objects.there.set()
        wait_until("written", lambda: not found.output.unwritten(found.node.id))
        assert found.recorded() == 20_000
        assert not [info for info in found.objects.list("logs/") if info.key.endswith(".end")]


def test_whoever_waits_is_told_when_all_is_written(store: SqlStore, tmp_path: Path) -> None:
    build.placed(store)
    objects, written = Flaky(tmp_path / "objects"), threading.Event()
    output, node = Output(store, objects, SystemClock(), written.set), build.node(store)
    try:
        objects.there.clear()
        output.take(node, LogChunk(1, "rank0", 0, "x"))
        output.flush(node.id)
        assert output.unwritten(node.id)
        objects.there.set()
        assert written.wait(LIMIT_S)
        assert not output.unwritten(node.id)
    finally:
        objects.there.set()
        output.close()
