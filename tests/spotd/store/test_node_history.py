"""What became of machines, as each of the three stores tells it."""

from __future__ import annotations

from typing import Any

import pytest

from providers.base import Notice, NoticeKind, Scope
from spotd.domain.events import Event
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.history.interruption_stats import MachineLife
from spotd.store.interface import Store
from tests.spotd.store.build import (
    NOW,
    commit,
    instance,
    move,
    new_node,
    node,
    offer,
    opening,
    placed,
    said,
    view,
)

KEY = new_node().offer.key
STEP = (
    "progress",
    {
        "from_step": 1,
        "to_step": 1,
        "first_at_us": NOW,
        "last_at_us": NOW,
        "tokens": 1,
        "losses": [],
        "busy_s": 1.0,
    },
)
HARDWARE: dict[str, Any] = {"accelerator": "H100", "accelerator_count": 8}


def test_a_machine_that_was_taken_away_with_its_notices(store: Store) -> None:
    placed(store)
    store.nodes.record_launched("j1-g1-0", "i-1", NOW + S)
    move(store, "j1-g1-0", NodeState.BOOTING, NOW + S, chosen=True)
    store.journal.record([said(("hello", {"agent": "1", "wire": 1}), heard_at_us=NOW + 60 * S)])
    asked = (NOW + 90 * S, NOW + 90 * S)
    store.instances.record_listing(KEY.partition("/")[0], [instance(node(store))], *asked)
    told = [
        Notice(ident, kind, NOW + after * S, instance_id="i-1")
        for kind, ident, after in (
            (NoticeKind.REBALANCE, "r", 100),
            (NoticeKind.PREEMPT, "p", 220),
            (NoticeKind.MAINTENANCE, "m", 300),
        )
    ]
    store.instances.record_notices(KEY.partition("/")[0], told, NOW + 100 * S)
    left = {"leave_reason": LeaveReason.PREEMPTED, "left_at_us": NOW + 101 * S}
    move(store, "j1-g1-0", NodeState.TERMINATING, NOW + 101 * S, **left)
    (life,) = store.node_history.machine_lives(0)
    assert life == MachineLife(
        offer_key=KEY,
        cloud="",
        requested_us=NOW,
        launched_us=NOW + S,
        hello_us=NOW + 60 * S,
        ended_us=NOW + 101 * S,
        reason=LeaveReason.PREEMPTED,
        refused="",
        notice_us=NOW + 100 * S,
        deadline_us=NOW + 220 * S,
        heard_us=NOW + 60 * S,
        **HARDWARE,
    )


def test_refused_living_and_too_old_ones(store: Store) -> None:
    nodes = [new_node(number=n, requested_at_us=NOW + n) for n in range(3)]
    placed(store, "j1", *nodes)
    store.nodes.record_launch_refused("j1-g1-0", "CapacityError", "none left", Scope.ZONE, NOW + S)
    store.nodes.record_launched("j1-g1-1", "i-1", NOW + S)
    store.nodes.record_heartbeats({"j1-g1-1": NOW + 50 * S})
    refused, lives, silent = store.node_history.machine_lives(0)
    assert (refused.refused, refused.launched_us, refused.ended_us) == ("CapacityError", 0, 0)
    assert (lives.launched_us, lives.ended_us) == (NOW + S, NOW + 50 * S), "as far as is known"
    assert silent == MachineLife(KEY, "", NOW + 2, **HARDWARE)
    assert [one.requested_us - NOW for one in store.node_history.machine_lives(NOW + 2)] == [1, 2]
    assert store.node_history.machine_lives(NOW + 60 * S) == []


def test_who_was_to_go_on_with_a_job_that_had_trained(store: Store) -> None:
    """Of a gang the first rank alone."""
    claimed = ("claimed", {"step": 0, "manifest": ""})
    placed(store)
    store.journal.record([said(claimed, STEP, heard_at_us=NOW + 10 * S)])
    (began,) = store.node_history.machine_lives(0)
    assert (began.resumed_us, began.trained_us) == (0, NOW + 10 * S)
    gang = [new_node(generation=2, number=rank, rank=rank) for rank in (0, 1)]
    commit(store, view(store), opening("j1", 2, *gang))
    for number, at_s in ((1, 30), (0, 40)):
        batch = {"node_id": f"j1-g2-{number}", "generation": 2, "heard_at_us": NOW + at_s * S}
        store.journal.record([said(claimed, **batch)])
    told = [(one.resumed_us, one.trained_us) for one in store.node_history.machine_lives(0)]
    assert told == [(0, NOW + 10 * S), (NOW + 40 * S, 0), (0, 0)]
    trains = said(STEP, node_id="j1-g2-0", first=2, generation=2, heard_at_us=NOW + 50 * S)
    store.journal.record([trains])
    again = store.node_history.machine_lives(0)[1]
    assert (again.trained_us, again.anew, again.resume) == (NOW + 50 * S, True, False)


@pytest.mark.parametrize(("step", "anew"), [(0, True), (7, False)])
def test_to_begin_anew_is_no_resume(store: Store, step: int, anew: bool) -> None:
    placed(store)
    first = ("claimed", {"step": 0, "manifest": ""})
    store.journal.record([said(first, STEP, heard_at_us=NOW + 10 * S)])
    commit(store, view(store), opening("j1", 2, new_node(generation=2, number=0)))
    batch = {"node_id": "j1-g2-0", "generation": 2, "heard_at_us": NOW + 40 * S}
    store.journal.record([said(("claimed", {"step": step, "manifest": ""}), STEP, **batch)])
    assert [one.resume for one in store.node_history.machine_lives(0)] == [None, not anew]


def test_events_of_the_deployment_itself(store: Store) -> None:
    placed(store)
    for number, kind in enumerate(("a", "b", "a")):
        store.events.add("", Event(kind, str(number), key="k"), NOW + number)
    store.events.add("j1", Event("a", "a job's"), NOW)
    assert [row.event.text for row in store.events.of_deployment(["a"], 0)] == ["0", "2"]
    assert [row.event.text for row in store.events.of_deployment(["a", "b"], NOW + 1)] == ["1", "2"]


def test_the_price_in_force_is_never_too_old(store: Store) -> None:
    for at_us, price in ((NOW, 10), (NOW + 1, 11), (NOW + 2, 12), (NOW + 9, 13)):
        store.market.record_offers("aws", [offer(price=price)], at_us)
    store.market.record_offers("gcp", [offer("gcp-1a", 5)], NOW)
    store.events.prune(NOW + 5)

    def left() -> list[int]:
        keys = [offer().key, offer("gcp-1a").key]
        return [
            point.price_microusd_per_h // 10**6 for point in store.market.price_history(keys, 0)
        ]

    assert left() == [12, 13, 5]
    store.events.prune(NOW + 9)
    assert left() == [13, 5]


def test_a_notice_that_was_withdrawn_is_none(store: Store) -> None:
    placed(store)
    store.nodes.record_launched("j1-g1-0", "i-1", NOW + S)
    given = {"notice_id": "p", "kind": "preempt", "remaining_s": 9.0}
    store.journal.record([said(("notice", given))])
    assert store.node_history.machine_lives(0)[0].notice_us
    store.journal.record([said(("notice_withdrawn", {"notice_id": "p"}), first=2)])
    assert not store.node_history.machine_lives(0)[0].notice_us
