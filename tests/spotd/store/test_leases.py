"""Duties: one holder at a time, and no word of one that was overtaken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from providers.base import Notice, NoticeKind
from spotd.domain.events import Event
from spotd.domain.fast_replace import changed
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.store import engine
from spotd.store.errors import LostLeaseError, StoreUnavailableError
from spotd.store.interface import Store
from spotd.store.leases import MARGIN_S
from spotd.store.sql_store import SqlStore
from tests.fixtures import postgres
from tests.fixtures.waiting import LIMIT_S
from tests.sim.memory_store import MemoryStore
from tests.spotd.store.build import NOW, instance, move, node, offer, placed
from tests.spotd.store.conftest import make

TTL_US = 20 * S


def at(us: int) -> Callable[[], int]:
    return lambda: us


def test_a_duty_has_one_holder(store: Store) -> None:
    assert store.leases.take("sweep", "me", at(NOW), 10 * S) == 1
    assert store.leases.take("sweep", "you", at(NOW + 9 * S), 10 * S) is None
    assert store.leases.take("sweep", "me", at(NOW + 9 * S), 10 * S) == 1
    assert store.leases.take("sweep", "you", at(NOW + 18 * S), 10 * S) is None
    assert store.leases.take("prices", "you", at(NOW), 10 * S) == 1
    assert store.leases.take("sweep", "you", at(NOW + 19 * S), 10 * S) == 2
    # A holder that let it lapse has it still when nobody took it.
    assert store.leases.take("sweep", "you", at(NOW + 60 * S), 10 * S) == 2
    assert store.leases.take("sweep", "me", at(NOW + 70 * S), 10 * S) == 3


def test_a_duty_that_is_let_go_is_free_at_once(store: Store) -> None:
    assert store.leases.take("sweep", "me", at(NOW), 10 * S) == 1
    assert store.leases.take("sweep", "you", at(NOW), 0) is None, "only its holder lets it go"
    assert store.leases.take("sweep", "you", at(NOW + S), 10 * S) is None
    store.leases.take("sweep", "me", at(NOW + S), 0)
    assert store.leases.take("sweep", "you", at(NOW + S), 10 * S) == 2
    store.leases.take("sweep", "you", at(NOW + S), 0)
    assert store.leases.take("sweep", "you", at(NOW + S), 10 * S) == 3, "others may have held it"


def test_many_are_asked_for_at_once(store: Store) -> None:
    """Each has its own holder, as if it had been asked for by itself."""
    names = ["mine", "free", "yours", "never taken"]
    store.leases.take("mine", "me", at(NOW), 30 * S)
    store.leases.take("free", "you", at(NOW), 10 * S)
    store.leases.take("yours", "you", at(NOW), 30 * S)
    taken = store.leases.take_many(names, "me", at(NOW + 11 * S), 30 * S)
    assert taken == {"mine": 1, "free": 2, "yours": None}
    assert store.leases.newest_us() == NOW + 11 * S
    later = store.leases.take_many(["mine", "free", "yours"], "you", at(NOW + 31 * S), 30 * S)
    assert later == {"mine": None, "free": None, "yours": 1}


@pytest.mark.parametrize("ahead_us", [3600 * S, 21 * S, -3600 * S])
def test_a_box_whose_clock_is_off_keeps_nobody_waiting(store: Store, ahead_us: int) -> None:
    """It renews and renews, and nobody takes its duty; it dies, and somebody does within a lease
    by a clock of his own. What its clock says, or said, does not matter."""
    seconds = range(100)
    for second in seconds:
        theirs_us, ours_us = NOW + second * S + ahead_us, NOW + second * S
        if second % 5 == 0:
            assert store.leases.take("sweep", "off", at(theirs_us), TTL_US) == 1
        if ahead_us > 0:  # who is behind does not seem to renew
            assert store.leases.take("sweep", "right", at(ours_us), TTL_US) is None
    died_us = NOW + seconds[-1] * S
    taken = [
        after
        for after in range(1, 60)
        if store.leases.take("sweep", "right", at(died_us + after * S), TTL_US)
    ]
    assert taken[0] <= TTL_US // S


def test_a_lease_keeps_its_end_when_others_of_the_same_time_ask(store: Store) -> None:
    store.leases.take("sweep", "me", at(NOW), TTL_US)
    for second in range(1, 20):
        assert store.leases.take("sweep", "you", at(NOW + second * S), TTL_US) is None
    assert store.leases.take("sweep", "you", at(NOW + 20 * S), TTL_US) == 2


# --- fenced writes

Write = Callable[[Store], object]
WRITES: dict[str, Write] = {
    "record_listing": lambda s: s.instances.record_listing(
        "aws", [instance(node(s))], NOW + S, NOW + S
    ),
    "record_offers": lambda s: s.market.record_offers("aws", [offer("aws-1c", 77)], NOW + S),
    "record_provider": lambda s: s.market.record_provider("aws", "refused", NOW + S),
    "record_cloud_notices": lambda s: s.instances.record_notices(
        "aws", [Notice("n1", NoticeKind.PREEMPT, None, "queue", "i-1")], NOW + S
    ),
    "note_silent": lambda s: s.nodes.mark_silent_due(NOW + 900 * S),
    "note_jobs": lambda s: s.jobs.mark_due(["j1"]),
    "add_event": lambda s: s.events.add("", Event("orphan", "ended"), NOW + S),
    "mark_alerts": lambda s: s.alerts.mark(s.alerts.due(NOW + S, 9), NOW + S, 0, ""),
    "prune": lambda s: s.events.prune(NOW + 900 * S),
    "set_quarantine": lambda s: s.deployment.set_quarantine("young", NOW + S),
}


def told(store: Store) -> list[object]:
    """Everything that one of WRITES changes."""
    now_us = NOW + 901 * S
    return [
        store.load_views(["j1"], now_us),
        store.market.load(now_us),
        store.events.rows(None),
        store.alerts.due(now_us, 99),
        store.deployment.quarantine(),
    ]


def at_work(store: Store) -> None:
    """A job with a booted machine, and an alert that waits."""
    placed(store)
    store.nodes.record_launched("j1-g1-0", "i-1", NOW)
    store.nodes.record_booted("j1-g1-0", NOW)
    move(store, "j1-g1-0", NodeState.BOOTING)
    store.events.add("j1", Event("lost", "m1 is gone", alert=True, key="k"), NOW)


@pytest.mark.parametrize("name", WRITES)
def test_who_was_overtaken_writes_nothing(store: Store, name: str) -> None:
    at_work(store)
    epoch = store.leases.take("duty", "me", at(NOW), TTL_US)
    assert epoch is not None
    mine = store.fenced("duty", epoch)
    assert store.leases.take("duty", "you", at(NOW + 20 * S), TTL_US) == 2
    before = told(store)
    with pytest.raises(LostLeaseError, match="duty"):
        WRITES[name](mine)
    assert told(store) == before
    WRITES[name](store.fenced("duty", 2))
    assert told(store) != before, "the same, by its holder"


def test_a_duty_that_nobody_ever_had_is_nobodys(store: Store) -> None:
    with pytest.raises(LostLeaseError):
        store.fenced("duty", 1).jobs.mark_due([])


def test_nothing_is_begun_at_the_end_of_a_lease(store: Store) -> None:
    epoch = store.leases.take("duty", "me", at(NOW), TTL_US)
    assert epoch is not None
    mine = store.fenced("duty", epoch)
    last_us = NOW + TTL_US - int(MARGIN_S * S)
    mine.leases.check(last_us)
    with pytest.raises(LostLeaseError):
        mine.leases.check(last_us + 1)
    mine.jobs.mark_due([])  # what is fenced may be written for as long as nobody else has the duty
    store.leases.take("duty", "you", at(NOW + TTL_US), TTL_US)
    with pytest.raises(LostLeaseError):
        mine.leases.check(NOW)
    with pytest.raises(ValueError, match="no duty"):
        store.leases.check(NOW)


def test_of_many_who_ask_first_one_gets_it(url: str) -> None:
    stores = [make(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for round_ in range(10):
            asked = [
                threads.submit(store.leases.take, f"duty{round_}", f"box{number}", at(NOW), TTL_US)
                for number, store in enumerate(stores)
            ]
            got = [done.result(LIMIT_S) for done in asked]
            assert sorted(got, key=str) == [1, None, None, None]
    for store in stores:
        store.close()


def waiting(server: postgres.Postgres, database: str) -> bool:
    """Whether some session there waits for a lock."""
    query = (
        f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
    )
    return bool(server.execute(query))


def test_a_takeover_waits_for_a_write_that_is_under_way(server: postgres.Postgres) -> None:
    """Else the write could come after it. PostgreSQL: SQLite lets nobody else write anyway."""
    database = server.create("ready")
    mine, yours = make(server.url(database)), make(server.url(database))
    at_work(mine)
    assert mine.leases.take("duty", "me", at(NOW), TTL_US) == 1
    begun, go_on = threading.Event(), threading.Event()
    slow = mine.fenced("duty", 1)

    def write() -> None:
        def work(tx: object) -> None:
            begun.set()
            assert go_on.wait(LIMIT_S)
            tx.touch({"j1": NOW})  # type: ignore[attr-defined]

        slow.session.write(work)

    clock_read_after: list[bool] = []

    def now() -> int:
        clock_read_after.append(go_on.is_set())
        return NOW + 20 * S

    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(write)
        assert begun.wait(LIMIT_S)
        taking = threads.submit(yours.leases.take, "duty", "you", now, TTL_US)
        end = threading.Event()
        while not waiting(server, database):
            assert not taking.done(), "it took the duty in the middle of a write"
            end.wait(0.01)
        go_on.set()
        writing.result(LIMIT_S)
        assert taking.result(LIMIT_S) == 2
    assert clock_read_after == [True], "by a time from before its wait it might cut a new lease"
    with pytest.raises(LostLeaseError):
        slow.jobs.mark_due(["j1"])
    mine.close()
    yours.close()


def test_one_that_is_locked_keeps_the_others_from_nothing(server: postgres.Postgres) -> None:
    """Asked for together, those that a write holds up are left out, and nobody waits."""
    database = server.create("ready")
    store = make(server.url(database))
    for duty in ("free", "locked"):
        store.leases.take(duty, "me", at(NOW), TTL_US)
    with psycopg.connect(f"host={server.folder} user=spotd dbname={database}") as writing:
        writing.execute("SELECT 1 FROM duties WHERE name = 'locked' FOR SHARE")
        assert store.leases.take_many(["free", "locked"], "me", at(NOW + S), TTL_US) == {"free": 1}
    assert store.leases.take_many(["free", "locked"], "me", at(NOW + S), TTL_US) == {
        "free": 1,
        "locked": 1,
    }
    store.close()


def test_a_client_that_froze_in_the_middle_of_a_statement_holds_up_nobody_for_long(
    server: postgres.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server waits for the rest, with locks, and does not count as idle."""
    monkeypatch.setattr(engine, "STUCK_S", 0.5)
    database = server.create("ready")
    store = make(server.url(database))
    at_work(store)
    frozen = psycopg.connect(f"host={server.folder} user=spotd dbname={database}")
    frozen.pgconn.enter_pipeline_mode()
    for statement in (b"BEGIN", b"UPDATE jobs SET notes = notes"):
        frozen.pgconn.send_query_params(statement, None)
    frozen.pgconn.send_flush_request()
    frozen.pgconn.flush()  # and the end of it is never sent
    query = (
        f"SELECT 1 FROM pg_locks JOIN pg_stat_activity a USING (pid) WHERE a.datname = '{database}'"
    )
    while not server.execute(
        f"{query} AND mode = 'RowExclusiveLock' AND wait_event = 'ClientRead'"
    ):
        time.sleep(0.01)
    end_s = time.monotonic() + LIMIT_S
    while True:
        try:
            store.jobs.mark_due(["j1"])
            break
        except StoreUnavailableError:
            assert time.monotonic() < end_s, "its locks are held for ever"
    frozen.close()
    store.close()


