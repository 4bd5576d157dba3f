"""When exactly: the moment itself, and the one beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import Scope
from spotd.domain.fast_replace import changed
from spotd.domain.market import Refusal
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import Throughput
from spotd.planner.core.next_effect import due_at_us, lost_at_us, need
from spotd.planner.core.plan_builder import PlanBuilder
from spotd.planner.core.slow_detection import baseline_tokens_per_s, slow
from spotd.planner.offers.cooldowns import cooldown_until_us, refusal_of, spoiled_places
from spotd.planner.placement.rank import rank
from spotd.planner.rules.arm_effects import arm
from spotd.planner.rules.replace_node import taking_away
from spotd.planner.rules.slow_training import save_when_slow
from tests.spotd.planner.build import JOB, NOW, OFFERS, head, market, node, notice, spec, view

R = NodeState.RUNNING
T, G = NodeState.TERMINATING, NodeState.GONE


def draft(*nodes: Node, **fields: Any) -> PlanBuilder:
    return PlanBuilder(view(*nodes, **fields), market(), NOW)


# --- silence


@pytest.mark.parametrize(
    ("claimed", "read_us", "answering_us", "lost_us"),
    [
        (True, NOW - 200 * S, 0, NOW - 80 * S),
        (True, NOW, 0, NOW + 30 * S),  # it has the rest of its time after the last look at HEAD
        (False, NOW, 0, NOW - 80 * S),  # what never had HEAD is not to be seen there
        (True, NOW - 200 * S, NOW + S, NOW + 31 * S),
    ],
)
def test_when_a_silent_node_may_be_given_up(
    claimed: bool, read_us: int, answering_us: int, lost_us: int
) -> None:
    claimed_us = NOW - 400 * S if claimed else 0
    silent = node(R, heard_at_us=NOW - 200 * S, claimed_at_us=claimed_us)
    seen = view(silent, job={"head": head(read_at_us=read_us, seen_at_us=0)})
    answered = market(answering_since_us={"aws": answering_us} if answering_us else {})
    assert lost_at_us(silent, seen, answered) == lost_us


# --- terminating


@pytest.mark.parametrize(
    ("ended_s", "looked_s", "again_s"),
    [(1.0, 0.6, 0.5), (1.9, 0.1, 0.5), (2.0, 0.1, 5.0), (30.0, 0.5, 5.0)],
)
def test_a_terminated_machine_is_looked_at_again(
    ended_s: float, looked_s: float, again_s: float
) -> None:
    """While it is fresh, soon: most clouds list it as ended at once."""
    ended_us, looked_us = NOW - int(ended_s * S), NOW - int(looked_s * S)
    d = draft(node(T, terminated_at_us=ended_us, surveyed_at_us=looked_us))
    arm(d)
    assert (d.plan().wake_at_us - NOW) / S == again_s


@pytest.mark.parametrize(("read_us", "due_us"), [(NOW - S, NOW), (NOW - S - 1, NOW + 19 * S)])
def test_a_reading_that_is_done_can_be_made_again_at_once(read_us: int, due_us: int) -> None:
    armed = {
        "effect": EffectKind.READ_HEAD,
        "effect_armed_at_us": NOW - S,
        "effect_due_at_us": NOW + 19 * S,
    }
    asked = node(R, **armed)
    seen = view(asked, job={"head": head(read_at_us=read_us)})
    assert due_at_us(asked, seen, market(), EffectKind.READ_HEAD, NOW) == due_us


def test_a_reading_of_head_under_way_is_waited_for() -> None:
    """The cloud is asked about a suspect when that is over."""
    asked = node(
        R,
        heard_at_us=NOW - 100 * S,
        effect=EffectKind.READ_HEAD,
        effect_armed_at_us=NOW - S,
        effect_due_at_us=NOW + 19 * S,
    )
    assert need(asked, view(asked), market(), NOW) is EffectKind.READ_HEAD
    over = changed(asked, effect_due_at_us=NOW)
    assert need(over, view(over), market(), NOW) is EffectKind.SURVEY


@pytest.mark.parametrize(("failed_us", "due_us"), [(NOW - S, NOW), (NOW - S - 1, NOW + 19 * S)])
def test_a_failure_is_of_the_call_that_was_armed_before_it(failed_us: int, due_us: int) -> None:
    """In the same microsecond as well; its pause of a quarter of a second is over."""
    tried = node(
        R,
        effect=EffectKind.SAVE,
        effect_armed_at_us=NOW - S,
        effect_due_at_us=NOW + 19 * S,
        effect_failed_at_us=failed_us,
        effect_failures=1,
    )
    assert due_at_us(tried, view(tried), market(), EffectKind.SAVE, NOW) == due_us


# --- health


def reported(ago_s: float, rate: float) -> Throughput:
    return Throughput(1, NOW - int(ago_s * S), 0, int(rate * 10), 10.0)


def windows(rate: float) -> list[Throughput]:
    """One report in the middle of each of the four windows."""
    return [reported(ago_s, rate) for ago_s in (105, 75, 45, 15)]


BEFORE = [reported(ago_s, 100.0) for ago_s in (160, 150, 140, 130)]


def test_a_window_ends_with_its_end_and_begins_after_its_beginning() -> None:
    health = spec().monitoring.health
    assert slow([*BEFORE, *windows(10.0)], health, NOW)
    assert slow([*BEFORE, reported(120, 1e6), *windows(10.0)], health, NOW), "before the windows"
    assert not slow([*BEFORE, *windows(10.0), reported(0, 1e6)], health, NOW), "in the last one"


@pytest.mark.parametrize(("ago_us", "saved"), [(120 * S, True), (120 * S - 1, False)])
def test_slow_training_is_saved_again_after_a_round(ago_us: int, saved: bool) -> None:
    asked = {"save_wanted_at_us": NOW - ago_us}
    seen = view(node(NodeState.RUNNING), job=asked, throughput=(*BEFORE, *windows(10.0)))
    d = PlanBuilder(seen, market(), NOW)
    save_when_slow(d)
    assert (d.job.progress.save_wanted_at_us == NOW) is saved


def test_what_is_slow_now_is_no_measure_of_itself() -> None:
    now_slow = [reported(ago_s, 59.0) for ago_s in range(1, 120, 5)]
    assert slow([*BEFORE, *now_slow], spec().monitoring.health, NOW)


# --- the market


def test_of_several_notices_the_earliest_counts_and_none_is_earlier_than_now() -> None:
    late, soon = notice(90.0), notice(30.0, notice_id="n2")
    unknown = notice(deadline_us=None, notice_id="n3")
    assert taking_away(node(R, notices=(late, soon))) == soon
    assert taking_away(node(R, notices=(soon, late))) == soon
    assert taking_away(node(R, notices=(soon, unknown))) == unknown


def test_one_accelerator_is_enough_where_no_number_is_asked_for() -> None:
    want = replace(spec().resources.alternatives[0], accelerator_count=0)
    assert want.admits(replace(OFFERS[0], accelerator_count=1))
    assert not want.admits(replace(OFFERS[0], accelerator_count=0))


def test_what_did_not_boot_is_out_for_as_long_as_this_job_would_wait_for_it() -> None:
    failed = Refusal(OFFERS[0].key, Scope.OFFER, "BootTimeout", NOW)
    ranked = rank(spec(boot_timeout_s=900.0), market(OFFERS[:1], refusals=(failed,)), NOW)
    assert ranked[0].until_us == NOW + 1800 * S
    until_us, _ = cooldown_until_us(OFFERS[0], spoiled_places([failed], JOB), 0.0)
    assert until_us == NOW + 60 * S, "nobody waits"


def test_what_failed_long_before_is_another_story() -> None:
    """Three first pauses, when those are long."""
    key, boot = OFFERS[0].key, "BootTimeout"
    for ago_s, pause_s in ((5000, 3600), (5500, 1800)):
        both = [Refusal(key, Scope.OFFER, boot, NOW - at * S) for at in (ago_s, 0)]
        until_us, _ = cooldown_until_us(OFFERS[0], spoiled_places(both, JOB), 900.0)
        assert (until_us - NOW) / S == pause_s


def test_a_node_says_nothing_of_its_offer_before_it_leaves() -> None:
    assert refusal_of(node(R)) is None
    told = refusal_of(node(G, leave_reason=LeaveReason.LOST, left_at_us=0, gone_at_us=0))
    assert told is not None
    assert told.at_us == 0


def test_the_baseline_reaches_up_to_its_horizon() -> None:
    samples = [Throughput(1, NOW - at, 0, 1000, 10.0) for at in (3, 2, 1, 0)]
    assert baseline_tokens_per_s(samples, NOW) == 100.0
    assert baseline_tokens_per_s(samples, NOW - 1) == 0.0, "too little of it"
