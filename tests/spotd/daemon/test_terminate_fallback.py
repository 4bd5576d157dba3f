"""With the database away, what was on its way out is ended, and nothing else is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from spotd.daemon.loop import Loop, run_effect
from spotd.daemon.terminate_fallback import FRESH_S, TerminateFallback
from spotd.domain.job import Desired
from spotd.domain.node import EffectKind
from spotd.domain.plan import Effect
from spotd.domain.states import NodeState
from spotd.store.errors import StoreUnavailableError
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.fake_world import Stage


class Outage:
    """A loop on a thread whose store can be taken away; `made` are its calls."""

    def __init__(self, stage: Stage) -> None:
        self.away = False
        self.made: list[Effect] = []
        self._store = stage.store
        self._fed = threading.Condition()
        self._rounds = 0
        store: Any = self
        self._world = replace(stage.world, store=store)
        self.loop = Loop(self._world, stage.timing, "me", self._dispatch, self._progressed)

    def __getattr__(self, name: str) -> Any:
        if self.away:
            raise StoreUnavailableError("the server is down")
        return getattr(self._store, name)

    def _dispatch(self, effect: Effect) -> None:
        self.made.append(effect)
        run_effect(self._world, effect)

    def _progressed(self) -> None:
        with self._fed:
            self._rounds += 1
            self._fed.notify_all()

    def until(self, what: Callable[[], object]) -> None:
        with self._fed:
            assert self._fed.wait_for(what, LIMIT_S)

    def begin(self) -> None:
        """From here on nothing is read or written; `made` is what is done nevertheless."""
        self.away = True
        rounds = self._rounds
        self.until(lambda: self._rounds >= rounds + 2)
        self.made.clear()


@contextmanager
def running(outage: Outage) -> Iterator[None]:
    thread = threading.Thread(target=outage.loop.run)
    thread.start()
    try:
        yield
    finally:
        outage.loop.stop()
        thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_what_was_read_as_terminating_is_ended_and_nothing_else_happens(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotd.daemon.loop.AWAY_S", 0.02)
    for job_id in ("jends", "jtrains"):
        stage.submit(job_id)
    stage.run(lambda s: all(s.nodes(job, NodeState.RUNNING) for job in ("jends", "jtrains")))
    (node,) = stage.nodes("jends")
    cloud = stage.clouds[node.offer.provider]
    monkeypatch.setattr(cloud, "end", lambda _: None)  # accepted, and nothing comes of it
    stage.store.jobs.set_desired("jends", Desired.CANCEL, stage.clock.now_us())
    stage.run(lambda s: cloud.calls["terminate"])
    stage.clock.sleep(stage.timing.resurvey_s)
    outage = Outage(stage)
    with running(outage):
        outage.until(lambda: any(effect.node.id == node.id for effect in outage.made))
        outage.begin()
        stage.submit("jnew")  # nobody hears of it: there is no reading
        told = cloud.calls["terminate"]
        for times in (1, 2):
            stage.clock.sleep(stage.timing.reterminate_s)
            outage.until(lambda times=times: len(outage.made) >= times)
    calls = [(effect.kind, effect.node.id) for effect in outage.made]
    assert calls == [(EffectKind.TERMINATE, node.id)] * 2, "once a minute, and nothing else"
    assert cloud.calls["terminate"] == told + 2
    assert not stage.nodes("jnew")


def test_who_was_heard_of_long_ago_is_not_ours_to_end(stage: Stage) -> None:
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    (node,) = stage.nodes("j1")
    job = stage.store.jobs.find("j1")
    assert job is not None
    departing = TerminateFallback(stage.clock, 60.0)
    for number in (1, 2):
        gone = replace(node, id=f"n{number}", state=NodeState.TERMINATING)
        departing.note(Effect(EffectKind.SURVEY, gone, job, 0))
        stage.clock.sleep(FRESH_S)
    assert [effect.node.id for effect in departing.due()] == ["n2"]
    assert departing.due() == []


@pytest.mark.parametrize(
    "fields", [{"state": NodeState.DRAINING}, {"state": NodeState.TERMINATING, "instance_id": ""}]
)
def test_only_what_ends_and_has_a_name_is_ended(stage: Stage, fields: dict[str, Any]) -> None:
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    job = stage.store.jobs.find("j1")
    assert job is not None
    departing = TerminateFallback(stage.clock, 60.0)
    node = replace(stage.nodes("j1")[0], **fields)
    departing.note(Effect(EffectKind.SURVEY, node, job, 0))
    assert departing.due() == []
