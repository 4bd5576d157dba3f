"""Over how many places a job that permits several spreads what it asks for, and what it never
mixes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from providers.base import CapacityType, Offer, OfferRequest, Scope
from spotd.domain.fast_replace import changed
from spotd.domain.job import JobSpec
from spotd.domain.market import Refusal
from spotd.domain.on_node_loss import Elastic, OnNodeLoss
from spotd.domain.preferences import Preferences
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.placement.explain_blocked import by_reason
from spotd.planner.placement.no_discount import without_flat
from spotd.planner.placement.rank import SharedRanking, rank
from spotd.planner.rules.spot_policy_rule import compared, of_spec
from tests.spotd.planner.build import NOW, hello, market, node, offer, settle, spec, view

ON_DEMAND = CapacityType.ON_DEMAND
KINDS = ("H100", "A100-80GB", "L40S")
EITHER = tuple(OfferRequest(accelerator=name, accelerator_count=8) for name in KINDS)


def pool(zone: str, kind: str, price: float, **fields: Any) -> Offer:
    return offer(zone, price, instance_type=f"8x{kind}", accelerator=kind, **fields)


# Four pools in two zones of one region, a fifth elsewhere; the two cheapest are of one zone.
POOLS = (
    pool("aws-1a", "H100", 10.0, region="aws-1"),
    pool("aws-1a", "A100-80GB", 10.1, region="aws-1"),
    pool("aws-1b", "H100", 10.2, region="aws-1"),
    pool("aws-1b", "A100-80GB", 10.3, region="aws-1"),
    pool("gcp-1a", "L40S", 10.4),
)


def a_job(**fields: Any) -> JobSpec:
    return spec(**({"alternatives": EITHER} | fields))


def zones_and_kinds(offers: list[Offer]) -> tuple[set[str], set[str]]:
    return {one.zone for one in offers}, {one.instance_type for one in offers}


@pytest.mark.req("PLC-01")
def test_what_is_asked_side_by_side_is_of_several_zones_and_types() -> None:
    after, _ = settle(view(job={"spec": a_job(candidates=4)}), market(POOLS))
    asked = [one.offer for one in after.nodes]
    assert len({one.key for one in asked}) == 4
    zones, kinds = zones_and_kinds(asked)
    assert len(zones) >= 2
    assert len(kinds) >= 2


@pytest.mark.req("PLC-01")
@pytest.mark.parametrize("steered", [False, True])
def test_one_after_the_other_every_pool_is_asked(*, steered: bool) -> None:
    """Each has no room: none is asked twice while another has not been asked."""
    of = a_job(preferences=Preferences(work_s=36_000.0)) if steered else a_job()
    assert {row.offer.key for row in rank(of, market(POOLS), NOW)} == {one.key for one in POOLS}
    asked: list[Offer] = []
    refused: list[Refusal] = []
    seen: View = view(job={"spec": of})
    for _ in POOLS:
        sold = market(POOLS, refusals=tuple(refused))
        after, _ = settle(seen, sold)
        last = after.nodes[-1]
        asked.append(last.offer)
        refused.append(Refusal(last.offer.key, Scope.OFFER, "CapacityError", NOW, last.id))
        gone = node(
            NodeState.GONE,
            offer=last.offer,
            candidate=last.candidate,
            leave_reason=LeaveReason.CAPACITY,
        )
        seen = replace(after, nodes=(*after.nodes[:-1], replace(gone, id=last.id)))
    assert [one.key for one in asked] == list(dict.fromkeys(one.key for one in asked))
    zones, kinds = zones_and_kinds(asked)
    assert zones == {"aws-1a", "aws-1b", "gcp-1a"}
    assert kinds == {"8xH100", "8xA100-80GB", "8xL40S"}


@pytest.mark.req("PLC-03")
def test_kinds_of_gpus_are_alternatives_and_never_in_one_gang() -> None:
    """Every gang that is asked for is of one kind; ranks of two gangs are not a gang."""
    of = a_job(num_nodes=2, candidates=3)
    after, _ = settle(view(job={"spec": of}), market(POOLS))
    gangs = {number: [n for n in after.nodes if n.candidate == number] for number in range(3)}
    for gang in gangs.values():
        assert [n.rank for n in gang] == [0, 1]
        assert len({(n.offer.accelerator, n.offer.key) for n in gang}) == 1
    assert len({n.offer.accelerator for n in after.nodes}) > 1
    ready = [
        hello(rank=number, candidate=number, offer=POOLS[number]) for number in range(2)
    ]  # rank 0 with H100s, rank 1 of the other gang with A100s
    late = [
        node(NodeState.BOOTING, rank=1 - n.rank, candidate=n.candidate, offer=n.offer)
        for n in ready
    ]
    after, _ = settle(view(*ready, *late, job={"spec": of}), market(POOLS))
    assert not any(n.chosen for n in after.nodes)
    whole = changed(late[1], hello_at_us=NOW - S, heard_at_us=NOW - S)
    after, _ = settle(view(*ready, late[0], whole, job={"spec": of}), market(POOLS))
    assert {n.offer.accelerator for n in after.nodes if n.chosen} == {"A100-80GB"}


@pytest.mark.req("PLC-03")
def test_whoever_joins_a_gang_later_is_of_its_kind() -> None:
    of = a_job(num_nodes=2, elastic=Elastic(OnNodeLoss.SHRINK))
    begun = {"gang_size": 1, "moved_at_us": NOW - 100 * S, "chosen": True, "generation": 2}
    left = node(NodeState.RUNNING, offer=POOLS[3], **begun)
    near = (POOLS[0], POOLS[1], POOLS[2])  # the cheapest is of another kind
    after, _ = settle(view(left, job={"spec": of}), market(near))
    asked = [n for n in after.nodes if n.id != left.id]
    assert [n.offer for n in asked] == [POOLS[1]]
    after, _ = settle(view(left, job={"spec": of}), market((POOLS[0], POOLS[2])))
    assert len(after.nodes) == 1, "none rather than one of another kind"


SHARES = [0.95, 0.97, 1.0, 1.02]
FULL = offer("aws-1a", 40.0, capacity_type=ON_DEMAND)
BOTH = tuple(
    replace(one, capacity_types=(CapacityType.SPOT, ON_DEMAND))
    for one in spec().resources.alternatives
)


@pytest.mark.req("PLC-04")
@pytest.mark.parametrize(("share", "steered"), list(product(SHARES, [False, True])))
def test_spot_as_dear_as_on_demand_is_passed_over(share: float, *, steered: bool) -> None:
    """In seven of 27 pools of p5 it was (2026). Whoever permits both gets the machine that nobody
    takes away; where spot has a discount, and where there is no other, spot."""
    flat = offer("aws-1a", 40.0 * share)
    of = spec(
        alternatives=BOTH, preferences=Preferences(work_s=36_000.0) if steered else Preferences()
    )
    cheap = offer("aws-1b", 15.0)
    for sold, first in (((flat, FULL), FULL), ((flat, FULL, cheap), cheap), ((flat,), flat)):
        after, _ = settle(view(job={"spec": of}), market(sold))
        assert after.nodes[0].offer == first
    full = Refusal(FULL.key, Scope.OFFER, "CapacityError", NOW - S)
    after, _ = settle(view(job={"spec": of}), market((flat, FULL), refusals=(full,)))
    assert after.nodes[0].offer == flat, "better than no machine"
    told = {
        row.offer.key: row for row in compared(of_spec(of, NOW), market((flat, FULL)), NOW).rows
    }
    assert told[flat.key].excluded == (
        f"no discount: {share:.0%} of the on-demand price, and on-demand is available"
    )
    other = replace(told[FULL.key], excluded="cooling", code="CapacityError")
    assert "1 as expensive as on demand" in by_reason([told[flat.key], other])
    alone = spec(preferences=of.preferences)  # permits spot and nothing else
    after, _ = settle(view(job={"spec": alone}), market((flat, FULL, cheap)))
    assert after.nodes[0].offer == cheap


@pytest.mark.req("PLC-04")
@pytest.mark.parametrize("hours", [12, 20, 60])
@pytest.mark.parametrize("share", SHARES)
def test_nor_is_it_asked_for_by_the_policy_of_a_deadline(share: float, hours: int) -> None:
    flat = offer("aws-1a", 40.0 * share)
    deadline_us = NOW + hours * 3600 * S
    of = spec(alternatives=BOTH, preferences=Preferences(work_s=36_000.0), deadline_us=deadline_us)
    after, _ = settle(view(job={"spec": of}), market((flat, FULL)))
    assert all(n.offer == FULL for n in after.nodes)


@pytest.mark.req("PLC-04")
@pytest.mark.parametrize("steered", [False, True])
def test_below_that_spot_is_spot(*, steered: bool) -> None:
    spot = offer("aws-1a", 40.0 * 0.949)
    of = spec(
        alternatives=BOTH, preferences=Preferences(work_s=36_000.0) if steered else Preferences()
    )
    rows = compared(of_spec(of, NOW), market((spot, FULL)), NOW).rows
    assert not any(row.excluded for row in rows)
    other = offer("aws-1b", 40.0 * 0.97)  # of another zone, where nothing is sold on demand
    rows = compared(of_spec(of, NOW), market((other, FULL)), NOW).rows
    assert not any(row.excluded for row in rows)


def test_for_jobs_that_ask_for_the_same_it_is_looked_at_once() -> None:
    of = spec(alternatives=BOTH)
    sold = market((offer("aws-1a", 40.0), FULL))
    shared = rank(of, sold, NOW)
    first = without_flat(of, shared)
    assert isinstance(first, SharedRanking), "what follows from it is kept as well"
    assert without_flat(of, shared) is first
    assert not isinstance(without_flat(of, list(shared)), SharedRanking)
