"""A machine that goes on in another attempt: one machine, one token, one bill, two rows."""

from __future__ import annotations

import pytest

from providers.base import Notice, NoticeKind
from spotd.domain.fast_replace import changed
from spotd.domain.job import Attempt
from spotd.domain.node import Node
from spotd.domain.plan import ChangeJob, ChangeNode, MoveNode, OpenAttempt, Plan
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.rules.gang_resize import KNOWN_OF_MACHINES
from spotd.store.commit import CommitStatus
from spotd.store.interface import Store
from spotd.wire.parts import values_of
from tests.spotd.store.build import (
    HOUR,
    NOW,
    commit,
    instance,
    move,
    new_node,
    node,
    offer,
    placed,
    plan,
    said,
    view,
)

OLD, LOST, NEW = "j1-g1-0", "j1-g1-1", "j1-g2-0"
AT = NOW + HOUR


def trains(store: Store) -> View:
    """Two machines that train; the second one is lost at AT."""
    placed(store, "j1", new_node(number=0), new_node(number=1, rank=1))
    for number, name in enumerate((OLD, LOST)):
        store.nodes.record_launched(name, f"i-{number}", NOW)
        move(store, name, NodeState.BOOTING, chosen=True)
        move(store, name, NodeState.RUNNING)
    both = [instance(node(store, OLD), "i-0"), instance(node(store, LOST), "i-1")]
    store.instances.record_listing("aws", both, NOW + S, NOW + S)
    store.journal.record([said(("hello", {}), node_id=OLD)])
    store.nodes.record_renewed(OLD, NOW + 99 * HOUR)
    left = {"leave_reason": LeaveReason.LOST, "left_at_us": AT}
    return move(store, LOST, NodeState.TERMINATING, AT, **left)


def moved(old: Node, ident: str = NEW, generation: int = 2, rank: int = 0) -> Node:
    kept = values_of(old, KNOWN_OF_MACHINES)
    birth = new_node("j1", generation, token=old.token, id=ident, rank=rank, offer=old.offer)
    state = {"state": NodeState.BOOTING, "chosen": True, "gang_size": 1}
    times = {"moved_at_us": AT, "launched_at_us": AT, "requested_at_us": old.requested_at_us}
    return changed(birth, **state, **times, **kept, notices=old.notices)  # type: ignore[arg-type]


def handover(old: Node, generation: int = 2) -> Plan:
    return plan(
        OpenAttempt(Attempt("j1", generation, AT, "lost")),
        ChangeJob({"generation": generation}),
        MoveNode(old.id, moved(old, f"j1-g{generation}-0", generation)),
    )


def test_the_new_row_has_the_machine_and_the_old_one_is_over(store: Store) -> None:
    before = trains(store)
    old = node(store, OLD)
    after = commit(store, before, handover(old), AT)
    assert after == view(store, now_us=AT)
    new, over = node(store, NEW), node(store, OLD)
    assert (new.token, new.instance_id, new.address.host, new.address.port) == (
        old.token,
        "i-0",
        "127.0.0.1",
        2222,
    )
    assert (new.state, new.chosen, new.gang_size, new.moved_at_us) == (NodeState.BOOTING, 1, 1, AT)
    assert (new.startup.hello_at_us, new.agent.journal_seq, new.startup.started_at_us) == (0, 0, 0)
    assert new.lease.renewed_until_us == NOW + 99 * HOUR
    assert (over.state, over.departure.leave_reason) == (NodeState.GONE, LeaveReason.DONE)
    assert {n.id for n in store.nodes.active()} == {NEW, LOST}


def test_no_hour_is_counted_twice_and_none_is_left_out(store: Store) -> None:
    before = trains(store)
    commit(store, before, handover(node(store, OLD)), AT)
    rows = [row for row in store.ledger.segments("j1") if row.node_id in (OLD, NEW)]
    assert [(row.node_id, row.start_us, row.end_us) for row in rows] == [
        (OLD, NOW, AT),
        (NEW, AT, 0),
    ]
    both = view(store, now_us=AT + HOUR).spent_microusd
    assert both == 4 * 10_000_000, "two machines for two hours"
    store.market.record_offers("aws", [offer(price=20)], AT + HOUR)
    assert view(store, now_us=AT + 2 * HOUR).spent_microusd == both + 2 * 20_000_000
    again = node(store, NEW)
    commit(store, view(store), handover(again, 3), AT + HOUR)
    assert node(store, "j1-g3-0").offer.price_microusd_per_h == 20_000_000


