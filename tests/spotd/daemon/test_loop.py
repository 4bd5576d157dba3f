"""The loop: one bad job stops nobody, a store that is away is waited for, a hint wakes at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from spotd.base.clock import SystemClock
from spotd.daemon import reconcile
from spotd.daemon.loop import BATCH, Loop, run_effect
from spotd.domain.market import Market
from spotd.domain.node import EffectKind
from spotd.domain.plan import Effect, Plan
from spotd.domain.states import NodeState
from spotd.domain.view import View
from spotd.store.errors import StoreError, StoreUnavailableError
from spotd.store.interface import Store
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.fake_world import Stage


class Watched:
    """A loop on its own thread: how often it went round, and what it dispatched."""

    def __init__(self, stage: Stage) -> None:
        self.rounds = 0
        self.fed = threading.Condition()
        self.effects: list[Effect] = []
        self.world = replace(stage.world, clock=SystemClock())
        self.loop = Loop(self.world, stage.timing, "me", self.effects.append, self._progressed)
        self.thread = threading.Thread(target=self.loop.run, name="reconcile")

    def _progressed(self) -> None:
        with self.fed:
            self.rounds += 1
            self.fed.notify_all()

    def until(self, what: Callable[[], object]) -> None:
        with self.fed:
            assert self.fed.wait_for(what, LIMIT_S)

    def asked(self) -> set[str]:
        return {effect.job.id for effect in self.effects if effect.kind is EffectKind.LAUNCH}


@contextmanager
def running(stage: Stage) -> Iterator[Watched]:
    watched = Watched(stage)
    watched.thread.start()
    try:
        yield watched
    finally:
        watched.loop.stop()
        watched.thread.join(LIMIT_S)
    assert not watched.thread.is_alive()


def poison(monkeypatch: pytest.MonkeyPatch, error: Exception, *jobs: str) -> list[str]:
    """Deciding about these jobs raises; the list grows with every time it is tried."""
    tried: list[str] = []
    decide = reconcile.decide

    def raise_for(view: View, market: Market, now_us: int) -> Plan:
        if view.job.id in jobs:
            tried.append(view.job.id)
            raise error
        return decide(view, market, now_us)

    monkeypatch.setattr(reconcile, "decide", raise_for)
    return tried


class Troubled:
    """A store, or a repository of one, whose named methods raise as long as there is `trouble` for
    them."""

    def __init__(self, store: object, whole: Troubled | None = None) -> None:
        self._store = store
        self.trouble: dict[str, Exception] = {} if whole is None else whole.trouble
        self.calls: list[str] = [] if whole is None else whole.calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in Store.__annotations__:  # a repository
            return self.__dict__.setdefault(name, Troubled(found, self))
        self.calls.append(name)
        if name in self.trouble:
            error = self.trouble[name]

            def fail(*_: object, **__: object) -> None:
                raise error

            return fail
        return found


def troubled(stage: Stage) -> Troubled:
    store = Troubled(stage.store)
    stage.world = replace(stage.world, store=store)  # type: ignore[arg-type]
    return store


# --- poison


@pytest.mark.parametrize("error", [KeyError("no such offer"), StoreError("a row is not a row")])
def test_a_poisoned_job_stops_nobody_and_does_not_spin(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried = poison(monkeypatch, error, "jbad")
    monkeypatch.setattr(reconcile, "CLAIM_LEASE_S", 3600.0)  # none runs out under this test
    for name in ("jbad", "j1", "j2"):
        stage.submit(name)
    with running(stage) as watched:
        watched.until(lambda: watched.asked() == {"j1", "j2"})
        stage.submit("j3")
        watched.loop.poke()
        watched.until(lambda: watched.asked() == {"j1", "j2", "j3"})
    assert tried == ["jbad"], "not again before its claim has run out"


def test_the_user_of_a_poisoned_job_is_told_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = poison(monkeypatch, KeyError("no such offer"), "j1")
    stage.submit("j1")
    loop = Loop(stage.world, stage.timing, "me", lambda _: None, lambda: None)
    for _ in range(3):
        loop.round()
        stage.clock.sleep(reconcile.CLAIM_LEASE_S)
    assert len(tried) == 3, "tried again when its claim has run out"
    told = [row.event for row in stage.store.events.rows("j1") if row.event.kind == "pass_failed"]
    (event,) = told
    assert event.alert
    assert "KeyError: 'no such offer'" in event.text
    monkeypatch.undo()
    loop.round()
    assert stage.nodes("j1"), "it is decided about as soon as that is possible"


# --- the store


def test_a_store_that_is_away_is_waited_for(stage: Stage) -> None:
    store = troubled(stage)
    store.trouble["claim"] = StoreUnavailableError("the disk under it is full")
    stage.submit("j1")
    with running(stage) as watched:
        end = time.monotonic() + LIMIT_S
        while store.calls.count("claim") < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert store.calls.count("claim") < 5, "no busy loop"
        store.trouble.clear()
        watched.until(watched.asked)


def test_a_loop_that_waits_for_its_store_is_alive(stage: Stage) -> None:
    """Ended by the watchdog, it would be started again for nothing, minute after minute."""
    store = troubled(stage)
    store.trouble["claim"] = StoreUnavailableError("is the server up?")
    with running(stage) as watched:
        watched.until(lambda: watched.rounds >= 2)


def test_a_loop_that_hangs_in_its_store_is_not(stage: Stage) -> None:
    store = troubled(stage)
    entered, let_go = threading.Event(), threading.Event()

    def hang(*_: object) -> list[str]:
        entered.set()
        assert let_go.wait(LIMIT_S)
        return []

    store.jobs.claim = hang
    with running(stage) as watched:
        assert entered.wait(LIMIT_S)
        assert watched.rounds == 0
        let_go.set()
        watched.until(lambda: watched.rounds)


def test_a_store_that_a_new_daemon_might_read_is_not_waited_for(stage: Stage) -> None:
    store = troubled(stage)
    store.trouble["claim"] = StoreError("the server refused a statement")
    with running(stage) as watched:
        end = time.monotonic() + LIMIT_S
        while store.calls.count("claim") < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert watched.rounds == 0


def test_what_was_claimed_is_decided_when_the_store_is_back(stage: Stage) -> None:
    """Not after the claim's lease: the jobs of this batch would stand still for no reason."""
    store = troubled(stage)
    found: list[Effect] = []
    loop = Loop(stage.world, stage.timing, "me", found.append, lambda: None)
    for number in range(3):
        stage.submit(f"j{number}")
    store.trouble["commit_many"] = StoreUnavailableError("away")
    for _ in range(5):
        with pytest.raises(StoreUnavailableError):
            loop.round()
    store.trouble.clear()
    loop.round()
    assert sorted(effect.job.id for effect in found) == ["j0", "j1", "j2"]


