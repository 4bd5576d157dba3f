"""Time that was booked: a job is placed elsewhere before it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import CapacityType, NoticeKind
from spotd.domain.fast_replace import changed
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.core.next_effect import release_deadline_us
from spotd.planner.core.reservation_end import (
    BOOKED,
    LEAD_S,
    lead_us,
    next_end_us,
    too_short,
    with_ends,
)
from spotd.planner.placement.rank import ENDS, rank
from tests.spotd.planner.build import NOW, by_id, kinds, market, node, offer, settle, spec, view

LEAD_US = int(LEAD_S * S)
PLACES = market((offer("gcp-1a", 12),))


def booked(left_s: float) -> Any:
    end_us = NOW + int(left_s * S)
    return offer("aws-1b", 0, capacity_type=CapacityType.BLOCK, ends_at_us=end_us)


def trains(left_s: float, **fields: Any) -> Node:
    return node(NodeState.RUNNING, offer=booked(left_s), **fields)


def test_a_block_s_end_is_a_preemption_that_is_known_beforehand() -> None:
    before = trains(LEAD_S)
    after, plan = settle(view(before), PLACES)
    left = by_id(after, before)
    assert (left.state, left.departure.leave_reason) == (NodeState.DRAINING, LeaveReason.PREEMPTED)
    assert left.departure.leave_text == "its booked time ends"
    assert left.notices == ()  # nobody gave one, and none is on record
    assert [n.offer.key for n in after.nodes if n.state is NodeState.LAUNCHING] == [
        PLACES.offers[0].key
    ]
    [event] = [one for one in plan.events if one.kind == "notice"]
    assert event.text.startswith("the booked time of node g1 in aws/aws-1b ends at step")
    assert event.data["deadline_us"] == before.offer.ends_at_us
    again, plan = settle(after, PLACES)
    assert by_id(again, before).state is NodeState.DRAINING  # and it is not withdrawn
    assert "withdrawn" not in kinds(plan)


def test_until_then_it_trains_and_is_looked_at_in_time() -> None:
    before = trains(LEAD_S + 1)
    after, _ = settle(view(before), PLACES)
    assert by_id(after, before).state is NodeState.RUNNING
    assert 0 < after.job.wakeup.wake_at_us <= NOW + S
    assert next_end_us(view(before), NOW) == NOW + S
    assert next_end_us(view(trains(LEAD_S)), NOW) == 0
    for state in (NodeState.LAUNCHING, NodeState.BOOTING, NodeState.DRAINING):
        there = replace(trains(LEAD_S + 1), state=state)
        assert next_end_us(view(there), NOW) == NOW + S
    gone = replace(trains(LEAD_S + 1), state=NodeState.GONE)
    assert next_end_us(view(gone), NOW) == 0
    assert next_end_us(view(node(NodeState.RUNNING)), NOW) == 0


def test_its_successor_claims_when_it_has_ended_at_the_latest() -> None:
    old = trains(600, drained_at_us=NOW)
    seen = with_ends(view(old), NOW)
    assert release_deadline_us(seen.nodes[0], seen, NOW) == old.offer.ends_at_us
    [notice] = seen.nodes[0].notices
    assert (notice.notice_id, notice.kind, notice.heard_at_us) == (
        BOOKED,
        NoticeKind.PREEMPT,
        max(old.offer.ends_at_us - LEAD_US, old.requested_at_us),
    )


def test_a_drain_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    late = changed(
        trains(-20),
        state=NodeState.DRAINING,
        leave_reason=LeaveReason.PREEMPTED,
        drained_at_us=NOW - 300 * S,
        left_at_us=NOW - 300 * S,
    )
    after, _ = settle(view(late), PLACES)
    assert by_id(after, late).state is NodeState.TERMINATING


def test_what_boots_there_is_given_back() -> None:
    coming = node(NodeState.BOOTING, offer=booked(LEAD_S - 1))
    after, _ = settle(view(coming), PLACES)
    assert by_id(after, coming).state is NodeState.TERMINATING


def test_a_machine_without_an_end_is_as_it_was() -> None:
    plain = view(node(NodeState.RUNNING))
    assert with_ends(plain, NOW) is plain
    assert lead_us(offer()) == 0
    beside = with_ends(view(trains(600), node(NodeState.RUNNING, rank=1)), NOW)
    assert [len(one.notices) for one in beside.nodes] == [1, 0]


@pytest.mark.parametrize(("left_s", "out"), [(LEAD_S + 900, True), (LEAD_S + 901, False)])
def test_time_that_is_hardly_enough_to_boot_is_not_asked_for(left_s: float, out: bool) -> None:
    asked = spec(boot_timeout_s=900.0)
    wants = replace(asked.resources.alternatives[0], capacity_types=(CapacityType.BLOCK,))
    [row] = rank(changed(asked, alternatives=(wants,)), market((booked(left_s),)), NOW)
    assert (row.code == ENDS) is out is too_short(booked(left_s), 900.0, NOW)
    assert ("its booked time ends in 35 min" in row.excluded) is out
