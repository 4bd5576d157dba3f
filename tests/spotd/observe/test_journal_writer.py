"""What nodes said reaches the store whole, and in an order that keeps its meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spotd.domain.units import S
from spotd.observe.journal_writer import HEARD_S, LINGER_S, JournalWriter
from spotd.store.errors import StoreUnavailableError
from spotd.store.journal import JournalBatch
from spotd.store.sql_store import SqlStore
from spotd.wire import HELLO, PROGRESS, WARNING, JournalEntry
from tests.spotd.store import build
from tests.spotd.store.build import NOW

ONE, TWO = "j1-g1-0", "j2-g1-0"


class HandClock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now_us(self) -> int:
        return NOW + 60 * S + int(self.passed_s * S)

    def monotonic_s(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def recorder(store: SqlStore, clock: HandClock) -> JournalWriter:
    build.placed(store, "j1")
    build.placed(store, "j2", build.new_node("j2"))
    return JournalWriter(store, clock)


def entry(seq: int, kind: str = WARNING) -> JournalEntry:
    return JournalEntry(seq, NOW, 1, kind, {"text": f"w{seq}"} if kind == WARNING else {})


def warnings(store: SqlStore, job_id: str = "j1") -> list[str]:
    return [row.event.text for row in store.events.rows(job_id) if row.event.kind == "node_warning"]


def failing(times: int, error: Exception, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, but for the first `times`."""
    left = [times]

    def wrapped(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return call(*args)

    return wrapped


def test_all_nodes_in_one_transaction(
    store: SqlStore, recorder: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[JournalBatch]] = []
    real = store.journal.record
    monkeypatch.setattr(store.journal, "record", lambda b: (calls.append(list(b)), real(b)))
    recorder.say(ONE, [entry(1), entry(2)])
    recorder.say(TWO, [entry(1)])
    recorder.say(ONE, [entry(3)])
    assert recorder.flush() == []
    assert recorder.flush() == []
    assert len(calls) == 1
    assert warnings(store) == ["w1", "w2", "w3"]
    assert warnings(store, "j2") == ["w1"]


def test_nothing_is_lost_while_the_store_is_away(
    store: SqlStore, recorder: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = StoreUnavailableError("away")
    nodes = store.nodes
    for where, name in (
        (store.journal, "record"),
        (nodes, "record_heartbeats"),
        (nodes, "record_link"),
    ):
        monkeypatch.setattr(where, name, failing(2, away, getattr(where, name)))
    recorder.say(ONE, [entry(1)])
    recorder.hear(ONE)
    recorder.lose(ONE)
    for number in range(2, 8):
        with pytest.raises(StoreUnavailableError):
            recorder.flush()
        recorder.say(ONE, [entry(number)])
    recorder.flush()
    assert warnings(store) == [f"w{number}" for number in range(1, 8)]
    assert build.node(store, ONE).agent.heard_at_us > 0
    assert build.node(store, ONE).agent.link_down_at_us > 0


def test_one_nodes_poison_is_its_own(
    store: SqlStore, recorder: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store.journal.record

    def picky(batches: list[JournalBatch]) -> None:
        if any(batch.node_id == ONE for batch in batches):
            raise RuntimeError("a bug that these entries bring out")
        real(batches)

    monkeypatch.setattr(store.journal, "record", picky)
    recorder.say(ONE, [entry(1)])
    recorder.say(TWO, [entry(1)])
    recorder.say(ONE, [entry(2)])
    assert recorder.flush() == [ONE]
    assert warnings(store, "j2") == ["w1"]
    assert warnings(store) == []
    assert recorder.flush() == []


def test_signs_of_life_alone_are_recorded_now_and_then(
    store: SqlStore, recorder: JournalWriter, clock: HandClock
) -> None:
    recorder.hear(ONE)
    recorder.flush()
    assert build.node(store, ONE).agent.heard_at_us == 0
    clock.passed_s += HEARD_S
    recorder.hear(ONE)
    recorder.flush()
    assert build.node(store, ONE).agent.heard_at_us == clock.now_us()


def test_the_end_of_a_link_is_on_record_at_once_and_stays(
    store: SqlStore, recorder: JournalWriter, clock: HandClock
) -> None:
    """A sign of life from before the end, recorded after it, would undo it."""
    recorder.hear(ONE)
    clock.passed_s += 1
    recorder.lose(ONE)
    recorder.flush()
    down_us = build.node(store, ONE).agent.link_down_at_us
    assert down_us == clock.now_us()
    clock.passed_s += 2 * HEARD_S
    recorder.lose(ONE)  # each try again fails: the first end counts
    recorder.hear(TWO)
    recorder.flush()
    assert build.node(store, ONE).agent.link_down_at_us == down_us


@pytest.mark.parametrize("known", [True, False])
def test_a_link_that_is_back_is_on_record_at_once(
    store: SqlStore, recorder: JournalWriter, known: bool
) -> None:
    if known:  # by the database, from an earlier process
        store.nodes.record_link(ONE, NOW)
        recorder.lose(ONE, recorded=True)
    else:
        recorder.lose(ONE)
        recorder.flush()
    assert build.node(store, ONE).agent.link_down_at_us > 0
    recorder.hear(ONE)
    recorder.flush()
    assert build.node(store, ONE).agent.link_down_at_us == 0


def test_a_link_that_came_back_before_it_was_recorded_was_never_down(
    store: SqlStore, recorder: JournalWriter
) -> None:
    recorder.lose(ONE)
    recorder.hear(ONE)
    recorder.flush()
    assert build.node(store, ONE).agent.link_down_at_us == 0


def test_what_nobody_wants_is_forgotten(store: SqlStore, recorder: JournalWriter) -> None:
    recorder.lose(ONE)
    recorder.forget({TWO})
    recorder.flush()
    assert build.node(store, ONE).agent.link_down_at_us == 0


def test_a_hello_is_a_hello(store: SqlStore, recorder: JournalWriter) -> None:
    hello = {"agent": "1", "wire": 1, "python": "3.11", "hostname": "h", "boot_id": "b"}
    recorder.say(ONE, [JournalEntry(1, NOW, 1, HELLO, hello)])
    recorder.flush()
    assert build.node(store, ONE).startup.hello_at_us > 0
    assert build.node(store, ONE).agent.journal_seq == 1


def progress(seq: int) -> JournalEntry:
    return JournalEntry(seq, NOW, 1, PROGRESS, {"from_step": seq, "to_step": seq})


def steps(store: SqlStore) -> list[int]:
    return [row.to_step for row in store.progress.rows("j1")]


def test_progress_waits_a_moment_for_company(
    store: SqlStore, recorder: JournalWriter, clock: HandClock
) -> None:
    recorder.say(ONE, [progress(1)])
    clock.passed_s += 0.9 * LINGER_S
    recorder.say(ONE, [progress(2)])
    recorder.flush()
    assert steps(store) == []
    clock.passed_s += 0.1 * LINGER_S
    recorder.flush()
    assert steps(store) == [1, 2]
    assert build.node(store, ONE).agent.heard_at_us == clock.now_us() - int(0.1 * LINGER_S * S)


def test_what_is_decided_by_takes_everything_along_at_once(
    store: SqlStore, recorder: JournalWriter
) -> None:
    recorder.say(ONE, [progress(1)])
    recorder.say(TWO, [entry(1)])
    recorder.flush()
    assert warnings(store, "j2") == ["w1"]
    assert steps(store) == [1]


def test_what_was_said_before_the_link_ended_does_not_undo_its_end(
    store: SqlStore, recorder: JournalWriter, clock: HandClock
) -> None:
    recorder.say(ONE, [progress(1)])
    recorder.lose(ONE)
    recorder.flush()
    clock.passed_s += 2 * LINGER_S
    recorder.flush()
    assert steps(store) == [1]
    assert build.node(store, ONE).agent.link_down_at_us > 0