@pytest.mark.parametrize(("jobs", "more"), [(0, False), (BATCH - 1, False), (BATCH, True)])
def test_a_round_that_found_all_is_not_followed_by_another(
    stage: Stage, jobs: int, more: bool
) -> None:
    """It would write to the database to find nothing."""
    for number in range(jobs):
        stage.submit(f"j{number:02}")
    loop = Loop(stage.world, stage.timing, "me", lambda _: None, lambda: None)
    assert loop.round() is more


def test_one_job_that_the_store_cannot_take_does_not_block_the_others(stage: Stage) -> None:
    """A view that takes too long to load, say."""
    store = troubled(stage)
    load = stage.store.load_views
    stage.submit("jbig")

    def load_views(job_ids: list[str], now_us: int) -> dict[str, View]:
        if "jbig" in job_ids:
            raise StoreUnavailableError("a statement took longer than 5 s")
        return load(job_ids, now_us)

    store.load_views = load_views
    found: list[Effect] = []
    loop = Loop(stage.world, stage.timing, "me", found.append, lambda: None)
    for number in range(2 * BATCH):
        stage.submit(f"j{number:02}")
    for _ in range(2 * BATCH):
        with suppress(StoreUnavailableError):
            loop.round()
        stage.clock.sleep(1.0)
        if len(found) == 2 * BATCH:
            break
    assert len({effect.job.id for effect in found}) == 2 * BATCH


def test_a_bug_outside_of_any_job_ends_neither_the_thread_nor_the_silence(stage: Stage) -> None:
    """The watchdog is not fed, so that what fails for ever is ended from outside."""
    store = troubled(stage)
    store.trouble["claim"] = ZeroDivisionError("a bug")
    with running(stage) as watched:
        end = time.monotonic() + LIMIT_S
        while store.calls.count("claim") < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert watched.rounds == 0
        store.trouble.clear()
        watched.until(lambda: watched.rounds > 0)


# --- a cloud that the configuration lost


def test_machines_that_nobody_can_end_are_told_of(stage: Stage) -> None:
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    (node,) = stage.nodes("j1")
    stage.world = replace(stage.world, providers={"gcp": stage.clouds["gcp"]})
    with running(stage) as watched:
        watched.until(lambda: watched.rounds >= 2)
    (told,) = [row.event for row in stage.store.events.rows(None) if row.event.kind == "stranded"]
    assert told.alert
    assert node.id in told.text
    assert "add [providers.aws] again" in told.text