def test_a_client_that_froze_between_two_statements_holds_up_nobody_for_long(
    server: postgres.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session is idle, and a message that asks for no answer has stopped the timer of that."""
    monkeypatch.setattr(engine, "STUCK_S", 0.5)
    database = server.create("ready")
    store = make(server.url(database))
    at_work(store)
    limit = "-c idle_in_transaction_session_timeout=200"
    frozen = psycopg.connect(f"host={server.folder} user=spotd dbname={database}", options=limit)
    frozen.execute("UPDATE jobs SET notes = notes")
    frozen.pgconn.enter_pipeline_mode()
    frozen.pgconn.send_flush_request()
    frozen.pgconn.flush()
    end_s = time.monotonic() + LIMIT_S
    while True:
        try:
            store.jobs.mark_due(["j1"])
            break
        except StoreUnavailableError:
            assert time.monotonic() < end_s, "its locks are held for ever"
    frozen.close()
    store.close()


def test_who_alone_has_the_database_lets_go_for_the_dead(
    store: SqlStore | MemoryStore,
) -> None:
    store.leases.take("duty", "the dead", at(NOW), 3600 * S)
    store.leases.release_all()
    assert store.leases.take("duty", "me", at(NOW), TTL_US) == 2
    with pytest.raises(LostLeaseError):
        store.fenced("duty", 1).jobs.mark_due([])


# --- a listing that was recorded out of turn, by whoever asked


def test_a_listing_does_not_undo_a_newer_one(store: Store) -> None:
    """Who stood still with an answer in hand records it late."""
    at_work(store)
    old = [instance(node(store))]
    store.instances.record_listing("aws", [], NOW + 60 * S, NOW + 60 * S)
    assert node(store).machine.gone_at_us == 0, "its link is up"
    store.nodes.record_link("j1-g1-0", NOW + 70 * S)
    for at_us in (NOW + 90 * S, NOW + 120 * S):
        store.instances.record_listing("aws", [], at_us, at_us)
    before = node(store)
    assert before.machine.gone_at_us == NOW + 120 * S
    store.instances.record_listing("aws", old, NOW + 50 * S, NOW + 130 * S)
    assert changed(node(store), seen_at_us=0) == changed(before, seen_at_us=0)


def test_an_older_listing_may_tell_that_there_is_a_machine(store: Store) -> None:
    placed(store)
    late = [instance(node(store), "i-7")]
    store.instances.record_listing("aws", [], NOW + 60 * S, NOW + 60 * S)
    assert node(store).machine.surveyed_at_us == NOW + 60 * S
    store.instances.record_listing("aws", late, NOW + 50 * S, NOW + 90 * S)
    assert node(store).instance_id == "i-7"
