"""Silence that is ours: no healthy machine is given up for what we did not hear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from providers.base import UnknownOutcome
from providers.stores.base import ObjectStore
from providers.stores.base import StoreError as ObjectStoreError
from spotd import wire
from spotd.base.clock import GAP_S, ListeningSince
from spotd.domain.job import Desired
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.planner.rules.apply_observations import HEAD_PATIENCE_S
from tests.spotd.fake_world import HandClock, Machine, Stage

R, G = NodeState.RUNNING, NodeState.GONE
AWAY_S = 600.0
SILENT_S = 110.0  # long, but not yet long enough to be given up


def test_listening_counts_from_its_start_or_the_end_of_the_last_gap() -> None:
    clock = HandClock()
    start_us = clock.now_us()
    listening = ListeningSince(clock)
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


@pytest.fixture
def stage(stage: Stage) -> Stage:
    """Hours are played here: a turn a second is enough."""
    stage.tick_s = 1.0
    return stage


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
    return sum(row.event.kind == kind for row in stage.store.events.rows("j1"))


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

    stage.world = replace(world, job_stores=replace(world.job_stores, open=cut))
    stage.clouds["aws"].fail("list", *[UnknownOutcome("no route to host")] * 10_000)
    machine.hung = True  # as we see it
    play(stage, AWAY_S)
    (kept,) = stage.nodes("j1")
    assert kept.state is R
    assert "its cloud does not answer" in kept.departure.leave_text
    assert told(stage, "unheard") == 1
    reasons = [row.event.text for row in stage.store.events.rows("j1") if row.event.kind == "pass"]
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
    assert (kept.state, kept.departure.leave_text) == (R, ""), stage.told()
    assert told(stage, "unheard") == 1


def test_a_machine_that_its_cloud_lists_and_nobody_hears_is_replaced(stage: Stage) -> None:
    node = trained(stage)
    stage.machine(node).hung = True
    play(stage, SILENT_S)
    assert stage.nodes("j1", R), stage.told()
    stage.run(lambda s: s.nodes("j1")[0].departure.leave_reason is LeaveReason.LOST, limit_s=30.0)
    stage.run(lambda s: [n for n in s.nodes("j1", R) if n.generation == 2])


def unread_for_hours(stage: Stage) -> Callable[[], None]:
    """The job's machine exits 0, and the store of its checkpoints is away for us, long beyond our
    patience. What is returned brings it back."""
    world = stage.world

    def cut(_url: str) -> ObjectStore:
        raise ObjectStoreError("access denied")

    stage.world = replace(world, job_stores=replace(world.job_stores, open=cut))
    stage.run(lambda s: s.nodes("j1")[0].training.exit_code == 0)
    play(stage, HEAD_PATIENCE_S - 10.0)
    assert stage.nodes("j1", R), "it is waited for"
    stage.run(lambda s: s.nodes("j1")[0].state is G, limit_s=30.0)
    for _ in range(6):
        stage.clock.sleep(3600.0)
        play(stage, 20.0)
    (gone,) = stage.nodes("j1")
    assert (gone.state, gone.departure.leave_reason) == (G, LeaveReason.DONE), (
        "nothing else is rented"
    )
    assert not stage.alive()
    (told,) = [r.event for r in stage.store.events.rows("j1") if r.event.kind == "unconfirmed"]
    assert told.alert
    assert "access denied" in told.text
    assert f"give spotd read access to {stage.job().spec.checkpoint.store}" in told.text
    passes = [r.event.text for r in stage.store.events.rows("j1") if r.event.kind == "pass"]
    assert "another starts once its last checkpoint is read" in passes[-1]
    assert "access denied" in passes[-1]
    assert stage.job().outcome is None

    def back() -> None:
        stage.world = world

    return back


def test_a_job_whose_end_cannot_be_read_rents_nothing_and_succeeds_when_it_is(
    stage: Stage,
) -> None:
    node = trained(stage)
    stage.goal = 0
    back = unread_for_hours(stage)
    back()
    stage.run(lambda s: s.over("j1"))
    job = stage.job()
    assert (job.outcome, job.backoff.failures) == (Outcome.SUCCEEDED, 0)
    assert [n.id for n in stage.nodes("j1")] == [node.id]


def test_a_job_that_turns_out_not_to_be_finished_goes_on(stage: Stage) -> None:
    node = trained(stage)
    machine = stage.machine(node)
    machine.say(wire.EXITED, code=wire.EXIT_FINISHED)
    machine.exited = wire.EXIT_FINISHED
    back = unread_for_hours(stage)
    assert len(stage.nodes("j1")) == 1
    back()
    stage.run(lambda s: s.nodes("j1", R))
    assert [n.generation for n in stage.nodes("j1")] == [1, 2]
    assert stage.job().backoff.failures == 0


def test_a_job_whose_end_cannot_be_read_can_be_given_up(stage: Stage) -> None:
    trained(stage)
    stage.goal = 0
    unread_for_hours(stage)
    stage.store.jobs.set_desired("j1", Desired.CANCEL, stage.clock.now_us())
    stage.run(lambda s: s.over("j1"))
    assert stage.job().outcome is Outcome.CANCELLED
    passes = stage.passes
    play(stage, 60.0)
    assert stage.passes <= passes + 1, "nothing is read any more"


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


# --- a machine that is getting ready

LONG_S = 4200.0  # longer than `setup_timeout`


def started(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A machine that took its start, and of which nothing was heard since."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: any(n.startup.hello_at_us for n in s.nodes("j1")))
    monkeypatch.setattr(stage, "follow", stage.listening.listened)
    stage.run(lambda s: s.nodes("j1")[0].startup.started_at_us)
    monkeypatch.undo()
    (node,) = stage.nodes("j1")
    assert not node.startup.ready_at_us
    return node


def far_away(stage: Stage) -> None:
    stage.restart(LONG_S)


def long_suspended(stage: Stage) -> None:
    stage.clock.sleep(LONG_S)


@pytest.mark.parametrize("gap", [far_away, long_suspended])
def test_a_machine_that_got_ready_while_nobody_listened_is_not_given_up(
    stage: Stage, gap: Callable[[Stage], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = started(stage, monkeypatch)
    gap(stage)
    stage.machine(node).hung = True  # its link takes a while
    play(stage, 60.0)
    stage.machine(node).hung = False
    play(stage, 60.0)
    assert [n.id for n in stage.nodes("j1", R)] == [node.id], stage.told()
    assert len(stage.nodes("j1")) == 1


def test_a_machine_in_setup_outlives_the_absence_of_our_network(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = started(stage, monkeypatch)
    stage.clouds["aws"].fail("list", *[UnknownOutcome("no route to host")] * 10_000)
    stage.machine(node).hung = True  # as we see it
    play(stage, 300.0)
    assert stage.nodes("j1")[0].departure.leave_reason is None
    stage.clouds["aws"].before.clear()
    play(stage, 15.0)  # all is back but its link
    stage.machine(node).hung = False
    play(stage, 60.0)
    assert [n.id for n in stage.nodes("j1", R)] == [node.id], stage.told()
    assert len(stage.nodes("j1")) == 1


def test_a_machine_in_setup_that_stays_silent_when_our_network_is_back_is_replaced(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = started(stage, monkeypatch)
    stage.clouds["aws"].fail("list", *[UnknownOutcome("no route to host")] * 10_000)
    stage.machine(node).hung = True
    play(stage, 300.0)
    stage.clouds["aws"].before.clear()
    stage.run(lambda s: s.nodes("j1")[0].departure.leave_reason is LeaveReason.LOST, limit_s=60.0)


# --- a listing that is not complete


def test_a_machine_that_talks_is_not_gone_however_often_listings_lack_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = trained(stage)
    play(stage, 15.0)  # it was listed
    monkeypatch.setattr(stage.clouds["aws"], "_shown", lambda _machine: False)
    listed = stage.clouds["aws"].calls["list"]
    play(stage, 90.0)
    stage.restart()
    play(stage, 30.0)
    assert stage.clouds["aws"].calls["list"] - listed >= 10
    monkeypatch.undo()
    play(stage, 20.0)
    assert [n.id for n in stage.nodes("j1")] == [node.id], stage.told()
    assert stage.nodes("j1", R)


def test_a_machine_that_is_silent_and_missing_is_replaced_within_90_s(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cloud says nothing of its end: it only lists it no more."""
    node = trained(stage)
    play(stage, 15.0)  # it was listed
    monkeypatch.setattr(stage.clouds["aws"], "_shown", lambda machine: not machine.hung)
    stage.machine(node).hung = True
    stage.run(lambda s: len(s.nodes("j1")) == 2, limit_s=90.0)
    assert stage.nodes("j1")[0].departure.leave_reason is LeaveReason.LOST


def test_a_machine_that_was_cut_off_and_missed_for_a_moment_trains_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = trained(stage)
    play(stage, 15.0)
    monkeypatch.setattr(stage.clouds["aws"], "_shown", lambda machine: not machine.hung)
    stage.machine(node).hung = True
    play(stage, 30.0)
    stage.machine(node).hung = False
    play(stage, 60.0)
    assert [n.id for n in stage.nodes("j1")] == [node.id], stage.told()
    assert stage.nodes("j1", R)


# --- the end


def test_a_program_that_fails_after_its_final_manifest_has_succeeded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank died while it waited for the others: nothing was left to do."""
    leave = Machine._exit
    monkeypatch.setattr(Machine, "_exit", lambda machine, code: leave(machine, code or 1))
    stage.submit(max_restarts_on_errors=0)
    stage.run(lambda s: s.over("j1"))
    job = stage.job()
    assert (job.outcome, job.backoff.failures) == (Outcome.SUCCEEDED, 0), stage.told()
    assert len(stage.nodes("j1")) == 1
