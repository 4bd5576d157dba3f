"""After many preemptions in an hour a job turns to other clouds and to on-demand, and saves more
often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.base import CapacityType, Scope
from spotd.domain.fast_replace import changed
from spotd.domain.job import Attempt
from spotd.domain.market import Market, Refusal
from spotd.domain.node import Node
from spotd.domain.queue import Limits
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.offers.preemptions import WITHIN_S, preemptions_lately
from tests.spotd.planner.build import JOB, NOW, OFFERS, market, node, offer, settle, spec, view

L, B, R, D, T, G = NodeState
AWS, OTHER_ZONE, GCP = OFFERS[:3]
DEMAND = offer("aws-1c", 40, capacity_type=CapacityType.ON_DEMAND)


def preempted(ago_s: float, generation: int, *, job: str = JOB, zone: str = "aws-1a") -> Refusal:
    key = offer(zone).key
    at_us = NOW - int(ago_s * S)
    return Refusal(key, Scope.OFFER, "Preempted", at_us, f"{job}-g{generation}-c0-r0")


def again(count: int, ago_s: float = 600.0) -> View:
    """A job about to be placed, whose last `count` machines were taken away."""
    left = {"leave_reason": LeaveReason.PREEMPTED, "left_at_us": NOW - S, "chosen": True}
    last = node(G, generation=count, gone_at_us=NOW - S, **left)
    causes = ["first", *["preempted"] * (count - 1)]
    attempts = tuple(
        Attempt(JOB, number, NOW - int(ago_s * S), cause)
        for number, cause in enumerate(causes, start=1)
    )
    return replace(view(last), attempts=attempts)


def where(before: View, offers: Market) -> Node:
    after, plan = settle(before, offers)
    (fresh,) = (n for n in after.nodes if n.state is L)
    texts = [event.text for event in plan.events if event.kind == "requested"]
    weary = "3 preemptions within an hour" in texts[0]
    assert weary is (fresh.offer.provider != "aws" or fresh.offer == DEMAND)
    return fresh


def asked_for(before: View, offers: Market) -> list[str]:
    _, plan = settle(before, offers)
    return [event.text for event in plan.events if event.kind == "requested"]


REFUSALS = tuple(preempted(600.0 * n, n) for n in (1, 2, 3))


def test_the_third_in_an_hour_turns_to_another_cloud() -> None:
    assert where(again(2), market(refusals=REFUSALS[:2])).offer == OTHER_ZONE
    assert where(again(3), market(refusals=REFUSALS)).offer == GCP


def test_what_comes_last_is_named() -> None:
    taken = (*REFUSALS, preempted(300.0, 2, zone="gcp-1a"))
    last = "after 3 preemptions within an hour: spot of aws, gcp last"
    assert asked_for(again(3), market(refusals=taken)) == [
        f"requested {OFFERS[3].key} at $13.00/h ({last})"
    ]


def test_what_was_lost_without_a_notice_was_not_preempted() -> None:
    before = again(3)
    lost = changed(before.nodes[0], leave_reason=LeaveReason.LOST)
    assert asked_for(replace(before, nodes=(lost,)), market(refusals=REFUSALS[:2])) == [
        f"requested {OTHER_ZONE.key} at $11.00/h"
    ]


def test_a_preemption_that_an_attempt_was_opened_for_counts_once() -> None:
    """Its first candidate is on its way, and the second one is asked for."""
    before = again(3)
    coming = node(L, generation=3, offer=GCP)
    old = replace(before.nodes[0], generation=2, id="old")
    job = replace(before.job, spec=spec(candidates=2))
    both = replace(before, nodes=(old, coming), job=job)
    assert asked_for(both, market(refusals=REFUSALS[:2])) == [
        f"requested {OTHER_ZONE.key} at $11.00/h"
    ]


def test_or_to_on_demand_where_there_is_no_other() -> None:
    aws = (AWS, OTHER_ZONE, DEMAND)
    assert where(again(3), market(aws, refusals=REFUSALS)).offer == DEMAND
    assert where(again(2), market(aws, refusals=REFUSALS[:2])).offer == OTHER_ZONE


def test_but_not_above_what_the_job_may_cost() -> None:
    capped = again(3)
    capped = replace(capped, job=replace(capped.job, spec=spec(max_hourly_microusd=20_000_000)))
    after, _ = settle(capped, market((AWS, OTHER_ZONE, DEMAND), refusals=REFUSALS))
    (fresh,) = (n for n in after.nodes if n.state is L)
    assert fresh.offer == OTHER_ZONE, "what is left, rather than nothing"


def test_nor_above_what_the_limits_have_room_for() -> None:
    """To ask for that would be refused at every try, while cheaper ones are to be had."""
    offers = (AWS, OTHER_ZONE, DEMAND)
    limits = Limits(max_microusd_per_h=50_000_000)
    tight = market(offers, refusals=REFUSALS, limits=limits, microusd_per_h=10_000_001)
    after, _ = settle(again(3), tight)
    (fresh,) = (n for n in after.nodes if n.state is L)
    assert fresh.offer == OTHER_ZONE
    assert where(again(3), changed(tight, microusd_per_h=10_000_000)).offer == DEMAND
    full = changed(tight, microusd_per_h=50_000_000)
    assert where(again(3), full).offer == DEMAND, "no room for any: the commit says so"


@pytest.mark.parametrize(
    "refusals",
    [
        tuple(preempted(600.0, n, job="other") for n in (1, 2, 3)),
        tuple(replace(r, code="Lost") for r in REFUSALS),
        tuple(preempted(WITHIN_S, n) for n in (1, 2)),
    ],
)
def test_only_what_took_this_jobs_machines_of_late_is_shunned(
    refusals: tuple[Refusal, ...],
) -> None:
    """Its last machine, which the view shows, was AWS's too: so say who that was."""
    before = again(3)
    elsewhere = replace(before.nodes[0], offer=offer("azure-1a", 13))
    after, _ = settle(replace(before, nodes=(elsewhere,)), market(refusals=refusals))
    (fresh,) = (n for n in after.nodes if n.state is L)
    assert fresh.offer.provider == "aws"


def test_preemptions_of_long_ago_are_forgotten() -> None:
    assert preemptions_lately(again(4, WITHIN_S - 1).attempts, NOW) == 3
    assert preemptions_lately(again(4, WITHIN_S).attempts, NOW) == 0
