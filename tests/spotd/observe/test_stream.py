"""The follow stream as bytes: whatever the cuts, whatever the rubbish."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotd.observe.stream import NodeStream, StreamResult
from spotd.wire import MAX_LINE_BYTES, PROGRESS, Heartbeat, JournalEntry, LogChunk, LogEnd


def entry(seq: int) -> JournalEntry:
    return JournalEntry(seq, seq * 10, 1, PROGRESS, {"from_step": seq, "to_step": seq})


def lines(*seqs: int) -> bytes:
    return b"".join(entry(seq).to_line() for seq in seqs)


def seqs(fed: StreamResult) -> list[int]:
    return [found.seq for found in fed.entries]


def test_the_three_kinds_of_line() -> None:
    beat, chunk = Heartbeat(1, 5, 1, 40), LogChunk(1, "rank0", 7, "h\xe9llo\n")
    fed = NodeStream(0).feed(lines(1) + beat.to_line() + chunk.to_line())
    assert (fed.entries, fed.heartbeats, fed.logs) == ([entry(1)], [beat], [chunk])
    assert (fed.garbage, fed.gap) == (0, False)


def test_an_end_keeps_its_place_among_the_output() -> None:
    chunk, end = LogChunk(1, "rank0", 0, "bye\n"), LogEnd(1, "rank0", 9, begin=2, end=9)
    fed = NodeStream(0).feed(chunk.to_line() + end.to_line())
    assert fed.logs == [chunk, end]
    wrong = LogEnd(1, "rank0", 9, begin=2, end=10), LogEnd(1, "../rank0", 9)
    assert NodeStream(0).feed(b"".join(line.to_line() for line in wrong)).garbage == 2


def test_a_long_line_is_not_copied_for_each_of_its_pieces() -> None:
    text = "\xff" * (64 << 10)
    line = LogChunk(1, "rank0", 0, text).to_line()
    stream = NodeStream(0)
    stream.feed(line[:100])
    rest = stream._rest
    for start in range(100, len(line) - 1, 100):
        assert stream.feed(line[start : min(start + 100, len(line) - 1)]) == StreamResult()
        assert stream._rest is rest
    (chunk,) = stream.feed(b"\n").logs
    assert chunk.text == text


wire_lines = st.one_of(
    st.integers(1, 12).map(lines),
    st.builds(
        lambda offset, text: LogChunk(1, "rank0", offset, text).to_line(),
        st.integers(0, 99),
        st.text(st.characters(max_codepoint=255)),
    ),
    st.just(Heartbeat(0, 0, 1, 0).to_line()),
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"") + b"\n"),
)


@settings(deadline=None)
@given(st.lists(wire_lines), st.lists(st.integers(0, 2000)))
def test_the_cuts_do_not_matter(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    whole = NodeStream(0).feed(data)
    stream, pieces = NodeStream(0), StreamResult()
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    for begin, end in itertools.pairwise(places):
        fed = stream.feed(data[begin:end])
        pieces.entries += fed.entries if not pieces.gap else []
        pieces.heartbeats += fed.heartbeats
        pieces.logs += fed.logs
        pieces.garbage += fed.garbage
        pieces.gap = pieces.gap or fed.gap
    assert pieces == whole


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), max_size=30), st.integers(0, 5))
def test_entries_are_the_next_ones_each_once(said: list[int], after: int) -> None:
    """Whatever a node says, what comes out counts on from what is on record, without a hole."""
    found = seqs(NodeStream(after).feed(lines(*said)))
    assert found == list(range(after + 1, after + 1 + len(found)))


def test_what_is_on_record_does_not_come_again() -> None:
    assert seqs(NodeStream(2).feed(lines(1, 2, 3, 4, 3, 5))) == [3, 4, 5]


def test_nothing_counts_behind_a_gap() -> None:
    stream = NodeStream(0)
    fed = stream.feed(lines(1, 2, 5, 6, 3))
    assert fed.gap
    assert seqs(fed) == [1, 2]
    assert stream.seq == 2


def test_the_same_gap_again_is_the_nodes_own() -> None:
    fed = NodeStream(2, gap_after=2).feed(lines(5, 6))
    assert not fed.gap
    assert seqs(fed) == [5, 6]
    assert NodeStream(2, gap_after=2).feed(lines(3, 5)).gap, "another gap passed for the known one"


@pytest.mark.parametrize(
    "line",
    [
        b"Welcome to Ubuntu",
        b"\xff\xfe\x00",
        b"[1]",
        b'{"journal": 3}',
        b'{"journal": {"seq": "1", "at_us": 0, "generation": 1, "kind": "x", "data": {}}}',
        json.dumps({"log": {"generation": 1, "stream": "../x", "offset": 0, "text": ""}}).encode(),
        json.dumps(
            {"log": {"generation": 1, "stream": "rank0", "offset": -1, "text": ""}}
        ).encode(),
        json.dumps(
            {"log": {"generation": 1, "stream": "rank0", "offset": 0, "text": "日"}}
        ).encode(),
        entry(1 << 60).to_line().strip(),
        b"[" * 100_000,
    ],
)
def test_rubbish_is_counted_and_passed_over(line: bytes) -> None:
    fed = NodeStream(0).feed(lines(1) + line + b"\n" + lines(2))
    assert fed.garbage == 1
    assert seqs(fed) == [1, 2]
    assert fed.logs == []


@pytest.mark.parametrize("step", [1 << 16, 3 << 20])
def test_a_line_without_end_costs_no_memory(step: int) -> None:
    stream, garbage = NodeStream(0), 0
    for _ in range((8 << 20) // step):
        garbage += stream.feed(b"x" * step).garbage
        assert len(stream._rest) <= MAX_LINE_BYTES
    fed = stream.feed(b"the end of it\n" + lines(1))
    assert garbage + fed.garbage == 1
    assert seqs(fed) == [1]
