"""One pass: stopped for good at any boundary, and run again, the world comes out the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from providers.base import CapacityError, UnknownOutcome
from spotd.daemon.reconcile import CLAIM_LEASE_S, claim_due, drain, market_now, one_effect, one_pass
from spotd.domain.job import Desired
from spotd.domain.market import Timing
from spotd.domain.node import EffectKind
from spotd.domain.plan import Effect
from spotd.domain.queue import Limits
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.planner.core.next_effect import CALL_DEADLINE_S
from tests.spotd.fake_world import Stage
from tests.spotd.store import build

L, B, R, D, T, G = NodeState
Story = Callable[[Stage, str], int]


def over(stage: Stage, job_id: str) -> None:
    stage.run(lambda s: s.over(job_id))


# Each story returns the number of the boundary from which on it is its own.


def first_launch(stage: Stage, job_id: str) -> int:
    """Placed, trained, finished, terminated."""
    stage.goal = 60
    stage.submit(job_id)
    over(stage, job_id)
    return 0


def cancelled_launch(stage: Stage, job_id: str) -> int:
    """Cancelled as soon as the intent to launch is on record."""
    stage.submit(job_id)
    stage.run(lambda s: s.nodes(job_id))
    stage.store.jobs.set_desired(job_id, Desired.CANCEL, stage.clock.now_us())
    over(stage, job_id)
    return 0


def notice(stage: Stage, job_id: str) -> int:
    """The replacement takes over, and the machine that is taken away is given back."""
    return _struck(stage, job_id, lambda s: s.warn(s.nodes(job_id, R)[0]))


def sudden_death(stage: Stage, job_id: str) -> int:
    """The machine is gone without a word."""
    return _struck(stage, job_id, lambda s: s.strike(s.nodes(job_id, R)[0]))


def _struck(stage: Stage, job_id: str, strike: Callable[[Stage], None]) -> int:
    stage.goal = None
    stage.submit(job_id)
    stage.run(lambda s: s.nodes(job_id, R))
    number = len(stage.boundaries)
    strike(stage)
    stage.run(lambda s: [n for n in s.nodes(job_id, R) if n.generation == 2])
    stage.goal = 0
    over(stage, job_id)
    return number


def summary(stage: Stage, job_id: str) -> object:
    """How it ended, whatever happened on the way."""
    job, nodes = stage.job(job_id), stage.nodes(job_id)
    machines = [m for cloud in stage.clouds.values() for m in cloud.machines.values()]
    ours = [m.request.token for m in machines if m.request.tags["spotd-job"] == job_id]
    known = {node.token for node in nodes}
    assert known >= set(ours), "a machine that no node stands for"
    if job.outcome is Outcome.CANCELLED:
        assert len(ours) <= 1
        return job.outcome, stage.alive()
    return {
        "outcome": job.outcome,
        "nodes": [(n.generation, n.offer.key, n.departure.leave_reason) for n in nodes],
        "creates": [stage.creates(node) for node in nodes],
        "alive": stage.alive(),
        "segments": [row.state for row in stage.store.ledger.segments(job_id)],
    }


# A create that may be in flight is waited for before it counts as one that never was.
SURE_S = {cancelled_launch: CALL_DEADLINE_S[EffectKind.LAUNCH] + 10.0}


@pytest.mark.req("RPV-16")
@pytest.mark.timeout(400)  # the same story some thirty times
@pytest.mark.parametrize(
    ("story", "tier"),
    [
        (first_launch, "sqlite"),
        (cancelled_launch, "sqlite"),
        (notice, "memory"),
        (sudden_death, "memory"),
    ],
)
def test_a_daemon_that_dies_anywhere_ends_in_the_same_state(
    make_stage: Callable[..., Stage], story: Story, tier: str
) -> None:
    """The long stories in memory: what a transaction is there, the tests of all stores say, and a
    daemon dies between two of them."""
    stage = make_stage(sql=tier == "sqlite")
    start_s = stage.clock.monotonic_s()
    first = story(stage, "j0")
    took_s = stage.clock.monotonic_s() - start_s
    expected = summary(stage, "j0")
    boundaries = list(enumerate(stage.boundaries))[first:]
    assert len(boundaries) >= 15
    for number, boundary in boundaries:
        stage.forget()
        stage.kill_at = number
        start_s = stage.clock.monotonic_s()
        story(stage, f"j{number + 1}")
        late_s = stage.clock.monotonic_s() - start_s - took_s
        where = f"died {boundary.when} {boundary.what} ({number})"
        assert len(stage.boundaries) > number, f"{where}: it never got there"
        assert summary(stage, f"j{number + 1}") == expected, f"{where}:\n{stage.told()}"
        # What a dead daemon was doing is not waited for until its deadline (a start has 15 min).
        patience_s = CLAIM_LEASE_S + 2.0 + SURE_S.get(story, 0.0)
        assert late_s <= patience_s, f"{where}: {late_s:.0f} s late\n{stage.told()}"


def armed(stage: Stage, job_id: str = "j1") -> list[Effect]:
    """One pass; the calls that it armed."""
    found: list[Effect] = []
    assert claim_due(stage.world, "me", 16) == [job_id]
    drain(one_pass(stage.world, stage.timing, job_id, found.append))
    return found


def test_no_call_goes_out_before_its_intent_is_on_record(stage: Stage) -> None:
    """A pool may make it at once, and the daemon die before anything else is written."""
    stage.submit()
    found: list[Effect] = []

    def dispatch(effect: Effect) -> None:
        (node,) = (node for node in stage.nodes("j1") if node.id == effect.node.id)
        assert (node.call.effect, node.token) == (effect.kind, effect.node.token)
        found.append(effect)

    claim_due(stage.world, "me", 16)
    drain(one_pass(stage.world, stage.timing, "j1", dispatch))
    assert [effect.kind for effect in found] == [EffectKind.LAUNCH]


def reasons(stage: Stage) -> list[str]:
    return [row.event.text for row in stage.store.events.rows("j1") if row.event.kind == "pass"]


def test_a_limit_in_the_way_waits_says_which_and_does_not_spin(stage: Stage) -> None:
    stage.store.market.set_limits(Limits(max_nodes=1))
    stage.goal = None
    stage.submit("j0")
    stage.run(lambda s: s.nodes("j0", R))
    stage.submit("j1")
    stage.passes = 0
    end_us = stage.clock.now_us() + 60 * S
    stage.run(lambda s: s.clock.now_us() >= end_us)
    assert stage.nodes("j1") == []
    assert "limits.max_nodes is 1 and 1 are in use" in reasons(stage)[-1]
    assert stage.passes < 60, "not one a tick"
    stage.goal = 0
    stage.run(lambda s: s.over("j1"))
    assert stage.job("j1").outcome is Outcome.SUCCEEDED


def test_with_room_for_one_candidate_one_is_launched(stage: Stage) -> None:
    stage.store.market.set_limits(Limits(max_nodes=1))
    stage.submit(candidates=2)
    over(stage, "j1")
    assert stage.job().outcome is Outcome.SUCCEEDED
    assert len(stage.nodes("j1")) == 1


def test_with_room_for_no_candidate_the_limit_is_told(stage: Stage) -> None:
    stage.store.market.set_limits(Limits(max_nodes=1))
    stage.submit(candidates=2, num_nodes=2)
    stage.turn()
    assert stage.nodes("j1") == []
    assert "limits.max_nodes is 1" in reasons(stage)[-1]


@pytest.mark.parametrize(("room", "asked"), [(1, 1), (2, 2)])
def test_a_slow_machine_gets_another_beside_it_where_there_is_room(
    stage: Stage, room: int, asked: int
) -> None:
    """Where there is none the job goes on with the one that is coming, all the same."""
    stage.timing = Timing(beside_s=0.5, lost_after_s=0.5)
    stage.store.market.set_limits(Limits(max_nodes=room))
    stage.submit()
    over(stage, "j1")
    assert stage.job("j1").outcome is Outcome.SUCCEEDED
    nodes = stage.nodes("j1")
    assert len(nodes) == asked
    assert [node.chosen for node in nodes].count(True) == 1
    assert {n.departure.leave_reason for n in nodes if not n.chosen} <= {LeaveReason.HEDGE_LOST}


def test_room_that_comes_free_is_used_for_the_other_candidate(stage: Stage) -> None:
    stage.store.market.set_limits(Limits(max_nodes=1))
    stage.submit(candidates=2)
    stage.turn()
    stage.store.market.set_limits(Limits(max_nodes=2))
    stage.run(lambda s: len(s.nodes("j1")) == 2, limit_s=5.0)


def test_over_the_limit_the_notice_still_drains(stage: Stage) -> None:
    """What cannot be launched must not keep the rest of the plan from being written."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", R))
    stage.store.market.set_limits(Limits(max_nodes=1))
    stage.warn(stage.nodes("j1", R)[0])
    stage.run(lambda s: s.nodes("j1", D))
    assert len(stage.nodes("j1")) == 1
    assert "max_nodes" in str(stage.store.events.rows("j1")[-1].event)