def test_the_cloud_and_its_listing_know_the_new_row_alone(store: Store) -> None:
    before = trains(store)
    old = node(store, OLD)
    commit(store, before, handover(old), AT)
    there = [instance(old, "i-0"), instance(node(store, LOST), "i-1")]
    late = AT + 700 * S
    assert store.instances.record_listing("aws", there, late, late) == [], "it belongs to somebody"
    assert node(store, NEW).machine.seen_at_us == late
    assert node(store, OLD).machine.seen_at_us < late
    assert set(store.orphans.known("aws", there[:1])) == {"i-0"}
    assert store.orphans.known("aws", there[:1])["i-0"].gone_us == 0
    warned = Notice("n1", NoticeKind.PREEMPT, None, instance_id="i-0")
    store.instances.record_notices("aws", [warned], late)
    assert node(store, NEW).notices
    assert not node(store, OLD).notices
    gone = late + 700 * S
    store.instances.record_listing("aws", [], gone, gone)
    store.instances.record_listing("aws", [], gone + 700 * S, gone + 700 * S)
    assert node(store, OLD).machine.gone_at_us == 0, "that row has been over for long"


def test_what_was_said_of_the_machine_is_said_of_it_still(store: Store) -> None:
    before = trains(store)
    hint = Notice("hint", NoticeKind.REBALANCE, None, instance_id="i-0", source="queue")
    old = node(store, OLD)
    store.instances.record_notices("aws", [hint], AT - S)  # after the view was loaded
    commit(store, before, handover(old), AT)
    assert [n.notice_id for n in node(store, NEW).notices] == ["hint"]


def test_late_words_about_the_old_row_do_not_touch_the_new_one(store: Store) -> None:
    before = trains(store)
    commit(store, before, handover(node(store, OLD)), AT)
    fresh = node(store, NEW)
    store.journal.record([said(("exited", {"code": 1}), node_id=OLD, first=2)])
    store.nodes.record_link(OLD, AT + S)
    assert node(store, NEW) == fresh
    assert node(store, OLD).training.exit_code == 1
    assert NEW not in store.nodes.booted()
    store.nodes.record_booted(NEW, AT + S)
    assert NEW in store.nodes.booted()


def test_ranks_close_up_in_one_commit(store: Store) -> None:
    """The one of rank 1 becomes rank 0 while the old rank 0 is still on its way out."""
    before = trains(store)
    old = node(store, OLD)
    left = {"state": NodeState.DRAINING}
    before = commit(store, before, plan(ChangeNode(OLD, left)), AT)
    placed_again = plan(
        OpenAttempt(Attempt("j1", 2, AT, "lost")),
        ChangeJob({"generation": 2}),
        MoveNode(OLD, moved(old)),
    )
    commit(store, before, placed_again, AT)
    twice = plan(MoveNode(LOST, moved(node(store, LOST), "j1-g2-1")))
    result = store.commit(view(store), twice, AT)
    assert result.status is CommitStatus.REJECTED, "two chosen nodes of one rank"
    assert node(store, LOST).state is NodeState.TERMINATING


def test_a_row_that_is_over_goes_on_nowhere(store: Store) -> None:
    before = trains(store)
    commit(store, before, handover(node(store, OLD)), AT)
    over = node(store, OLD)
    with pytest.raises(ValueError, match="in this view"):
        store.commit(view(store), plan(MoveNode(OLD, moved(over, "x"))), AT)


def test_its_stay_goes_on_and_tells_nothing_of_coming_up(store: Store) -> None:
    before = trains(store)
    commit(store, before, handover(node(store, OLD)), AT)
    store.journal.record([said(("hello", {}), node_id=NEW, generation=2, heard_at_us=AT + S)])
    stays = {stay.node_id: stay for stay in store.node_history.fleet(0, AT + HOUR).stays}
    old, new = stays[OLD], stays[NEW]
    assert (old.until_us, old.lost) == (AT, False)
    assert (new.asked_at_us, new.began_at_us, new.trained_at_us) == (AT, AT, 0)
    assert stays[LOST].lost


def test_a_machine_lives_once(store: Store) -> None:
    before = trains(store)
    commit(store, before, handover(node(store, OLD)), AT)
    store.nodes.record_heartbeats({NEW: AT + HOUR})
    (life,) = store.node_history.observed_lifetimes(0)
    assert life.time_us == 3 * HOUR, "two hours of the one, and one of the other"
    assert life.losses == 1
