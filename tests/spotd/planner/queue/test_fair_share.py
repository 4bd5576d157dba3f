"""Whose turn it is: the line, who gives its machines, and how."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotd.domain.events import Severity
from spotd.domain.job import Desired
from spotd.domain.market import Market
from spotd.domain.node import EffectKind
from spotd.domain.on_node_loss import Elastic, OnNodeLoss
from spotd.domain.queue import Limits, QueueEntry, QueueSnapshot, ResourceHolder
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import US_PER_H, S
from spotd.domain.view import View
from spotd.planner.queue.fair_share import (
    COOLDOWN_US,
    HALF_LIFE_US,
    KEPT_US,
    PATIENCE_US,
    SAVE_US,
    TRAINS_US,
    USE_US,
    givers,
    in_order,
    no_room,
    taken,
    use_of_late,
)
from tests.fixtures.examples import examples
from tests.spotd.planner.build import (
    JOB,
    NOW,
    by_id,
    head,
    kinds,
    market,
    node,
    notice,
    settle,
    spec,
    view,
)

USD = 1_000_000
LONG_US = NOW - 10 * US_PER_H


def turn(name: str, priority: int = 500, nodes: int = 1, **fields: Any) -> QueueEntry:
    """In line since long ago."""
    base = QueueEntry(
        name, name, nodes, nodes * 10 * USD, priority, created_at_us=5, since_us=LONG_US
    )
    return replace(base, **fields)


def holder(name: str, priority: int = 500, nodes: int = 1, **fields: Any) -> ResourceHolder:
    """Training since long ago."""
    base = ResourceHolder(
        name, name, nodes, nodes * 10 * USD, priority=priority, trains_since_us=LONG_US
    )
    return replace(base, **fields)


def line(*waiting: QueueEntry, holding: tuple[ResourceHolder, ...] = ()) -> QueueSnapshot:
    return QueueSnapshot(in_order(waiting), holding)


# --- the order


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (turn("z", 501, used_microusd=(9, 9), created_at_us=9), turn("a", 500)),
        (turn("z", used_microusd=(1, 9), created_at_us=9), turn("a", used_microusd=(2, 0))),
        (turn("z", used_microusd=(1, 1), created_at_us=9), turn("a", used_microusd=(1, 2))),
        (turn("z", created_at_us=1), turn("a", created_at_us=2)),
        (turn("a"), turn("z")),
    ],
    ids=["priority", "its project's use", "its user's use", "age", "a name, so that it is fixed"],
)
def test_turns_go_by_priority_then_fair_share_then_age(
    first: QueueEntry, second: QueueEntry
) -> None:
    assert in_order([second, first]) == (first, second)


def test_use_of_late_halves_each_day_and_ends_after_a_week() -> None:
    """By the closed form: a machine that ran for ever used rate * H / ln 2."""
    rate = 10 * USD
    now_us = 100 * HALF_LIFE_US
    last_day = use_of_late(rate, now_us - HALF_LIFE_US, now_us, now_us)
    day_before = use_of_late(rate, now_us - 2 * HALF_LIFE_US, now_us - HALF_LIFE_US, now_us)
    assert last_day == pytest.approx(10 * USD * 24 / 0.693147 / 2, rel=1e-4)  # $173.12
    assert day_before * 2 == pytest.approx(last_day, rel=1e-6)
    assert use_of_late(rate, 0, now_us - USE_US, now_us) == 0
    for_ever, week = (use_of_late(rate, s, now_us, now_us) for s in (0, now_us - USE_US))
    assert for_ever == week
    assert use_of_late(rate, now_us, now_us + US_PER_H, now_us) == 0, "what is to come"


# --- the room


ROOM: dict[str, tuple[Limits, int, QueueSnapshot, QueueEntry, str]] = {
    "no limits": (Limits(), 9, line(turn("x", 900)), turn("me"), ""),
    "room": (Limits(3), 2, line(), turn("me"), ""),
    "full": (Limits(3), 3, line(), turn("me"), "limits.max_nodes is 3 and 3 are in use"),
    "full, and others ahead": (
        Limits(3),
        3,
        line(turn("x", 900), turn("y", 800), turn("z", 100)),
        turn("me"),
        "raise the limit; ahead of it: x (priority 900) and 1 more",
    ),
    "kept for a higher one": (
        Limits(3),
        2,
        line(turn("x", 900)),
        turn("me"),
        "the room is reserved for x (priority 900), ahead by priority (this one has 500)",
    ),
    "kept for one that used less": (
        Limits(3),
        2,
        line(turn("x", used_microusd=(0, 0))),
        turn("me", used_microusd=(USD, 0)),
        "ahead by fair share: its project used $0.00 recently, this one's $1.00",
    ),
    "kept for one whose user used less": (
        Limits(3),
        2,
        line(turn("x", used_microusd=(5, 0))),
        turn("me", used_microusd=(5, USD)),
        "its user used $0.00 recently, this one's $1.00",
    ),
    "kept for an older one": (
        Limits(3),
        2,
        line(turn("x", created_at_us=4)),
        turn("me"),
        "ahead by age: wait",
    ),
    "who is behind is not an obstacle": (Limits(3), 2, line(turn("x", 100)), turn("me"), ""),
    "nor is oneself": (Limits(3), 2, line(turn("me")), turn("me"), ""),
    "room for both": (Limits(3), 1, line(turn("x", 900)), turn("me"), ""),
    "a gang gathers its room": (
        Limits(4),
        2,
        line(turn("x", 900, nodes=4)),
        turn("me"),
        "reserved for x (priority 900)",
    ),
    "nobody waits for one that never has room": (
        Limits(4),
        2,
        line(turn("x", 900, nodes=5)),
        turn("me"),
        "",
    ),
    "money": (
        Limits(0, 35 * USD),
        3,
        line(),
        turn("me"),
        "limits.max_usd_per_hour is $35.00, and this would make it $40.00",
    ),
    "money that is kept": (
        Limits(0, 45 * USD),
        3,
        line(turn("x", 900)),
        turn("me"),
        "reserved for x",
    ),
    "a project's limit": (
        Limits(9, projects={"llm": 1}),
        1,
        line(holding=(holder("h", project="llm"),)),
        turn("me", project="llm"),
        "projects.llm.max_nodes is 1 and 1 are in use",
    ),
    "another's limit": (
        Limits(9, projects={"llm": 1}),
        1,
        line(holding=(holder("h", project="llm"),)),
        turn("me", project="vision"),
        "",
    ),
    "nobody waits for one whose own project is full": (
        Limits(3, projects={"llm": 1}),
        2,
        line(turn("x", 900, project="llm"), holding=(holder("h", project="llm"), holder("i"))),
        turn("me"),
        "",
    ),
    "nor for its second one": (
        Limits(4, projects={"llm": 2}),
        2,
        line(
            turn("x", 900, project="llm"),
            turn("y", 900, project="llm"),
            holding=(holder("h", project="llm"), holder("i")),
        ),
        turn("me"),
        "",
    ),
    "a project's room is kept as well": (
        Limits(9, projects={"llm": 2}),
        1,
        line(turn("x", 900, project="llm"), holding=(holder("h", project="llm"),)),
        turn("me", project="llm"),
        "reserved for x (priority 900)",
    ),
}


@pytest.mark.parametrize("name", ROOM)
def test_the_room(name: str) -> None:
    limits, nodes, there, mine, expected = ROOM[name]
    said = no_room(limits, nodes, nodes * 10 * USD, there, mine)
    assert expected in said
    assert bool(said) is bool(expected)


LESS = turn("x", used_microusd=(2 * USD, 0))
MORE = turn("me", used_microusd=(3 * USD, 0))


@pytest.mark.parametrize(
    ("nodes", "there", "mine", "said"),
    [
        (3, line(), turn("me"), ""),
        (3, line(turn("x", 900)), turn("me"), "; ahead of it: x (priority 900)"),
        (
            3,
            line(turn("x", 900), turn("y", 800)),
            turn("me"),
            "; ahead of it: x (priority 900) and 1 more",
        ),
        (
            2,
            line(LESS),
            MORE,
            (
                "the room is reserved for x (priority 500), ahead by fair share: its project used "
                "$2.00 recently, this one's $3.00: wait until it has its machines, or raise the "
                "limits"
            ),
        ),
    ],
    ids=["nobody", "one", "two", "kept"],
)
def test_what_is_said_of_those_ahead(
    nodes: int, there: QueueSnapshot, mine: QueueEntry, said: str
) -> None:
    full = "limits.max_nodes is 3 and 3 are in use: wait until one has ended, or raise the limit"
    assert no_room(Limits(3), nodes, 0, there, mine) == (full + said if nodes == 3 else said)


TURNS = st.builds(
    turn,
    st.sampled_from("abcdef"),
    st.sampled_from([100, 500, 900]),
    st.integers(1, 3),
    project=st.sampled_from(["", "llm"]),
    created_at_us=st.integers(0, 3),
)
LINES = st.lists(TURNS, max_size=5, unique_by=lambda one: one.job_id).map(lambda some: line(*some))


@settings(max_examples=examples(200), deadline=None)
@given(LINES, st.integers(0, 5), st.integers(1, 6), st.integers(0, 3))
def test_somebody_has_a_turn_where_there_is_room_for_somebody(
    there: QueueSnapshot, nodes: int, most: int, of_llm: int
) -> None:
    """Nobody starves: of those whom the limits alone would let in first, one may launch."""
    limits = Limits(most, projects={"llm": of_llm} if of_llm else {})
    free = [one for one in there.waiting if not no_room(limits, nodes, 0, QueueSnapshot(), one)]
    may = [one for one in there.waiting if not no_room(limits, nodes, 0, there, one)]
    assert set(may) <= set(free)
    possible = [one for one in there.waiting if not no_room(limits, 0, 0, QueueSnapshot(), one)]
    if possible and possible[0] in free:
        assert possible[0] in may


# --- from whom it is taken


TAKEN: dict[str, tuple[Limits, int, QueueSnapshot, str]] = {
    "a lower one": (
        Limits(1),
        1,
        line(turn("hi", 900), holding=(holder("lo", 100),)),
        "lo",
    ),
    "never an equal one": (
        Limits(1),
        1,
        line(turn("hi", 500), holding=(holder("lo", 500),)),
        "",
    ),
    "never where room is": (
        Limits(2),
        1,
        line(turn("hi", 900), holding=(holder("lo", 100),)),
        "",
    ),
    "nor where it comes by itself": (
        Limits(2),
        2,
        line(turn("hi", 900), holding=(holder("lo", 100), holder("x", leaving_nodes=1))),
        "",
    ),
    "room of money that comes by itself": (
        Limits(0, 20 * USD),
        2,
        line(
            turn("hi", 900),
            holding=(holder("lo", 100), holder("x", leaving_microusd_per_h=10 * USD)),
        ),
        "",
    ),
    "the lowest": (
        Limits(2),
        2,
        line(turn("hi", 900), holding=(holder("lo", 200), holder("lower", 100))),
        "lower",
    ),
    "who comes by itself, and of the others as many as it still lacks": (
        Limits(3),
        3,
        line(turn("hi", 900, nodes=2), holding=(holder("lo", 100), holder("x", leaving_nodes=1))),
        "lo",
    ),
    "nor where it comes of its own project": (
        Limits(9, projects={"llm": 2}),
        2,
        line(
            turn("hi", 900, project="llm"),
            holding=(
                holder("lo", 100, project="llm"),
                holder("x", project="llm", leaving_nodes=1),
            ),
        ),
        "",
    ),
    "of equals who began last": (
        Limits(2),
        2,
        line(
            turn("hi", 900),
            holding=(holder("new", 100, trains_since_us=NOW - TRAINS_US), holder("a", 100)),
        ),
        "new",
    ),
    "who was asked already": (
        Limits(2),
        2,
        line(turn("hi", 900), holding=(holder("a", 200, yields_to="hi"), holder("b", 100))),
        "a",
    ),
    "several for a gang": (
        Limits(3),
        3,
        line(turn("hi", 900, nodes=2), holding=tuple(holder(n, 100) for n in "abc")),
        "a b",
    ),
    "no more than do": (
        Limits(4),
        4,
        line(turn("hi", 900, nodes=3), holding=(holder("a", 100), holder("b", 200, nodes=3))),
        "b",
    ),
    "of those that do the lowest": (
        Limits(5),
        5,
        line(
            turn("hi", 900, nodes=4),
            holding=(holder("a", 100), holder("b", 200), holder("c", 300, nodes=3)),
        ),
        "a c",
    ),
    "nobody where all would not do": (
        Limits(3),
        3,
        line(turn("hi", 900, nodes=3), holding=(holder("a", 100), holder("b", 900, nodes=2))),
        "",
    ),
    "not one that has just begun": (
        Limits(1),
        1,
        line(turn("hi", 900), holding=(holder("lo", 100, trains_since_us=NOW - TRAINS_US + 1),)),
        "",
    ),
    "not one that gave its machines a while ago": (
        Limits(1),
        1,
        line(turn("hi", 900), holding=(holder("lo", 100, yielded_at_us=NOW - COOLDOWN_US + 1),)),
        "",
    ),
    "but one that did before": (
        Limits(1),
        1,
        line(turn("hi", 900), holding=(holder("lo", 100, yielded_at_us=NOW - COOLDOWN_US),)),
        "lo",
    ),
    "not one that could not save": (
        Limits(1),
        1,
        line(turn("hi", 900), holding=(holder("lo", 100, trains_since_us=0),)),
        "",
    ),
    "not by one that has just come": (
        Limits(1),
        1,
        line(turn("hi", 900, since_us=NOW - PATIENCE_US + 1), holding=(holder("lo", 100),)),
        "",
    ),
    "but by one that has waited": (
        Limits(1),
        1,
        line(turn("hi", 900, since_us=NOW - PATIENCE_US), holding=(holder("lo", 100),)),
        "lo",
    ),
    "not for one behind a gang that waits": (
        Limits(2),
        2,
        line(
            turn("gang", 900, nodes=2),
            turn("mid", 500),
            holding=(holder("top", 900), holder("lo", 100)),
        ),
        "",
    ),
    "but for one behind a job that never has room": (
        Limits(1),
        1,
        line(turn("gang", 900, nodes=2), turn("mid", 500), holding=(holder("lo", 100),)),
        "lo",
    ),
    "of its own project where that is full": (
        Limits(9, projects={"llm": 1}),
        2,
        line(
            turn("hi", 900, project="llm"),
            holding=(holder("other", 1), holder("lo", 100, project="llm")),
        ),
        "lo",
    ),
    "who is behind one whose own project is full": (
        Limits(2, projects={"llm": 1}),
        2,
        line(
            turn("hi", 900, project="llm"),
            turn("mid", 500),
            holding=(holder("top", 900, project="llm"), holder("lo", 100)),
        ),
        "lo",
    ),
    "money": (
        Limits(0, 10 * USD),
        1,
        line(turn("hi", 900), holding=(holder("lo", 100),)),
        "lo",
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_from_whom_room_is_taken(name: str) -> None:
    limits, nodes, there, expected = TAKEN[name]
    found = taken(limits, nodes, nodes * 10 * USD, there, NOW)
    givers = sorted(one.job_id for one in found[1]) if found else []
    assert givers == expected.split()


@settings(max_examples=examples(200), deadline=None)
@given(
    LINES,
    st.lists(
        st.builds(
            holder,
            st.sampled_from("uvwxyz"),
            st.sampled_from([100, 500, 900]),
            st.integers(1, 3),
            project=st.sampled_from(["", "llm"]),
        ),
        max_size=5,
        unique_by=lambda one: one.job_id,
    ),
    st.integers(1, 8),
)
def test_what_is_taken_is_of_lower_ones_makes_the_room_and_is_no_more_than_that(
    there: QueueSnapshot, holding: list[ResourceHolder], most: int
) -> None:
    limits, there = Limits(most), replace(there, holding=tuple(holding))
    nodes = sum(one.nodes for one in holding)
    found = taken(limits, nodes, 0, there, NOW)
    if found is None:
        return
    first, givers = found
    assert all(one.priority < first.priority for one in givers)
    given_back = sum(one.nodes for one in givers)
    assert nodes + first.nodes > most >= nodes - given_back + first.nodes
    assert all(nodes - given_back + one.nodes + first.nodes > most for one in givers)


# --- in a pass


ME = holder(JOB, 100)
FULL = line(turn("hi", 900), holding=(ME,))


def full(**fields: Any) -> Market:
    there = {"limits": Limits(1), "nodes": 1, "snapshot": FULL} | fields
    return market(**there)


def low(*nodes: Any, **fields: Any) -> View:
    """Of a low job that trains."""
    many = nodes or (node(NodeState.RUNNING),)
    return view(*many, job={"spec": spec(priority=100), "head": head(), **fields})


def test_it_is_asked_to_save_first() -> None:
    after, plan = settle(low(), full())
    assert after.nodes[0].state is NodeState.RUNNING
    assert after.job.queue.yields_to == "hi"
    assert after.job.queue.yields_since_us == after.job.progress.save_wanted_at_us == NOW
    assert after.nodes[0].call.effect is EffectKind.SAVE
    [told] = [event for event in plan.events if event.kind == "yield_asked"]
    assert told.text == "saving: hi (priority 900) waits for its machines"
    assert told.node_id == after.nodes[0].id
    assert plan.reason == "saving before its machines go to hi (priority 900)"
    assert plan.wake_at_us == NOW + 15 * S
    late = {**ASKED, "yields_since_us": NOW - SAVE_US + 5 * S}
    assert settle(low(**late), full())[1].wake_at_us == NOW + 5 * S


def test_who_is_not_the_one_to_give_is_not_asked() -> None:
    there = line(turn("hi", 900), holding=(holder("lower", 50), ME))
    assert givers(full(limits=Limits(2), nodes=2, snapshot=there), NOW) == ["lower"]
    after, plan = settle(low(), full(limits=Limits(2), nodes=2, snapshot=there))
    assert not after.job.queue.yields_since_us
    assert "yield_asked" not in kinds(plan)


def test_who_is_to_give_is_due() -> None:
    assert givers(full(), NOW) == [JOB]
    assert givers(full(limits=Limits(2)), NOW) == []


ASKED = {"yields_to": "hi", "yields_since_us": NOW - 30 * S, "save_wanted_at_us": NOW - 30 * S}
SAVED = {"seen_at_us": NOW - 9 * S, "read_at_us": NOW - 5 * S, "step": 120}


@pytest.mark.parametrize(
    ("said", "drains", "effect"),
    [
        ({"seen_at_us": NOW - 31 * S, "read_at_us": NOW - S}, False, EffectKind.SAVE),
        ({"seen_at_us": NOW - 9 * S, "read_at_us": 0}, False, EffectKind.READ_HEAD),
        ({"seen_at_us": NOW - 9 * S, "read_at_us": NOW - 10 * S}, False, EffectKind.READ_HEAD),
        ({"seen_at_us": NOW - 30 * S, "read_at_us": NOW - S}, False, EffectKind.SAVE),
        (SAVED, True, EffectKind.DRAIN),
        ({**SAVED, "read_at_us": NOW - 9 * S}, True, EffectKind.DRAIN),
        ({**SAVED, "generation": 0}, False, EffectKind.SAVE),
    ],
    ids=[
        "an old one",
        "by its word",
        "read before",
        "of that moment",
        "read by us",
        "at once",
        "of an older attempt",
    ],
)
def test_it_drains_once_spotd_has_read_that_it_saved(
    said: dict[str, Any], drains: bool, effect: EffectKind
) -> None:
    before = low(**ASKED, head=head(**said))
    after, plan = settle(before, full())
    [mine] = after.nodes
    assert (mine.state is NodeState.DRAINING) is drains
    assert mine.call.effect is effect
    if not drains:
        return
    assert mine.departure.leave_reason is LeaveReason.CANCELLED, (
        "neither a failure nor a preemption"
    )
    assert mine.departure.leave_text == "its room goes to hi (priority 900)"
    assert (after.job.queue.yielded_at_us, after.job.queue.yields_since_us) == (NOW, 0)
    assert after.job.backoff.failures == 0
    [told] = [event for event in plan.events if event.kind == "yielded"]
    assert told.alert
    assert (told.severity, told.node_id) == (Severity.WARNING, mine.id)
    assert told.data == {"to": "hi", "step": 120}
    assert told.text == (
        "train (priority 100) gives node g1 in aws/aws-1a to hi (priority 900): step 120 is saved, "
        "and it continues from its last save when there is room"
    )


def test_while_it_drains_it_asks_for_no_other_machine() -> None:
    mine = node(NodeState.DRAINING, drained_at_us=NOW - S, leave_reason=LeaveReason.CANCELLED)
    gave = {"yields_to": "hi", "yielded_at_us": NOW - S}
    after, plan = settle(low(mine, **gave), full(snapshot=line(turn("hi", 900))))
    assert [n.id for n in after.nodes] == [mine.id]
    assert plan.reason == "its machines go to hi"
    # One that is paused and resumed meanwhile is another matter.
    after, plan = settle(low(mine, **{**gave, "yielded_at_us": NOW - 9 * S}), full())
    assert len(after.nodes) == 2
    assert "its machines go to hi" not in plan.reasons


def test_the_ranks_of_a_gang_drain_together() -> None:
    gang = [node(NodeState.RUNNING, rank=rank) for rank in (0, 1)]
    me = holder(JOB, 100, nodes=2)
    there = full(limits=Limits(2), nodes=2, snapshot=line(turn("hi", 900), holding=(me,)))
    job_ = {"spec": spec(priority=100, num_nodes=2), **ASKED, "head": head(**SAVED)}
    after, _ = settle(view(*gang, job=job_), there)
    assert {n.state for n in after.nodes} == {NodeState.DRAINING}


def test_so_does_one_that_trains_with_fewer() -> None:
    mine = node(NodeState.RUNNING, gang_size=1, moved_at_us=NOW - 99 * S)
    there = full(snapshot=line(turn("hi", 900), holding=(holder(JOB, 100),)))
    shrinks = spec(priority=100, num_nodes=2, elastic=Elastic(OnNodeLoss.SHRINK))
    after, _ = settle(view(mine, job={"spec": shrinks, **ASKED, "head": head(**SAVED)}), there)
    assert [n.state for n in after.nodes] == [NodeState.DRAINING]


@pytest.mark.parametrize(
    "fields",
    [{"snapshot": QueueSnapshot()}, {"nodes": 0}, {"limits": Limits(2)}],
    ids=["nobody waits any more", "there is room", "the limit was raised"],
)
def test_it_trains_on_when_nobody_needs_its_room_any_more(fields: dict[str, Any]) -> None:
    after, _ = settle(low(**ASKED, head=head(**SAVED)), full(**fields))
    assert after.nodes[0].state is NodeState.RUNNING
    assert (after.job.queue.yields_to, after.job.queue.yields_since_us) == ("", 0)


@pytest.mark.parametrize(
    "mine",
    [
        {"state": NodeState.BOOTING, "chosen": True},
        {"state": NodeState.RUNNING, "exit_code": 1, "exited_at_us": NOW},
        {"state": NodeState.RUNNING, "released_at_us": NOW},
    ],
    ids=["it comes up", "it has ended", "it has released"],
)
def test_what_does_not_train_is_not_asked(mine: dict[str, Any]) -> None:
    fields = dict(mine)
    after, _ = settle(low(node(fields.pop("state"), **fields)), full())
    assert not after.job.queue.yields_since_us


def test_a_notice_comes_first() -> None:
    mine = node(NodeState.RUNNING, notices=(notice(),))
    after, _ = settle(low(mine, **ASKED, head=head(**SAVED)), full())
    assert by_id(after, mine).departure.leave_reason is LeaveReason.PREEMPTED
    assert not after.job.queue.yields_since_us


def test_a_machine_that_is_coming_beside_it_ends_the_wish() -> None:
    mine = node(NodeState.RUNNING)
    other = node(NodeState.LAUNCHING, generation=2)
    before = low(mine, other, **ASKED, head=head(**SAVED))
    after, _ = settle(before, full())
    assert by_id(after, mine).state is NodeState.RUNNING


@pytest.mark.parametrize("desired", [Desired.PAUSE, Desired.CANCEL])
def test_one_that_is_to_stop_anyway_stops_for_that(desired: Desired) -> None:
    after, plan = settle(low(desired=desired), full())
    assert after.nodes[0].state is NodeState.DRAINING
    assert "yield_asked" not in kinds(plan)


def test_one_that_cannot_save_keeps_its_machines_and_is_left_alone() -> None:
    long_ago = {**ASKED, "yields_since_us": NOW - SAVE_US}
    after, plan = settle(low(**long_ago), full())
    assert after.nodes[0].state is NodeState.RUNNING
    assert (after.job.queue.yielded_at_us, after.job.queue.yields_to) == (NOW, "")
    assert after.job.queue.yields_since_us == 0
    [told] = [event for event in plan.events if event.kind == "yield_in_vain"]
    assert told.text == "train saved nothing in 600 s: hi keeps waiting"
    assert (told.alert, told.severity) == (True, Severity.WARNING)
    assert told.node_id == after.nodes[0].id


def test_another_that_waits_asks_anew() -> None:
    after, _ = settle(low(**{**ASKED, "yields_to": "x"}, head=head(**SAVED)), full())
    assert after.nodes[0].state is NodeState.RUNNING
    assert (after.job.queue.yields_to, after.job.queue.yields_since_us) == ("hi", NOW)


# --- who waits


def test_who_is_refused_stands_in_line_and_says_who_gives_way() -> None:
    lower = holder("lo", 100), holder("me too", 100)
    there = line(turn(JOB, 900, nodes=2, created_at_us=1), holding=lower)
    blocked = full(
        limits=Limits(2), nodes=2, snapshot=there, blocked="limits.max_nodes is 1 and 1 are in use"
    )
    waits = {"room_since_us": NOW - 90 * S, "room_asked_us": NOW - 15 * S}
    after, plan = settle(view(job=waits), blocked)
    assert (after.job.queue.room_since_us, after.job.queue.room_asked_us) == (NOW - 90 * S, NOW)
    assert after.job.queue.room_microusd_per_h == 10 * USD
    assert (
        "lo (priority 100), me too (priority 100) saves first, then gives its machines away"
        in plan.reasons
    )
    assert plan.wake_at_us - NOW < KEPT_US, "it asks again before its turn is another's"


def test_who_gave_its_machines_says_to_whom() -> None:
    gave = {"yields_to": "hi", "yielded_at_us": NOW - 60 * S}
    there = line(turn(JOB, 100), holding=(replace(holder("hi", 900), name="big"),))
    after, plan = settle(view(job=gave), full(snapshot=there, blocked="full"))
    assert "its machines went to big" in plan.reasons
    assert after.job.queue.yields_to == "hi"


WAITED = {
    "room_since_us": NOW - 90 * S,
    "room_asked_us": NOW - 15 * S,
    "room_microusd_per_h": 1,
    "yields_to": "hi",
}


@pytest.mark.parametrize(
    ("fields", "there", "known"),
    [
        ({}, market(), ""),
        ({}, market(offers=()), "hi"),
        ({"desired": Desired.PAUSE}, market(), "hi"),
        ({"place_after_us": NOW + S}, market(), "hi"),
    ],
    ids=["it has a machine", "there is no offer", "it is paused", "it is to wait after a crash"],
)
def test_it_leaves_the_line(fields: dict[str, Any], there: Market, known: str) -> None:
    after, _ = settle(view(job={**WAITED, **fields}), there)
    assert (after.job.queue.room_since_us, after.job.queue.room_asked_us) == (0, 0)
    assert after.job.queue.room_microusd_per_h == 0
    assert after.job.queue.yields_to == known


def test_who_trains_stands_in_no_line() -> None:
    after, _ = settle(view(node(NodeState.RUNNING), job=WAITED), market())
    assert after.job.queue.room_asked_us == 0