def test_a_commit_that_comes_second_does_nothing(stage: Stage) -> None:
    stage.submit()
    claim_due(stage.world, "me", 1)
    found: list[Effect] = []
    slow = one_pass(stage.world, stage.timing, "j1", found.append)
    next(slow)  # before the commit
    quick: list[Effect] = []
    drain(one_pass(stage.world, stage.timing, "j1", quick.append))
    drain(slow)
    assert [effect.kind for effect in quick] == [EffectKind.LAUNCH]
    assert found == []
    assert len(stage.nodes("j1")) == 1


def test_a_plan_that_the_schema_forbids_acts_on_nothing(stage: Stage) -> None:
    stage.submit("j0")
    stage.submit("j1")
    thief = build.new_node("j0", id="j1-g1-c0-r0", token="t0")
    build.commit(stage.store, build.view(stage.store, "j0"), build.opening("j0", 1, thief))
    found: list[Effect] = []
    drain(one_pass(stage.world, stage.timing, "j1", found.append))
    assert found == []
    assert stage.nodes("j1") == []
    (told,) = [row for row in stage.store.events.rows("j1") if row.event.kind == "plan_rejected"]
    assert told.event.alert


def test_a_job_that_does_not_exist_is_passed_over(stage: Stage) -> None:
    drain(one_pass(stage.world, stage.timing, "jnone", lambda _: pytest.fail("an effect")))


