"""What holds of every decision, whatever the view: safety, legality and the fixpoint."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from providers.base import NoticeKind, Scope
from spotd.domain.fast_replace import changed
from spotd.domain.job import Desired
from spotd.domain.market import Market, Refusal
from spotd.domain.node import Node, NoticeRecord
from spotd.domain.on_node_loss import Elastic, OnNodeLoss
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from tests.fixtures.examples import examples
from tests.spotd.planner.build import NOW, OFFERS, head, market, node, settle, spec, view

AGES = st.sampled_from([0, NOW - 300 * S, NOW - 130 * S, NOW - 16 * S, NOW - S, NOW])
COMING = (NodeState.LAUNCHING, NodeState.BOOTING)
ALIVE = (NodeState.BOOTING, NodeState.RUNNING)
UNCHOSEN: dict[str, Any] = {
    "state": NodeState.BOOTING,
    "chosen": False,
    "leave_reason": None,
    "left_at_us": 0,
    "drained_at_us": 0,
}


@st.composite
def notices(draw: st.DrawFn) -> tuple[NoticeRecord, ...]:
    one = st.builds(
        NoticeRecord,
        notice_id=st.sampled_from(["n1", "n2"]),
        kind=st.sampled_from(NoticeKind),
        heard_at_us=st.just(NOW - S),
        deadline_us=st.sampled_from([None, NOW - 60 * S, NOW + 30 * S, NOW + 120 * S]),
        withdrawn=st.booleans(),
    )
    return tuple(draw(st.lists(one, max_size=2)))


@st.composite
def nodes(draw: st.DrawFn, generation: int, candidate: int, rank: int) -> Node:
    state = draw(st.sampled_from(NodeState))
    base = node(
        state,
        generation=generation,
        candidate=candidate,
        rank=rank,
        offer=draw(st.sampled_from(OFFERS)),
        notices=draw(notices()),
    )
    seen: dict[str, object] = {}
    if state is NodeState.LAUNCHING and draw(st.booleans()):
        code = draw(st.sampled_from(["CapacityError", "RejectedError"]))
        refusal = {"launch_error": "no", "launch_error_code": code}
        refusal |= {"gone_at_us": NOW} if draw(st.booleans()) else {}  # final, or in doubt
        seen |= {"instance_id": "i"} if draw(st.booleans()) else refusal
    if state is NodeState.BOOTING:
        seen |= {"host": draw(st.sampled_from(["", "h"])), "booted_at_us": draw(AGES)}
        seen |= {"hello_at_us": draw(AGES), "heard_at_us": draw(AGES)}
        seen |= {"started_at_us": draw(AGES), "ready_at_us": draw(AGES)}
    if state in (NodeState.RUNNING, NodeState.DRAINING, NodeState.BOOTING):
        seen |= {"link_down_at_us": draw(AGES), "heard_at_us": draw(AGES)}
        seen |= {"surveyed_at_us": draw(AGES), "gone_at_us": draw(st.sampled_from([0, 0, NOW]))}
        seen |= {"cloud_state": draw(st.sampled_from(["", "running"]))}
        code = draw(st.sampled_from([None, None, 0, 1, 75, 76]))
        seen |= {"exit_code": code, "exited_at_us": NOW - S if code is not None else 0}
        seen |= {"released_at_us": NOW - S if code == 75 else 0}
        seen |= {"disk_full_at_us": draw(st.sampled_from([0, 0, NOW - S]))}
    if state in (NodeState.DRAINING, NodeState.TERMINATING, NodeState.GONE):
        seen |= {"leave_reason": draw(st.sampled_from(LeaveReason)), "left_at_us": draw(AGES)}
        seen |= {"drained_at_us": draw(AGES), "terminated_at_us": draw(AGES)}
    return changed(base, **seen)


@st.composite
def views(draw: st.DrawFn) -> View:
    size = draw(st.sampled_from([1, 1, 2]))
    found: list[Node] = []
    for generation in range(1, draw(st.integers(0, 3)) + 1):
        for candidate in range(draw(st.integers(1, 2))):
            gang = [draw(nodes(generation, candidate, rank)) for rank in range(size)]
            # The schema allows one chosen node per rank in the states that train, and an attempt
            # chooses one gang.
            others = [
                n for n in found if n.chosen and (n.state in ALIVE or n.generation == generation)
            ]
            chosen = bool(gang[0].chosen or draw(st.booleans())) and not others
            for member in gang:
                hello = member.startup.hello_at_us or NOW - 100 * S
                alive = member.state in (*ALIVE, NodeState.DRAINING)
                if member.state is NodeState.LAUNCHING and chosen:  # it had said hello
                    member = changed(  # noqa: PLW2901
                        node(NodeState.GONE, generation=generation, candidate=candidate),
                        rank=member.rank,
                        id=member.id,
                        token=member.token,
                        leave_reason=LeaveReason.LOST,
                    )
                elif alive and not chosen:
                    member = changed(member, **UNCHOSEN)  # noqa: PLW2901
                elif alive and chosen:
                    member = changed(member, chosen=True, hello_at_us=hello, host="h")  # noqa: PLW2901
                found.append(member)
    job: dict[str, object] = {
        "spec": spec(
            num_nodes=size,
            candidates=draw(st.integers(1, 2)),
            elastic=Elastic(draw(st.sampled_from(OnNodeLoss)), draw(st.integers(1, 2)), 60.0),
        ),
        "desired": draw(st.sampled_from(Desired)),
        "outcome": draw(st.sampled_from([None, None, None, Outcome.SUCCEEDED])),
        "outcome_text": "done",
        "failures": draw(st.integers(0, 3)),
        "head": draw(st.sampled_from([None, head(), head(final=True, read_at_us=NOW)])),
        "place_after_us": draw(st.sampled_from([0, NOW + S])),
        "stop_text": draw(st.sampled_from(["", "", "limit"])),
    }
    return view(*found, job=job)


@st.composite
def markets(draw: st.DrawFn) -> Market:
    codes = st.sampled_from(["CapacityError", "Preempted", "QuotaError"])
    keys = st.sampled_from([offer.key for offer in OFFERS])
    ages = st.sampled_from([NOW - 500 * S, NOW - 10 * S])
    refusal = st.builds(Refusal, keys, st.sampled_from(Scope), codes, ages)
    return market(
        refusals=tuple(draw(st.lists(refusal, max_size=3))),
        blocked=draw(st.sampled_from(["", "", "full"])),
    )


@settings(max_examples=examples(150), deadline=None)
@given(views(), markets())
def test_safety(before: View, market_: Market) -> None:
    after, plan = settle(before, market_)  # an illegal transition would raise in apply
    old = {n.id: n for n in before.nodes}
    new = [n for n in after.nodes if n.id not in old and not n.moved_at_us]
    moved = [n for n in after.nodes if n.id not in old and n.moved_at_us]
    for n in moved:
        was = [o for o in after.nodes if o.id in old and o.token == f"{n.token}/g{o.generation}"]
        assert [o.state for o in was] == [NodeState.GONE], "a machine has one row that is not over"
        assert not any(x.takes_machine for x in n.notices), "one that is taken away goes on nowhere"
    for rank in range(after.job.spec.resources.num_nodes):
        training = [n for n in after.nodes if n.chosen and n.rank == rank and n.state in ALIVE]
        assert len(training) <= 1, "two chosen nodes train one rank"
    if (
        after.job.outcome is not None
        or after.job.desired is not Desired.RUN
        or market_.launch.blocked
    ):
        assert not new, "nothing is launched for a job that is not wanted, or over a limit"
    if after.job.outcome is not None or after.job.desired is not Desired.RUN:
        assert not moved, "nor does one go on for it"
    noticed = {
        n.offer.key for n in after.nodes
        if n.id in old and n.state is not NodeState.GONE and any(x.takes_machine for x in n.notices)
    }  # fmt: skip
    assert not noticed & {n.offer.key for n in new}, "asked for the offer that is being preempted"
    assert len({n.token for n in new}) == len(new)
    for n in after.nodes:
        if (
            n.id in old
            and old[n.id].state is NodeState.RUNNING
            and n.state is NodeState.TERMINATING
        ):
            assert _has_a_reason(old[n.id], before, after), "a healthy training node was ended"
        if n.id in old and (old[n.id].state, n.state) == (
            NodeState.DRAINING,
            NodeState.TERMINATING,
        ):
            over = _has_a_reason(old[n.id], before, after) or _has_had_its_time(old[n.id], before)
            assert over, "a saving node was cut short"
    if after.job.outcome is Outcome.SUCCEEDED and before.job.outcome is None:
        assert before.job.head is not None
        assert before.job.head.final
    if after.job.outcome is Outcome.CANCELLED:
        assert all(n.state is NodeState.GONE for n in after.nodes)
    assert plan.reason


def _has_a_reason(n: Node, before: View, after: View) -> bool:
    mates_gone = before.job.spec.resources.num_nodes > 1
    silent = bool(n.agent.link_down_at_us) or NOW - n.agent.heard_at_us > 15 * S
    return n.training.exit_code is not None or silent or after.job.outcome is not None or mates_gone


def _has_had_its_time(n: Node, before: View) -> bool:
    """To save, since it was told to; at the latest when its machine is taken away."""
    saved_us = n.departure.drained_at_us + int((before.job.spec.timeouts.stop_grace_s + 10) * S)
    noticed = [x.deadline_us for x in n.notices if x.takes_machine]
    told = n.departure.leave_reason is not LeaveReason.PREEMPTED or None in noticed
    taken = any(deadline_us and deadline_us + 10 * S <= NOW for deadline_us in noticed)
    return taken or (told and saved_us <= NOW)


@settings(max_examples=examples(150), deadline=None)
@given(views(), markets())
def test_deciding_again_changes_nothing(before: View, market_: Market) -> None:
    """The fixpoint: states, intents and calls are what they were; only time can move them."""
    after, _ = settle(before, market_)
    for _ in range(4):  # gangs unwind rank by rank
        last = after
        after, _ = settle(after, market_)
    assert _meaning(after) == _meaning(last)


def _meaning(v: View) -> object:
    return [
        (n.id, n.state, n.chosen, n.departure.leave_reason, n.call.effect) for n in v.nodes
    ], v.job.outcome


@settings(max_examples=examples(75), deadline=None)
@given(views(), markets())
def test_the_same_arguments_give_the_same_plan(before: View, market_: Market) -> None:
    assert settle(before, market_)[1] == settle(before, market_)[1]


@settings(max_examples=examples(75), deadline=None)
@given(views(), markets())
def test_a_job_that_is_wanted_never_sleeps_for_ever(before: View, market_: Market) -> None:
    """Without a machine to wait for, there is a time at which the job is decided upon again."""
    after, plan = settle(before, market_)
    wanted = after.job.outcome is None and after.job.desired is Desired.RUN
    manned = any(n.state in ALIVE or n.state in COMING for n in after.nodes)
    if wanted and not manned and not after.job.end.stop_text:
        assert plan.wake_at_us > NOW
