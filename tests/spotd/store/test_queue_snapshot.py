"""Who stands in line for room, and that the commit gives it by turns, whoever asks."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from providers.base import Scope
from spotd.domain.job import Desired
from spotd.domain.plan import ChangeJob, Plan
from spotd.domain.queue import Limits, ResourceHolder
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.placement.scarce_offers import ANSWERS_US
from spotd.planner.queue.fair_share import KEPT_US, use_of_late
from spotd.store.commit import CommitStatus
from spotd.store.interface import Store
from tests.spotd.store.build import (
    HOUR,
    NOW,
    commit,
    move,
    new_node,
    opening,
    placed,
    plan,
    spec,
    submission,
    submit,
    view,
)
from tests.spotd.store.conftest import make

USD = 1_000_000


def wait(store: Store, job_id: str, at_us: int = NOW, **fields: Any) -> View:
    """A submitted job that was refused for want of room at that time."""
    return stand(store, submit(store, job_id, **fields), at_us)


def stand(store: Store, seen: View, at_us: int = NOW) -> View:
    said = {"room_since_us": at_us, "room_asked_us": at_us, "room_microusd_per_h": 10 * USD}
    return commit(store, seen, plan(ChangeJob(said)), at_us)


def launch_of(seen: View) -> Plan:
    """As decisions make it: who has its machine stands in no line."""
    asked = opening(seen.job.id)
    return replace(asked, changes=(*asked.changes, ChangeJob({"room_asked_us": 0})))


def waiting(store: Store, now_us: int = NOW) -> list[str]:
    return [turn.job_id for turn in store.market.load(now_us).queue.snapshot.waiting]


def test_the_last_room_goes_by_priority(store: Store) -> None:
    store.market.set_limits(Limits(max_nodes=2))
    placed(store, "a")
    low, high = wait(store, "low"), wait(store, "high", priority=900)
    refused = store.commit(low, opening("low"), NOW)
    assert refused.status is CommitStatus.OVER_LIMIT
    assert "the room is reserved for high (priority 900), ahead by priority" in refused.text
    commit(store, high, opening("high"))
    text = store.commit(low, opening("low"), NOW).text
    assert "limits.max_nodes is 2 and 2 are in use" in text


def test_in_one_batch_who_has_its_room_is_no_more_ahead(store: Store) -> None:
    store.market.set_limits(Limits(max_nodes=2))
    low, high = wait(store, "low"), wait(store, "high", priority=900)
    batch = [(high, opening("high")), (low, opening("low"))]
    assert [r.status.value for r in store.commit_many(batch, NOW)] == ["done", "done"]


def test_two_daemons_do_not_both_give_the_last_room(url: str) -> None:
    """Each has a job that waits; again and again it is the one whose turn it is that gets it."""
    stores = [make(url), make(url)]
    for number in range(12):
        stores[0].market.set_limits(Limits(max_nodes=number + 1))
        high = wait(stores[0], f"h{number}", priority=900)
        low = wait(stores[0], f"l{number}")
        start = threading.Barrier(2)
        found: dict[str, CommitStatus] = {}

        def launch(
            store: Store, seen: View, start: threading.Barrier, found: dict[str, CommitStatus]
        ) -> None:
            start.wait()
            found[seen.job.id[0]] = store.commit(seen, launch_of(seen), NOW).status

        pairs = zip(stores, (high, low) if number % 2 else (low, high), strict=True)
        threads = [threading.Thread(target=launch, args=(*pair, start, found)) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {"h": CommitStatus.DONE, "l": CommitStatus.OVER_LIMIT}
        commit(stores[0], low, plan(ChangeJob({"room_asked_us": 0})))
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    ("ends", "now_us"),
    [
        (None, NOW + KEPT_US - 1),
        (None, NOW + KEPT_US),
        ("pause", NOW),
        ("failed", NOW),
    ],
    ids=["it asks again in time", "it asks no more", "it is paused", "it has failed"],
)
def test_a_turn_is_kept_while_its_job_asks(store: Store, ends: str | None, now_us: int) -> None:
    seen = wait(store, "j1")
    if ends == "pause":
        store.jobs.set_desired("j1", Desired.PAUSE, NOW)
    elif ends:
        commit(store, seen, plan(ChangeJob({"outcome": Outcome.FAILED})))
    kept = ends is None and now_us < NOW + KEPT_US
    assert waiting(store, now_us) == (["j1"] if kept else [])


def test_of_equals_the_turn_is_whose_project_used_less_then_whose_user_then_the_older(
    store: Store,
) -> None:
    """All ran a machine at $10 an hour: of `llm` two, of `vision` one, and of that bob none."""
    store.market.set_limits(Limits(max_nodes=9))

    def add(job_id: str, user: str, project: str, at_us: int) -> View:
        made = submission(job_id, spec=spec(job_id, project=project), user=user)
        store.jobs.submit(made, at_us)
        return view(store, job_id)

    for job_id, user, project in (
        ("r1", "alice", "llm"),
        ("r2", "bob", "llm"),
        ("r3", "alice", "vision"),
    ):
        add(job_id, user, project, NOW - HOUR)
        node = new_node(job_id, requested_at_us=NOW - HOUR)
        commit(store, view(store, job_id), opening(job_id, 1, node), NOW - HOUR)
    for at, (job_id, user, project) in enumerate(
        (
            ("llm", "alice", "llm"),
            ("alice", "alice", "vision"),
            ("bob", "bob", "vision"),
            ("bob2", "bob", "vision"),
            ("none", "eve", ""),
        )
    ):
        stand(store, add(job_id, user, project, NOW - 9 + at))
    line = store.market.load(NOW).queue.snapshot
    assert [turn.job_id for turn in line.waiting] == ["none", "bob", "bob2", "alice", "llm"]
    as_of = NOW - NOW % (60 * S)
    one = use_of_late(10 * USD, NOW - HOUR, as_of, as_of)
    assert line.share("llm", "alice") == (2 * one, one)


def test_what_was_used_long_ago_counts_less_than_what_was_used_lately(store: Store) -> None:
    old, new = (submission(n, spec=spec(n, project=n)) for n in ("old", "new"))
    for made, at_us in ((old, NOW - 100 * HOUR), (new, NOW - 2 * HOUR)):
        store.jobs.submit(made, at_us)
        node = new_node(made.job_id, requested_at_us=at_us)
        commit(store, view(store, made.job_id), opening(made.job_id, 1, node), at_us)
        gone = {"leave_reason": LeaveReason.DONE}
        move(store, node.id, NodeState.GONE, at_us + HOUR, **gone)
    wait(store, "w", project="x")
    line = store.market.load(NOW).queue.snapshot
    past, late = (line.share(name, "alice")[0] for name in ("old", "new"))
    assert 0 < past * 16 == pytest.approx(late, rel=0.1)


def test_the_line_knows_who_has_machines_and_which_are_going(store: Store) -> None:
    store.market.set_limits(Limits(max_nodes=3))
    placed(store, "j1", new_node("j1", number=0), new_node("j1", number=1), priority=200)
    assert store.market.load(NOW).queue.snapshot.holding == (), "nobody waits"
    wait(store, "w")
    [mine] = store.market.load(NOW).queue.snapshot.holding
    assert mine == ResourceHolder("j1", "j1", 2, 20 * USD, priority=200)
    move(store, "j1-g1-0", NodeState.TERMINATING)
    [mine] = store.market.load(NOW).queue.snapshot.holding
    assert (mine.leaving_nodes, mine.leaving_microusd_per_h) == (1, 10 * USD)


@pytest.mark.parametrize(
    ("reason", "going"),
    [(LeaveReason.CANCELLED, 1), (LeaveReason.PREEMPTED, 0), (LeaveReason.OUTBID, 0)],
)
def test_one_that_drains_until_its_replacement_is_ready_makes_no_room(
    store: Store, reason: LeaveReason, going: int
) -> None:
    train(store)
    wait(store, "w")
    move(store, "j1-g1-0", NodeState.DRAINING, leave_reason=reason, drained_at_us=NOW)
    [mine] = store.market.load(NOW).queue.snapshot.holding
    assert mine.leaving_nodes == going
    assert not mine.trains_since_us


def train(store: Store, **fields: Any) -> None:
    """j1 with a machine that trains."""
    placed(store, "j1", new_node(), **fields)
    store.nodes.record_launched("j1-g1-0", "i-1", NOW)
    move(store, "j1-g1-0", NodeState.BOOTING, chosen=True)
    move(store, "j1-g1-0", NodeState.RUNNING)


def test_who_trains_whole_by_our_engine_could_give_its_machines(store: Store) -> None:
    from tests.spotd.store.build import said

    train(store)
    wait(store, "w")
    store.journal.record([said(("progress", {"from_step": 0, "to_step": 5}), heard_at_us=NOW)])
    [mine] = store.market.load(NOW).queue.snapshot.holding
    assert mine.trains_since_us == view(store).nodes[0].training.first_step_at_us > 0
    store.journal.record([said(("exited", {"code": 1}), first=2, heard_at_us=NOW)])
    [mine] = store.market.load(NOW).queue.snapshot.holding
    assert not mine.trains_since_us, "it has ended"


def test_a_project_has_no_more_machines_than_it_may(store: Store) -> None:
    store.market.set_limits(Limits(max_nodes=9, projects={"llm": 1}))
    assert store.market.load(NOW).use.limits.projects == {"llm": 1}
    placed(store, "a", project="llm")
    more, other = submit(store, "b", project="llm"), submit(store, "c", project="vision")
    refused = store.commit(more, opening("b"), NOW)
    assert refused.status is CommitStatus.OVER_LIMIT
    assert "projects.llm.max_nodes is 1 and 1 are in use" in refused.text
    commit(store, other, opening("c"))
    move(store, "a-g1-0", NodeState.TERMINATING)
    assert store.commit(more, opening("b"), NOW).status is CommitStatus.OVER_LIMIT
    move(store, "a-g1-0", NodeState.GONE)
    commit(store, more, opening("b"))


def test_plans_of_one_batch_share_a_projects_room(store: Store) -> None:
    store.market.set_limits(Limits(projects={"llm": 1}))
    batch = [(submit(store, name, project="llm"), opening(name)) for name in ("a", "b")]
    statuses = [result.status.value for result in store.commit_many(batch, NOW)]
    assert statuses == ["done", "over_limit"]
    store.market.set_limits(Limits())
    assert store.market.load(NOW).use.limits == Limits()


# --- who is to ask for what was refused


def refuse_one(store: Store) -> None:
    """Somebody was refused a machine: there are offers that go by turns."""
    placed(store, "gone")
    store.nodes.record_launch_refused("gone-g1-0", "CapacityError", "none", Scope.OFFER, NOW)


def asking(store: Store, now_us: int = NOW) -> list[tuple[str, int, bool]]:
    askers = store.market.load(now_us).queue.requests
    return [(one.turn.job_id, one.at_us, bool(one.keys)) for one in askers]


def test_another_daemon_knows_who_is_to_ask_until_that_one_has_its_answer(url: str) -> None:
    """At no moment it is neither ready nor asking: so it needs no lock that others leave it the
    offer."""
    mine, other = make(url), make(url)
    refuse_one(mine)
    seen = submit(mine, "hi", priority=900)
    ready = commit(mine, seen, plan(ChangeJob({"offers_at_us": NOW + S})))
    assert asking(other) == [("hi", NOW + S, False)]
    asks = opening("hi", 1, new_node("hi", requested_at_us=NOW + S))
    asks = replace(asks, changes=(*asks.changes, ChangeJob({"offers_at_us": 0})))
    commit(mine, ready, asks)
    assert asking(other, NOW + S) == [("hi", NOW + S, True)]
    [one] = other.market.load(NOW + S).queue.requests
    assert (one.keys, one.turn.priority) == ({new_node().offer.key}, 900)
    assert asking(other, NOW + S + ANSWERS_US) == [], "nobody knows what became of it"
    mine.nodes.record_launched("hi-g1-0", "i-1", NOW + 2 * S)
    assert asking(other, NOW + 2 * S) == []
    for store in (mine, other):
        store.close()


def test_who_is_paused_or_has_ended_asks_for_nothing(store: Store) -> None:
    refuse_one(store)
    for job_id in ("a", "b", "c"):
        commit(store, submit(store, job_id), plan(ChangeJob({"offers_at_us": NOW})))
    store.jobs.set_desired("a", Desired.PAUSE, NOW)
    commit(store, view(store, "b"), plan(ChangeJob({"outcome": Outcome.FAILED})))
    assert asking(store) == [("c", NOW, False)]


def test_where_nothing_was_refused_nobody_waits_for_anybody(store: Store) -> None:
    commit(store, submit(store), plan(ChangeJob({"offers_at_us": NOW})))
    assert asking(store) == []


def test_who_asks_again_has_its_share_too(store: Store) -> None:
    refuse_one(store)
    placed(store, "ran", new_node("ran", requested_at_us=NOW - HOUR))
    commit(store, submit(store, "w"), plan(ChangeJob({"offers_at_us": NOW})))
    used = {
        one.turn.job_id: one.turn.used_microusd for one in store.market.load(NOW).queue.requests
    }
    assert used["w"] == store.market.load(NOW).queue.requests[0].turn.used_microusd
    assert used["w"][0] > 0