def test_the_market_has_what_only_the_configuration_knows(stage: Stage) -> None:
    market = market_now(stage.world, replace(stage.timing, resurvey_s=3.0))
    assert market.timing.resurvey_s == 3.0
    assert market.deployment == stage.store.deployment.id()
    assert market.uptime.started_at_us == stage.clock.now_us()
    condition = replace(
        stage.world.condition,
        reached_since=lambda: {"aws": 7},
        unreached=lambda: {"aws": "no way"},
    )
    market = market_now(replace(stage.world, condition=condition), stage.timing)
    assert market.uptime.reached_since_us == {"aws": 7}
    assert market.launch.disabled == {"aws": "no way"}, "what nobody can reach is not rented"


def test_no_call_is_repeated_while_it_is_in_flight(stage: Stage) -> None:
    stage.submit()
    (launch,) = armed(stage)
    for _ in range(3):
        stage.store.jobs.mark_due(["j1"])
        assert armed(stage) == []
    stage.clock.sleep(CALL_DEADLINE_S[EffectKind.LAUNCH] + 1)
    (again,) = armed(stage)
    assert again.node.token == launch.node.token


@pytest.mark.parametrize(("wait_s", "made"), [(4.0, True), (6.0, False), (16.0, False)])
def test_a_create_that_waited_too_long_for_its_turn_is_not_made(
    stage: Stage, wait_s: float, made: bool
) -> None:
    """Its node may have been given up meanwhile: the machine would be nobody's."""
    stage.submit()
    (launch,) = armed(stage)
    stage.clock.sleep(wait_s)
    drain(one_effect(stage.world, launch))
    assert stage.creates(launch.node) == int(made)
    stage.run(lambda s: s.over("j1"))
    assert stage.creates(launch.node) == 1
    assert stage.job().outcome is Outcome.SUCCEEDED


def test_the_reply_of_a_create_is_lost(stage: Stage) -> None:
    stage.clouds["aws"].fail("launch", UnknownOutcome("cut off"), answer=True)
    stage.submit()
    over(stage, "j1")
    (node,) = stage.nodes("j1")
    assert stage.creates(node) == 1
    assert node.departure.leave_reason is LeaveReason.DONE


def test_a_refusal_moves_on_within_the_attempt(stage: Stage) -> None:
    stage.clouds["aws"].fail("launch", CapacityError("none left"))
    stage.submit()
    over(stage, "j1")
    refused, used = stage.nodes("j1")
    assert (refused.offer.provider, refused.departure.leave_reason) == ("aws", LeaveReason.CAPACITY)
    assert (used.offer.provider, used.generation) == ("gcp", 1)


def test_a_terminate_that_fails_is_tried_until_the_machine_is_gone(stage: Stage) -> None:
    errors = [UnknownOutcome("502")] * 5
    stage.clouds["aws"].fail("terminate", *errors)
    stage.submit()
    over(stage, "j1")
    assert stage.alive() == []
    assert stage.clouds["aws"].calls["terminate"] == 6


def test_an_idle_job_costs_no_passes(stage: Stage) -> None:
    """While it trains, nothing is decided: only observations and timers make a job due."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", R))
    stage.passes = 0
    end_us = stage.clock.now_us() + 100 * S
    stage.run(lambda s: s.clock.now_us() >= end_us)
    assert stage.passes <= 5, stage.told()
