"""What became of the machines that were asked for, as each store tells it."""

from __future__ import annotations

import pytest

from providers.base import NoticeKind, Scope
from spotd.domain.node_history import NodeLifetime
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.store import node_history
from spotd.store.interface import Store
from tests.spotd.store.build import HOUR, NOW, move, new_node, offer, placed, said

KEY = offer().key


def test_each_kind_of_end(store: Store) -> None:
    """One was refused, one was warned of and taken away, one lives on and was heard, one nobody
    has answered for yet."""
    for number, job in enumerate(("j1", "j2", "j3", "j4")):
        placed(store, job, new_node(job, requested_at_us=NOW + number))
    store.nodes.record_launch_refused(
        "j1-g1-0", "CapacityError", "none left", Scope.OFFER, NOW + 3 * S
    )
    for job in ("j2", "j3"):
        store.nodes.record_launched(f"{job}-g1-0", f"i-{job}", NOW + 2 * S)
        move(store, f"{job}-g1-0", NodeState.BOOTING)
    told = ("notice", {"notice_id": "n1", "kind": NoticeKind.PREEMPT.value})
    store.journal.record([said(told, node_id="j2-g1-0", heard_at_us=NOW + 60 * S)])
    left = {"leave_reason": LeaveReason.PREEMPTED, "left_at_us": NOW + 90 * S}
    move(store, "j2-g1-0", NodeState.TERMINATING, **left)
    store.nodes.record_heartbeats({"j3-g1-0": NOW + 40 * S})

    found = store.node_history.fleet(0, NOW + HOUR)
    assert (found.since_us, found.read_at_us) == (0, NOW + HOUR)
    assert found.stays == (
        NodeLifetime("j1-g1-0", KEY, NOW, "CapacityError"),
        NodeLifetime(
            node_id="j2-g1-0",
            offer_key=KEY,
            asked_at_us=NOW + 1,
            refused="",
            began_at_us=NOW + 2 * S,
            until_us=NOW + 90 * S,
            left=LeaveReason.PREEMPTED,
        ),
        NodeLifetime("j3-g1-0", KEY, NOW + 2, "", NOW + 2 * S, until_us=NOW + 40 * S),
        NodeLifetime("j4-g1-0", KEY, NOW + 3),
    )
    assert [stay.lost for stay in found.stays] == [False, True, False, False]


def test_a_notice_that_was_taken_back_and_a_recommendation_warn_of_nothing(store: Store) -> None:
    placed(store)
    kinds = (("n1", NoticeKind.REBALANCE, False), ("n2", NoticeKind.PREEMPT, True))
    for number, (ident, kind, withdrawn) in enumerate(kinds):
        fields = {"notice_id": ident, "kind": kind.value}
        entries = [
            ("notice", fields),
            *([("notice_withdrawn", {"notice_id": ident})] if withdrawn else []),
        ]
        store.journal.record([said(*entries, first=1 + 2 * number, heard_at_us=NOW + S)])
    assert [life.notice_us for life in store.node_history.machine_lives(0)] == [0]


def test_what_is_longer_ago_counts_for_as_long_as_it_lives(store: Store) -> None:
    for job in ("j1", "j2"):
        placed(store, job)
        store.nodes.record_launched(f"{job}-g1-0", f"i-{job}", NOW)
        move(store, f"{job}-g1-0", NodeState.BOOTING)
    move(store, "j1-g1-0", NodeState.GONE, leave_reason=LeaveReason.LOST, left_at_us=NOW + S)
    assert [stay.node_id for stay in store.node_history.fleet(NOW - S, NOW).stays] == [
        "j1-g1-0",
        "j2-g1-0",
    ]
    assert [stay.node_id for stay in store.node_history.fleet(NOW + S, NOW).stays] == ["j2-g1-0"]


def test_of_too_many_the_newest_are_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [new_node(number=n, requested_at_us=NOW + n) for n in range(4)]
    placed(store, "j1", *nodes)
    assert len(store.node_history.fleet(0, NOW).stays) == 4
    monkeypatch.setattr("tests.sim.memory.stays.MOST_STAYS", 3)
    monkeypatch.setattr("spotd.store.node_history._STAYS", node_history._STAYS.limit(3))
    assert [stay.node_id for stay in store.node_history.fleet(0, NOW).stays] == [
        n.id for n in nodes[1:]
    ]
