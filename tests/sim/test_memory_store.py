"""What the memory store promises beyond the contract that every store keeps."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from operator import attrgetter
from typing import Any, get_type_hints

import pytest

from spotd.domain.events import Event
from spotd.domain.node import EffectKind
from spotd.domain.plan import ChangeNode, Plan
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.store.errors import StoreError, StoreUnavailableError
from spotd.store.interface import Store
from tests.sim.memory.transaction import Transaction
from tests.sim.memory_store import MemoryStore
from tests.sim.random_source import Chance, perform
from tests.spotd.store.build import (
    NOW,
    Bell,
    commit,
    move,
    opening,
    placed,
    plan,
    said,
    submit,
    view,
)

NODE = "j1-g1-0"
STEPS = 150


@pytest.fixture
def store(bell: Bell) -> MemoryStore:
    return MemoryStore("d0", bell)


@pytest.fixture
def bell() -> Bell:
    return Bell()


class PowerCutError(Exception):
    """Somewhere in the middle of a transaction."""


def _cut(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The next transaction ends when it has changed `after` things, or when it would be done."""
    put, flush, left = Transaction.put, Transaction.flush, [after]

    def cut_put(tx: Transaction, table: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        put(tx, table, key, value)
        left[0] -= 1
        if left[0] == 0:
            raise PowerCutError

    def cut_flush(tx: Transaction) -> None:
        flush(tx)
        raise PowerCutError

    monkeypatch.setattr(Transaction, "put", cut_put)
    monkeypatch.setattr(Transaction, "flush", cut_flush)


@pytest.mark.parametrize("seed", range(20, 24))
def test_a_write_that_fails_anywhere_leaves_no_trace(store: MemoryStore, seed: int) -> None:
    """Each call is cut off somewhere first; then it is made, and whatever it raises of itself."""
    chance, where = Chance(store, seed), random.Random(seed)
    cuts = 0
    for _ in range(STEPS):
        call = chance.call()
        before, seen = store.snapshot().facts(), store.load_views(["j0", "j1"], chance.now_us)
        with pytest.MonkeyPatch.context() as patch:
            _cut(patch, where.randint(1, 12))
            with suppress(PowerCutError, StoreError, ValueError):
                perform(store, call)
                raise AssertionError(f"{call[0]} was not cut off")
        assert store.snapshot().facts() == before, call[0]
        assert store.load_views(["j0", "j1"], chance.now_us) == seen
        with suppress(StoreError, ValueError):
            perform(store, call)
        cuts += store.snapshot().facts() != before
    assert cuts > STEPS // 4, "too few calls changed anything"


def test_a_write_that_raises_rings_for_nobody(store: MemoryStore, bell: Bell) -> None:
    before = placed(store)
    rings, events = bell.rings, len(store.events.rows("j1"))
    unspeakable = Event("x", "x", data={"of": object()})
    with pytest.raises(ValueError, match="cannot be stored"):
        store.commit(before, plan(events=(Event("y", "y"), unspeakable)), NOW)
    with pytest.raises(ValueError, match="is not an order to a node"):
        store.nodes.record_acknowledged(NODE, EffectKind.BOOT, NOW)
    assert (view(store), bell.rings, len(store.events.rows("j1"))) == (before, rings, events)


def test_a_snapshot_is_restored_as_often_as_wanted(store: MemoryStore) -> None:
    first = placed(store)
    store.journal.record([said(("progress", {"from_step": 1, "to_step": 1}))])
    kept = store.snapshot()
    before = (
        view(store),
        store.events.rows(None),
        store.progress.rows("j1"),
        store.jobs.next_wake_us(),
    )
    for _ in range(2):
        move(store, NODE, NodeState.GONE)
        submit(store, "j2")
        store.journal.record([said(("progress", {"from_step": 2, "to_step": 2}), first=2)])
        store.jobs.claim(NOW + S, "me", 9, S)
        store.restore(kept)
        found = (
            view(store),
            store.events.rows(None),
            store.progress.rows("j1"),
            store.jobs.next_wake_us(),
        )
        assert found == before
    # What was decided after the snapshot was taken is decided again, with the same ids.
    assert first.job.version == view(store).job.version
    commit(store, view(store), opening("j1", 2))


def test_a_store_that_is_away_answers_nothing_and_comes_back(store: MemoryStore) -> None:
    before = placed(store)
    calls: dict[str, tuple[Any, ...]] = {
        "jobs.claim": (NOW, "me", 1, S),
        "load_view": ("j1", NOW),
        "load_views": (["j1"], NOW),
        "market.load": (NOW,),
        "commit": (before, plan(), NOW),
        "commit_many": ([(before, plan())], NOW),
        "deployment.id": (),
        "secrets.store_key_check": (b"x",),
        "nodes.record_heartbeats": ({},),
        "jobs.mark_due": ([],),
        "events.prune": (NOW,),
        "events.rows": (None,),
    }
    store.away = True
    for name, args in calls.items():
        with pytest.raises(StoreUnavailableError):
            attrgetter(name)(store)(*args)
    for name in _methods() - calls.keys() - {"close", "fenced"}:
        method = attrgetter(name)(store)
        with pytest.raises(StoreUnavailableError):
            method(*[()] * (method.__code__.co_argcount - 1))
    store.away = False
    assert view(store) == before
    assert store.secrets.key_state().check is None


def _methods() -> set[str]:
    """Every method of a store, those of its repositories behind their names."""
    own = {name for name in vars(Store) if not name.startswith("_")}
    repositories = get_type_hints(Store).items()
    return own | {
        f"{name}.{method}"
        for name, repository in repositories
        if name != "metrics"
        for method in vars(repository)
        if not method.startswith("_")
    }


def test_a_view_of_a_job_that_nothing_happened_to_is_not_made_anew(store: MemoryStore) -> None:
    placed(store)
    placed(store, "j2")
    before = view(store)
    store.nodes.record_booted("j2-g1-0", NOW)
    after = view(store, now_us=NOW + S)
    assert after.nodes is before.nodes
    assert after.job is before.job
    assert after.attempts is before.attempts
    store.nodes.record_booted(NODE, NOW)
    assert view(store).nodes[0].startup.booted_at_us == NOW


def test_failures_of_an_effect_count_again_when_it_is_armed_again(store: MemoryStore) -> None:
    """A database keeps them beside the node: so do we."""
    placed(store)

    def arm(effect: EffectKind) -> int:
        armed = ChangeNode(NODE, {"effect": effect})
        return (
            commit(store, view(store), Plan((armed,), (), 0, "armed")).nodes[0].call.effect_failures
        )

    arm(EffectKind.BOOT)
    store.nodes.record_effect_failed(NODE, EffectKind.BOOT, "no", NOW)
    arm(EffectKind.SURVEY)
    assert view(store).nodes[0].call.effect_failures == 0
    arm(EffectKind.BOOT)
    assert view(store).nodes[0].call.effect_failures == 1


def _digest(seed: int) -> str:
    store = MemoryStore("d0", Bell())
    chance = Chance(store, seed)
    for _ in range(STEPS):
        call = chance.call()
        with suppress(StoreError, ValueError):
            perform(store, call)
    return hashlib.sha256(repr(store.snapshot().facts()).encode()).hexdigest()


def test_the_same_seed_leaves_the_same_world_in_every_process() -> None:
    """The order of sets of strings is another one in each: none of it shows."""
    program = "from tests.sim.test_memory_store import _digest; print(_digest(7))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
    assert found == {f"{_digest(7)}\n"}
