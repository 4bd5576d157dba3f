"""What takes too long is told: when it is overdue, again later, and never with every look."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import Scope
from spotd.decide.overdue import STAYS_AGAIN_S, STAYS_S, WAITS_AGAIN_S, WAITS_S
from spotd.model import Desired, Event, Limits, Market, Refusal, S, View
from spotd.plan import Plan
from spotd.states import NodeState
from tests.spotd.decide.build import NOW, OFFERS, market, node, offer, settle, spec, view


def told(plan: Plan, kind: str) -> list[Event]:
    return [event for event in plan.events if event.kind == kind]


def live(before: View, kind: str, end_s: float, market_: Market | None = None) -> list[int]:
    """Decide whenever the plan says so, and each 20 s; the seconds at which `kind` was told."""
    found, now_s = [], 0.0
    while now_s < end_s:
        before, plan = settle(before, market_, NOW + int(now_s * S))
        again, twice = settle(before, market_, NOW + int(now_s * S))
        assert not told(twice, kind), "once"
        assert again.job.waiting_told_us == before.job.waiting_told_us
        found += [int(now_s)] * len(told(plan, kind))
        wake_s = (plan.wake_at_us - NOW) / S if plan.wake_at_us else end_s
        now_s = min(max(wake_s, now_s + 1e-6), now_s + 20)
    return found


def refused(code: str) -> Market:
    """Every offer is out for it, for ever."""
    refusals = (Refusal(OFFERS[0].key, Scope.PROVIDER, code, NOW + 10**9 * S),)
    return market(offers=OFFERS[:2], refusals=refusals)


def test_a_job_that_waits_for_long_is_told_again_and_again_but_not_at_every_look() -> None:
    hours = live(view(), "waits", 8 * 3600, refused("QuotaError"))
    assert hours == [WAITS_S, WAITS_S + WAITS_AGAIN_S]


@pytest.mark.parametrize(
    ("market_", "tries"),
    [
        (refused("QuotaError"), "ask that cloud for more quota"),
        (refused("CapacityError"), "allow more zones"),
        (market(disabled={"aws": "key", "gcp": "key", "azure": "key"}), "`spotctl doctor`"),
        (market(offers=(offer(price=99.0),)), "raise max_hourly_cost"),
        (market(offers=()), "ask for less"),
        (market(blocked="3 of 3 nodes are in use"), "raise the limits"),
    ],
)
def test_what_to_try_is_named(market_: Market, tries: str) -> None:
    job = {"spec": spec(max_hourly_microusd=50_000_000), "waiting_since_us": NOW - 7200 * S}
    _, plan = settle(view(job=job), market_)
    (event,) = told(plan, "waits")
    assert event.alert
    assert "waited 2.0 h" in event.text
    assert tries in event.text


def test_who_asks_in_vain_waits_all_the_time() -> None:
    """Between two refusals it has a machine for a moment, as far as it knows."""
    before, _ = settle(view(job={"waiting_since_us": NOW - 1000 * S}))
    assert before.nodes, "asked for"
    assert before.job.waiting_since_us == NOW - 1000 * S


@pytest.mark.parametrize("fields", [{"desired": Desired.PAUSE}, {"stop_text": "max_cost"}])
def test_a_wait_ends_with_the_wish(fields: dict[str, Any]) -> None:
    job = {"waiting_since_us": NOW - 9 * S, "waiting_told_us": NOW - S} | fields
    after, _ = settle(view(job=job), refused("QuotaError"))
    assert (after.job.waiting_since_us, after.job.waiting_told_us) == (0, 0)


def test_a_wait_ends_with_a_machine() -> None:
    launched = node(NodeState.LAUNCHING, instance_id="i-1", launched_at_us=NOW)
    after, _ = settle(view(launched, job={"waiting_since_us": NOW - 9 * S}))
    assert after.job.waiting_since_us == 0


def test_a_machine_that_stays_is_told_with_what_it_costs() -> None:
    left = node(
        NodeState.TERMINATING,
        left_at_us=NOW - 7200 * S,  # it trained on for long after its notice
        terminating_at_us=NOW,
        terminated_at_us=NOW,
        cloud_state="stopping",
    )
    before = view(left, job={"desired": Desired.PAUSE})
    seconds = live(before, "stays", STAYS_S + STAYS_AGAIN_S + 900)
    first, second = seconds
    assert 0 <= first - STAYS_S < 60
    assert 0 <= second - first - STAYS_AGAIN_S < 60
    late = replace(left, effect_armed_at_us=NOW)
    _, plan = settle(replace(before, nodes=(late,)), now=NOW + int(STAYS_S * S))
    (event,) = told(plan, "stays")
    assert event.alert
    assert "aws still has i-1-0-0: it counts as $10.00/h" in event.text


def test_an_unknown_launch_that_stays_unknown_is_told() -> None:
    lost = node(NodeState.LAUNCHING, requested_at_us=NOW)
    before, _ = settle(view(lost, job={"desired": Desired.CANCEL}))
    _, plan = settle(before, now=NOW + int(STAYS_S * S))
    (event,) = told(plan, "stays")
    assert "whether aws made a machine of t-1-0-0 is not known" in event.text


def test_who_waits_behind_a_limit_wakes_for_it_as_before() -> None:
    _, plan = settle(view(), market(limits=Limits(1), blocked="1 of 1 nodes are in use"))
    assert plan.wake_at_us == NOW + 15 * S