def test_nobody_is_told_of_machines_that_can_be_ended(stage: Stage) -> None:
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    with running(stage) as watched:
        watched.until(lambda: watched.rounds)
    assert not [row for row in stage.store.events.rows(None) if row.event.kind == "stranded"]


# --- waking


def test_a_poke_wakes_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotd.daemon.loop.LONGEST_WAIT_S", 2 * LIMIT_S)
    with running(stage) as watched:
        watched.until(lambda: watched.rounds)
        time.sleep(0.05)  # let it fall asleep
        stage.submit("j1")
        watched.loop.poke()
        watched.until(watched.asked)


def test_a_poke_during_a_round_is_not_lost(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotd.daemon.loop.LONGEST_WAIT_S", 2 * LIMIT_S)
    store = troubled(stage)
    claim, submitted = stage.store.jobs.claim, threading.Event()

    def claim_then_submit(*arguments: Any) -> list[str]:
        found = claim(*arguments)
        if not submitted.is_set():
            stage.submit("j1")  # after the claim has looked
            watched.loop.poke()
            submitted.set()
        return found

    store.jobs.claim = claim_then_submit
    watched = Watched(stage)
    watched.thread.start()
    try:
        watched.until(watched.asked)
    finally:
        watched.loop.stop()
        watched.thread.join(LIMIT_S)


def test_an_idle_loop_feeds_the_watchdog_and_sleeps(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotd.daemon.loop.LONGEST_WAIT_S", 0.05)
    with running(stage) as watched:
        watched.until(lambda: watched.rounds >= 3)
    monkeypatch.undo()
    with running(stage) as watched:
        watched.until(lambda: watched.rounds)
        time.sleep(0.3)
        assert watched.rounds <= 2


def test_it_sleeps_until_the_next_timer(stage: Stage) -> None:
    stage.submit("j1")
    loop = Loop(stage.world, stage.timing, "me", lambda _: None, lambda: None)
    assert loop._idle_s() == pytest.approx(0.005), "a job is due"
    loop.round()
    assert loop._idle_s() == 5.0, "the call's deadline is in 15 s, but looking is cheap"
    stage.clock.sleep(14.0)
    assert loop._idle_s() == pytest.approx(1.0)


def test_stop_ends_after_the_pass_at_hand(stage: Stage) -> None:
    for number in range(2 * BATCH):
        stage.submit(f"j{number}")
    loop: Loop

    def dispatch(effect: Effect) -> None:
        found.append(effect)
        loop.stop()

    found: list[Effect] = []
    loop = Loop(stage.world, stage.timing, "me", dispatch, lambda: None)
    loop.run()
    assert len(found) == BATCH


# --- after a restart


def test_a_new_daemon_makes_the_calls_again_that_died_with_the_old_one(stage: Stage) -> None:
    stage.submit("j1")
    while not any(node.chosen for node in stage.nodes("j1")):
        for job_id in reconcile.claim_due(stage.world, "me", 1):
            reconcile.drain(
                reconcile.one_pass(stage.world, stage.timing, job_id, stage.queue.append)
            )
        while stage.queue and stage.queue[0].kind is not EffectKind.START:
            run_effect(stage.world, stage.queue.popleft())
        stage.pass_time()
    found: list[Effect] = []
    stage.clock.sleep(reconcile.CLAIM_LEASE_S)
    same = Loop(stage.world, stage.timing, "me", found.append, lambda: None)
    same._resume()
    same.round()
    assert found == [], "in flight: a start has a quarter of an hour"
    stage.restart()
    new = Loop(stage.world, stage.timing, "new", found.append, lambda: None)
    new._resume()
    new.round()
    assert [effect.kind for effect in found] == [EffectKind.START]


# --- effects on the pool's threads


@pytest.mark.parametrize("error", [KeyError("a bug"), StoreUnavailableError("away")])
def test_an_outcome_that_cannot_be_recorded_is_due_again(stage: Stage, error: Exception) -> None:
    store = troubled(stage)
    found: list[Effect] = []
    loop = Loop(stage.world, stage.timing, "me", found.append, lambda: None)
    stage.submit("j1")
    loop.round()
    store.trouble["record_launched"] = error
    run_effect(stage.world, found.pop())
    assert stage.creates(stage.nodes("j1")[0]) == 1
    store.trouble.clear()
    stage.clock.sleep(15.0)
    loop.round()
    (again,) = found
    run_effect(stage.world, again)
    (node,) = stage.nodes("j1")
    assert (stage.creates(node), bool(node.instance_id)) == (1, True)
