"""Several nodes in one view: none is passed over for what holds of another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import Scope
from spotd.domain.market import Refusal
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.next_effect import claim_for, need, predecessors, replacement_ready
from spotd.planner.core.plan_builder import PlanBuilder
from spotd.planner.placement.rank import rank
from spotd.planner.rules.apply_observations import settle_exits, settle_observed
from spotd.planner.rules.replace_node import drain_noticed, give_up_boot, give_up_lost, withdraw
from tests.spotd.planner.build import (
    NOW,
    OFFERS,
    by_id,
    head,
    hello,
    kinds,
    market,
    node,
    notice,
    offer,
    settle,
    spec,
    view,
)

L, B, R = NodeState.LAUNCHING, NodeState.BOOTING, NodeState.RUNNING
D, T, G = NodeState.DRAINING, NodeState.TERMINATING, NodeState.GONE
PREEMPTED, LOST = LeaveReason.PREEMPTED, LeaveReason.LOST
TWO = {"spec": spec(num_nodes=2)}


def drafted(*nodes: Node, **fields: Any) -> PlanBuilder:
    return PlanBuilder(view(*nodes, **fields), market(), NOW)


def states(d: PlanBuilder) -> list[NodeState]:
    return [n.state for n in d.nodes]


def test_one_that_is_gone_keeps_no_other_from_being_settled() -> None:
    d = drafted(node(G, leave_reason=LOST), node(L, generation=2, instance_id="i"))
    settle_observed(d)
    assert states(d) == [G, B]


def test_one_without_an_exit_keeps_no_other_from_being_settled() -> None:
    d = drafted(node(R), node(D, generation=2, exit_code=76, leave_reason=PREEMPTED))
    settle_exits(d)
    assert states(d) == [R, T]


def test_one_without_a_notice_keeps_no_other_from_draining() -> None:
    d = drafted(node(R), node(R, generation=2, notices=(notice(),)))
    drain_noticed(d)
    assert states(d) == [R, D]


@pytest.mark.parametrize(
    "first",
    [
        node(R),
        node(D, leave_reason=PREEMPTED, notices=(notice(),)),
    ],
    ids=["trains", "is taken away"],
)
def test_another_notice_is_withdrawn(first: Node) -> None:
    second = node(D, generation=2, leave_reason=PREEMPTED, notices=(notice(withdrawn=True),))
    d = drafted(first, second)
    withdraw(d)
    assert states(d) == [first.state, R]
    assert d.nodes[1].departure.drained_at_us == 0


def test_one_whose_replacement_is_chosen_keeps_no_other_from_being_withdrawn() -> None:
    left = {"leave_reason": PREEMPTED, "notices": (notice(withdrawn=True),)}
    d = drafted(node(D, **left), node(D, generation=2, **left))
    withdraw(d)
    assert states(d) == [D, R], "the second is the first one's chosen replacement"


@pytest.mark.parametrize(
    "seen",
    [{"told_release_at_us": NOW - S}, {"released_at_us": NOW - S}, {"exit_code": 75}],
    ids=lambda seen: next(iter(seen)),
)
def test_a_notice_that_is_taken_back_when_it_is_leaving_comes_too_late(seen: Any) -> None:
    leaving = node(D, leave_reason=PREEMPTED, notices=(notice(withdrawn=True),), **seen)
    d = drafted(leaving, hello(generation=2, offer=OFFERS[1]))
    withdraw(d)
    assert states(d) == [D, B]


def test_an_ended_job_is_told_of_no_withdrawal() -> None:
    after, plan = settle(
        view(
            node(D, leave_reason=PREEMPTED, notices=(notice(withdrawn=True),)),
            job={"head": head(final=True)},
        )
    )
    assert kinds(plan) == ["succeeded", "node_leaving"], "it does not train on"
    assert after.nodes[0].state is T


def test_one_that_left_or_speaks_keeps_no_other_from_being_given_up() -> None:
    later = NOW + 100 * S
    speaks = node(R, generation=2, heard_at_us=later)
    silent = node(R, generation=3, heard_at_us=NOW - 300 * S, surveyed_at_us=later)
    looked = {"head": head(read_at_us=NOW - 10 * S, seen_at_us=0)}
    d = PlanBuilder(view(node(G, leave_reason=LOST), speaks, silent, job=looked), market(), later)
    give_up_lost(d)
    assert states(d) == [G, R, T]


@pytest.mark.parametrize(
    "first",
    [
        node(R),
        hello(
            chosen=True,
            hello_at_us=NOW - 9000 * S,
            started_at_us=NOW - 8000 * S,
            ready_at_us=NOW - 7000 * S,
        ),
        hello(chosen=True, started_at_us=NOW - S, heard_at_us=NOW - 60 * S),
        node(L),
        node(B, kept_until_us=NOW + S, requested_at_us=NOW - 9000 * S),
    ],
    ids=["trains", "waits for head", "is silent", "has time", "is kept"],
)
def test_one_that_is_not_late_keeps_no_other_from_being_given_back(first: Node) -> None:
    late = node(B, generation=2, requested_at_us=NOW - 9000 * S)
    d = drafted(first, late)
    give_up_boot(d)
    assert states(d) == [first.state, T]


def test_a_call_that_is_not_due_keeps_no_other_from_being_made() -> None:
    in_flight = {
        "effect": EffectKind.LAUNCH,
        "effect_armed_at_us": NOW - S,
        "effect_due_at_us": NOW + 14 * S,
    }
    first, second = node(L, **in_flight), node(L, rank=1)
    after, plan = settle(view(first, second, job=TWO))
    assert by_id(after, second).call.effect is EffectKind.LAUNCH
    assert plan.wake_at_us == NOW + 14 * S


def test_an_offer_that_does_not_fit_hides_none_behind_it() -> None:
    small = offer("aws-1a", 1, accelerator_count=1)
    assert [r.offer for r in rank(spec(), market((small, *OFFERS)), NOW)] == list(OFFERS)


def test_two_candidates_are_of_two_offers() -> None:
    """One zone that has nothing must not fail both."""
    after, _ = settle(view(job={"spec": spec(candidates=2)}))
    assert [n.offer for n in after.nodes] == list(OFFERS[:2])
    after, _ = settle(view(job={"spec": spec(candidates=3)}), market(OFFERS[:2]))
    assert [n.offer for n in after.nodes] == list(OFFERS[:2]), "there are no more"


@pytest.mark.req("ELA-08")
def test_a_gang_is_of_one_offer_and_so_in_one_zone() -> None:
    after, _ = settle(view(job={"spec": spec(num_nodes=4, candidates=2)}))
    ranks = [(n.candidate, n.rank) for n in after.nodes]
    assert sorted(ranks) == [(candidate, rank) for candidate in (0, 1) for rank in range(4)]
    assert len({(n.candidate, n.offer.key) for n in after.nodes}) == 2, "one for each candidate"


@pytest.mark.parametrize("desired", [R, B])
def test_nobody_is_chosen_beside_a_gang_that_trains(desired: NodeState) -> None:
    """Two would have the job's generation; the older one has HEAD."""
    old = node(R) if desired is R else hello(chosen=True, started_at_us=NOW - S)
    fresh = hello(generation=2, offer=OFFERS[1])
    after, _ = settle(view(old, fresh))
    assert not by_id(after, fresh).chosen


