"""Silence that is ours: no healthy machine is given up for what we did not hear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from providers.base import UnknownOutcome
from providers.stores.base import ObjectStore
from providers.stores.base import StoreError as ObjectStoreError
from spotd.clock import GAP_S, Listening
from spotd.decide.settling import HEAD_PATIENCE_S
from spotd.model import LeaveReason, Node, Outcome, S
from spotd.states import NodeState
from tests.spotd.stage import HandClock, Stage

R = NodeState.RUNNING
AWAY_S = 600.0
SILENT_S = 110.0  # long, but not yet long enough to be given up


def test_listening_counts_from_its_start_or_the_end_of_the_last_gap() -> None:
    clock = HandClock()
    start_us = clock.now_us()
    listening = Listening(clock)
    for _ in range(10):
        clock.sleep(GAP_S)
        listening.listened()
    assert listening.since_us() == start_us
    clock.sleep(GAP_S + 1)
    assert listening.since_us() == clock.now_us(), "nobody listens"
    clock.sleep(1)
    listening.listened()
    back_us = clock.now_us()
    clock.sleep(1)
    assert listening.since_us() == back_us


def trained(stage: Stage) -> Node:
    """A machine that trains without end."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", R))
    return stage.nodes("j1", R)[0]


def play(stage: Stage, seconds: float) -> None:
    end_us = stage.clock.now_us() + int(seconds * S)
    stage.run(lambda s: s.clock.now_us() >= end_us, limit_s=seconds + 1)


def told(stage: Stage, kind: str) -> int:
    return sum(row.event.kind == kind for row in stage.store.events("j1"))


def away(stage: Stage) -> None:
    """The daemon: another one takes over after a while."""
    stage.restart(AWAY_S)


def suspended(stage: Stage) -> None:
    """The box; or its clock is set forward."""
    stage.clock.sleep(AWAY_S)


@pytest.mark.parametrize("gap", [away, suspended])
def test_a_machine_that_nobody_listened_to_is_not_given_up(
    stage: Stage, gap: Callable[[Stage], None]
) -> None:
    node = trained(stage)
    gap(stage)
    stage.machine(node).hung = True  # its link takes a while
    play(stage, 60.0)
    stage.machine(node).hung = False
    play(stage, 60.0)
    assert [n.id for n in stage.nodes("j1", R)] == [node.id], stage.told()
    assert len(stage.nodes("j1")) == 1


def test_without_its_network_the_daemon_gives_nobody_up_and_says_so_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither nodes nor clouds nor stores are heard; the machine trains, too slowly for HEAD."""
    node = trained(stage)
    world, machine = stage.world, stage.machine(node)

    def cut(_url: str) -> ObjectStore:
        raise ObjectStoreError("no route to host")

    stage.world = replace(world, open_store=cut)
    stage.clouds["aws"].fail("list", *[UnknownOutcome("no route to host")] * 10_000)
    machine.hung = True  # as we see it
    play(stage, AWAY_S)
    (kept,) = stage.nodes("j1")
    assert kept.state is R
    assert "its cloud does not answer" in kept.leave_text
    assert told(stage, "unheard") == 1
    reasons = [row.event.text for row in stage.store.events("j1") if row.event.kind == "pass"]
    assert "its cloud does not answer" in reasons[-1]
    stage.clouds["aws"].before.clear()
    play(stage, 60.0)
    (kept,) = stage.nodes("j1")
    assert kept.state is R, "the cloud says that it runs, and HEAD may say that it trains"
    # All is back but the machine's own link, which takes a while.
    stage.world = world
    play(stage, 20.0)
    machine.hung = False
    play(stage, 60.0)
    (kept,) = stage.nodes("j1")
    assert (kept.state, kept.leave_text) == (R, ""), stage.told()
    assert told(stage, "unheard") == 1


def test_a_machine_that_its_cloud_lists_and_nobody_hears_is_replaced(stage: Stage) -> None:
    node = trained(stage)
    stage.machine(node).hung = True
    play(stage, SILENT_S)
    assert stage.nodes("j1", R), stage.told()
    stage.run(lambda s: s.nodes("j1")[0].leave_reason is LeaveReason.LOST, limit_s=30.0)
    stage.run(lambda s: [n for n in s.nodes("j1", R) if n.generation == 2])


def test_a_job_whose_end_could_not_be_read_is_ended_by_the_next_machine(stage: Stage) -> None:
    """The store of its checkpoints is away for us, and comes back when nobody trains."""
    node = trained(stage)
    world = stage.world

    def cut(_url: str) -> ObjectStore:
        raise ObjectStoreError("no route to host")

    stage.world = replace(world, open_store=cut)
    stage.goal = 0
    stage.run(lambda s: s.nodes("j1")[0].exit_code == 0)
    play(stage, HEAD_PATIENCE_S - 10.0)
    assert stage.nodes("j1", R), "it is waited for"
    stage.run(lambda s: not s.nodes("j1", R), limit_s=30.0)
    (told,) = [r.event for r in stage.store.events("j1") if r.event.kind == "unconfirmed"]
    assert told.alert
    assert "no route to host" in told.text
    stage.world = world
    stage.run(lambda s: s.over("j1"))
    job, (first, last) = stage.job(), stage.nodes("j1")
    assert (job.outcome, job.failures) == (Outcome.SUCCEEDED, 0)
    assert (first.id, first.leave_reason, last.generation) == (node.id, LeaveReason.DONE, 2)
    assert last.first_step_at_us == 0, "it had nothing to do"


def test_a_store_that_took_nothing_down_is_no_silence(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower's turns fail; what decides goes on as soon as it can."""
    node = trained(stage)
    monkeypatch.setattr(stage, "follow", lambda: None)
    play(stage, AWAY_S)
    assert stage.nodes("j1", R), "not while the store is away"
    monkeypatch.undo()
    play(stage, 60.0)
    assert [n.id for n in stage.nodes("j1", R)] == [node.id]
