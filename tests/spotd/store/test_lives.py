"""What became of machines, as each of the three stores tells it."""

from __future__ import annotations

from providers.base import Notice, NoticeKind, Scope
from spotd.history.lives import MachineLife
from spotd.model import LeaveReason, S
from spotd.states import NodeState
from spotd.store.base import Store
from tests.spotd.store.build import NOW, instance, move, new_node, node, placed, said

KEY = new_node().offer.key


def test_a_machine_that_was_taken_away_with_its_notices(store: Store) -> None:
    placed(store)
    store.record_launched("j1-g1-0", "i-1", NOW + S)
    move(store, "j1-g1-0", NodeState.BOOTING, NOW + S, chosen=True)
    store.record_journal([said(("hello", {"agent": "1", "wire": 1}), heard_at_us=NOW + 60 * S)])
    asked = (NOW + 90 * S, NOW + 90 * S)
    store.record_listing(KEY.partition("/")[0], [instance(node(store))], *asked)
    told = [
        Notice(ident, kind, NOW + after * S, instance_id="i-1")
        for kind, ident, after in (
            (NoticeKind.REBALANCE, "r", 100),
            (NoticeKind.PREEMPT, "p", 220),
            (NoticeKind.MAINTENANCE, "m", 300),
        )
    ]
    store.record_cloud_notices(KEY.partition("/")[0], told, NOW + 100 * S)
    left = {"leave_reason": LeaveReason.PREEMPTED, "left_at_us": NOW + 101 * S}
    move(store, "j1-g1-0", NodeState.TERMINATING, NOW + 101 * S, **left)
    (life,) = store.machine_lives(0)
    assert life == MachineLife(
        *(KEY, "", NOW, NOW + S, NOW + 60 * S, NOW + 101 * S, LeaveReason.PREEMPTED),
        *("", NOW + 100 * S, NOW + 220 * S),
        heard_us=NOW + 60 * S,
    )


def test_refused_living_and_too_old_ones(store: Store) -> None:
    nodes = [new_node(number=n, requested_at_us=NOW + n) for n in range(3)]
    placed(store, "j1", *nodes)
    store.record_launch_refused("j1-g1-0", "CapacityError", "none left", Scope.ZONE, NOW + S)
    store.record_launched("j1-g1-1", "i-1", NOW + S)
    store.record_heard({"j1-g1-1": NOW + 50 * S})
    refused, lives, silent = store.machine_lives(0)
    assert (refused.refused, refused.launched_us, refused.ended_us) == ("CapacityError", 0, 0)
    assert (lives.launched_us, lives.ended_us) == (NOW + S, NOW + 50 * S), "as far as is known"
    assert silent == MachineLife(KEY, "", NOW + 2)
    assert [one.requested_us - NOW for one in store.machine_lives(NOW + 2)] == [1, 2]
    assert store.machine_lives(NOW + 60 * S) == []


def test_a_notice_that_was_withdrawn_is_none(store: Store) -> None:
    placed(store)
    store.record_launched("j1-g1-0", "i-1", NOW + S)
    given = {"notice_id": "p", "kind": "preempt", "remaining_s": 9.0}
    store.record_journal([said(("notice", given))])
    assert store.machine_lives(0)[0].notice_us
    store.record_journal([said(("notice_withdrawn", {"notice_id": "p"}), first=2)])
    assert not store.machine_lives(0)[0].notice_us