def test_what_is_taken_away_is_not_asked_for_whatever_it_leaves_for() -> None:
    """It was to stop, and is wanted again: its reason says nothing about its offer."""
    stopping = node(D, leave_reason=LeaveReason.CANCELLED, drained_at_us=NOW, notices=(notice(),))
    after, _ = settle(view(stopping))
    assert after.nodes[1].offer == OFFERS[1]


def test_what_one_machine_says_of_its_offer_hides_no_other_refusal() -> None:
    lost = node(R, gone_at_us=NOW)
    full = Refusal(OFFERS[1].key, Scope.OFFER, "CapacityError", NOW - S)
    after, _ = settle(view(lost), market(refusals=(full,)))
    assert after.nodes[1].offer == OFFERS[2]


# --- ranks of one gang


def gang(first: Node, second: Node, **fields: Any) -> View:
    return view(first, second, job=TWO, **fields)


def test_a_mate_that_trains_already_is_no_predecessor() -> None:
    mate, late = node(R), hello(rank=1, chosen=True)
    seen = gang(mate, late)
    assert predecessors(late, seen) == []
    assert claim_for(late, seen, NOW) == ("now", 0.0)


def test_a_mate_that_is_ready_is_no_replacement() -> None:
    draining, mate = node(D, leave_reason=PREEMPTED), hello(rank=1, chosen=True, ready_at_us=NOW)
    newer = hello(generation=2, chosen=True, ready_at_us=NOW)
    seen = view(draining, mate, newer, job=TWO)
    assert not replacement_ready(draining, seen)
    both = view(draining, mate, newer, replace(newer, id="x", rank=1), job=TWO)
    assert replacement_ready(draining, both)


def test_a_rank_whose_mate_is_long_gone_is_told_to_release() -> None:
    """A view has no old nodes that are gone: half a gang is all there is to see."""
    alone = node(D, leave_reason=PREEMPTED, notices=(notice(),))
    assert need(alone, view(alone, job=TWO), market(), NOW) is EffectKind.RELEASE
    assert need(alone, view(alone), market(), NOW) is None


