"""What the master key sealed: kept under its epoch, and sealed anew all at once or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, select

from spotd.security.master_key import KeyState, SealedValue
from spotd.store import schema
from spotd.store.errors import StaleKeyError
from spotd.store.interface import Store
from spotd.store.secrets import SecretRow
from tests.fixtures import postgres
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.store.build import NOW, submission
from tests.spotd.store.conftest import make

ADA = SecretRow("TOKEN", NOW, "ada")


def filled(store: Store) -> Store:
    store.secrets.store_key_check(b"check")
    store.jobs.submit(submission("j1", job_key=b"k1", secrets={"A": b"a1", "B": b"b1"}), NOW)
    store.jobs.submit(submission("j2", job_key=b"k2"), NOW)
    store.secrets.put(ADA, b"t", 0)
    return store


def everything(store: Store) -> list[object]:
    jobs = [[store.jobs.key(job), store.jobs.secrets(job)] for job in ("j1", "j2")]
    return [*jobs, store.secrets.values(["TOKEN"]), store.secrets.key_state()]


def marked(item: SealedValue) -> bytes:
    return f"{item.job_id}/{item.name}:".encode() + item.value


def test_secrets_are_kept_replaced_and_dropped(store: Store) -> None:
    store.secrets.put(ADA, b"one", 0)
    store.secrets.put(SecretRow("API", NOW, "bob"), b"two", 0)
    assert [row.name for row in store.secrets.rows()] == ["API", "TOKEN"]
    later = SecretRow("TOKEN", NOW + 1, "bob")
    store.secrets.put(later, b"three", 0)
    assert store.secrets.rows()[1] == later
    assert store.secrets.values(["TOKEN", "NONE"]) == {"TOKEN": b"three"}
    assert store.secrets.values([]) == {}
    assert store.secrets.delete("TOKEN")
    assert not store.secrets.delete("TOKEN")
    assert [row.name for row in store.secrets.rows()] == ["API"]


def test_another_key_takes_over_everything(store: Store) -> None:
    filled(store)
    assert store.secrets.rotate_key(0, b"new check", marked) == KeyState(b"new check", 1)
    assert everything(store) == [
        [b"j1/:k1", {"A": b"j1/A:a1", "B": b"j1/B:b1"}],
        [b"j2/:k2", {}],
        {"TOKEN": b"/TOKEN:t"},
        KeyState(b"new check", 1),
    ]


def test_a_change_that_fails_half_way_leaves_everything(store: Store) -> None:
    before = everything(filled(store))
    done = []

    def fails(item: SealedValue) -> bytes:
        if len(done) == 3:
            raise ZeroDivisionError
        done.append(item)
        return b"gone"

    with pytest.raises(ZeroDivisionError):
        store.secrets.rotate_key(0, b"new check", fails)
    assert everything(store) == before


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.jobs.submit(submission("j3"), NOW),
        lambda store: store.secrets.put(ADA, b"x", 0),
        lambda store: store.secrets.rotate_key(0, b"x", marked),
    ],
)
def test_what_the_old_key_sealed_is_not_stored_any_more(
    store: Store, write: Callable[[Store], object]
) -> None:
    filled(store).secrets.rotate_key(0, b"new check", marked)
    before = everything(store)
    with pytest.raises(StaleKeyError, match="the master key was changed"):
        write(store)
    assert everything(store) == before
    assert store.jobs.find("j3") is None
    store.jobs.submit(submission("j3", key_epoch=1), NOW)


def test_a_submission_that_is_repeated_is_still_the_first(store: Store) -> None:
    """Its answer was lost, and the key has changed meanwhile."""
    first = submission("j1", request_id="r")
    store.jobs.submit(first, NOW)
    store.secrets.rotate_key(0, b"new check", marked)
    assert store.jobs.submit(first, NOW).id == "j1"


def test_a_change_and_a_launch_wait_for_each_other_in_one_order(server: postgres.Postgres) -> None:
    """A launch has its job locked when it wants the limits, which lie where the epoch does."""
    sql_store = make(server.url(server.create("ready")))
    filled(sql_store)
    sealed: list[SealedValue] = []

    def reseal(item: SealedValue) -> bytes:
        sealed.append(item)
        return marked(item)

    with ThreadPoolExecutor(1) as other:

        def launch(conn: Connection) -> Future[KeyState]:
            rows = select(schema.jobs.c.id).where(schema.jobs.c.id == "j1").with_for_update()
            conn.execute(rows).all()
            changing = other.submit(sql_store.secrets.rotate_key, 0, b"new check", reseal)
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not server.execute(waiting) and not changing.done():
                time.sleep(0.01)
            conn.execute(schema.deployment.select().with_for_update()).all()
            return changing

        changing = sql_store.session.database.write(launch)
        assert changing.result(LIMIT_S) == KeyState(b"new check", 1)
    assert len(sealed) == 5, "it was not tried twice"
    sql_store.close()