@pytest.mark.parametrize(
    ("mate", "state"),
    [
        ({}, D),  # it has been told to release, and has its grace
        ({"told_release_at_us": NOW - 309 * S}, D),
        ({"told_release_at_us": NOW - 310 * S}, T),
        ({"exit_code": 76, "exited_at_us": NOW}, T),
        ({"released_at_us": NOW}, T),
    ],
)
def test_a_rank_saves_when_its_mate_has_released_and_left(
    mate: dict[str, Any], state: NodeState
) -> None:
    left = node(T, leave_reason=PREEMPTED, exit_code=75, terminated_at_us=NOW)
    grace = {"spec": spec(num_nodes=2, stop_grace_s=300.0)}
    told = {"told_release_at_us": NOW - S} | mate
    still = node(D, rank=1, leave_reason=PREEMPTED, drained_at_us=NOW - S, **told)
    after, _ = settle(view(left, still, job=grace), market())
    assert by_id(after, still).state is state


def test_half_a_gang_is_none() -> None:
    """Where one leaves, all have left before anybody is asked for; the rule holds by itself too."""
    after, _ = settle(view(node(R), job=TWO))
    assert [n.generation for n in after.nodes] == [1, 2, 2]
    assert after.attempts[-1].cause == "again"


@pytest.mark.parametrize(
    "mate",
    [
        node(T, rank=1, leave_reason=LOST, terminated_at_us=NOW),
        node(D, rank=1, leave_reason=LeaveReason.CANCELLED, heard_at_us=NOW - 20 * S),
    ],
    ids=["left", "fell silent"],
)
def test_a_rank_that_broke_with_its_mate_leaves_for_what_it_was_leaving_for(mate: Node) -> None:
    broken = node(
        D,
        leave_reason=LeaveReason.CANCELLED,
        drained_at_us=NOW - 30 * S,
        exit_code=1,
        exited_at_us=NOW - 30 * S,
    )
    after, plan = settle(view(broken, mate, job=TWO))
    assert by_id(after, broken).state is T
    assert by_id(after, broken).departure.leave_reason is LeaveReason.CANCELLED
    assert "crashed" not in kinds(plan)


def test_a_crash_while_it_drains_is_a_crash() -> None:
    crashed = node(D, leave_reason=PREEMPTED, notices=(notice(),), exit_code=1, exited_at_us=NOW)
    after, _ = settle(view(crashed))
    assert (after.job.backoff.failures, after.nodes[0].departure.leave_reason) == (
        1,
        LeaveReason.FAILED,
    )


@pytest.mark.parametrize(("engine", "wanted"), [("none", EffectKind.SAVE), ("spotd", None)])
def test_every_rank_of_scripts_is_told_to_save(engine: str, wanted: EffectKind | None) -> None:
    """The ranks of our engine save together: rank 0 is told."""
    checkpoint = replace(spec().checkpoint, engine=engine)
    job = {"spec": spec(num_nodes=2, checkpoint=checkpoint), "save_wanted_at_us": NOW}
    mate = node(R, rank=1)
    assert need(mate, view(node(R), mate, job=job), market(), NOW) is wanted


def test_a_rank_that_its_user_looks_at_keeps_no_mate() -> None:
    kept = node(R, exit_code=1, exited_at_us=NOW - 60 * S, kept_until_us=NOW + 60 * S)
    mates = [node(T, rank=1, leave_reason=LeaveReason.FAILED), node(R, rank=2)]
    job = {"spec": spec(num_nodes=3), "stop_text": "crashed", "failures": 4}
    after, _ = settle(view(kept, *mates, job=job))
    assert [n.state for n in after.nodes] == [R, T, T]


@pytest.mark.parametrize(
    ("refused", "asks", "words"),
    [
        ((), 0, "the cheapest of 3 offers"),
        ((0,), 1, "the cheapest of 2 offers that have not refused yet"),
        ((0, 1), 2, "the cheapest of 1 offers that have not refused yet"),
        ((0, 1, 2), 0, "the cheapest of 3 offers"),
    ],
)
@pytest.mark.parametrize("generation", [1, 2])
def test_an_attempt_asks_whom_it_has_not_asked_before_those_that_refused_it(
    generation: int, refused: tuple[int, ...], asks: int, words: str
) -> None:
    """However cheap they are and however long ago that was; another attempt begins anew."""
    some = (OFFERS[0], OFFERS[1], OFFERS[3])
    long_ago, node_id = NOW - 3600 * S, "j0-g1-c0-r0"
    said = tuple(
        Refusal(some[n].key, Scope.OFFER, "CapacityError", long_ago, node_id) for n in refused
    )
    asking = node(T, generation=generation, offer=OFFERS[2], leave_reason=LeaveReason.CAPACITY)
    before = view(asking, job={"generation": generation})
    after, plan = settle(before, market(offers=some, refusals=said))
    again = generation == 2
    assert after.nodes[-1].offer == some[0 if again else asks]
    assert plan.reason.endswith("the cheapest of 3 offers" if again else words)
