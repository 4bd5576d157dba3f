"""Drills in decisions: what they do is not a loss and no crash; and when none may strike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import CapacityType, OfferRequest
from spotd.domain.fault_drill import DrillKind
from spotd.domain.job import CheckpointSpec, Desired
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.offers.cooldowns import refusal_of
from spotd.planner.offers.preemptions import interruptions, preemptions_lately
from spotd.planner.rules.drill_admission import cost_microusd, why_not
from spotd.wire import DRILL_SOURCE
from tests.spotd.planner.build import (
    NOW,
    OFFERS,
    by_id,
    head,
    kinds,
    market,
    node,
    notice,
    offer,
    settle,
    spec,
    view,
)

R, G = NodeState.RUNNING, NodeState.GONE
KILL, SIGTERM, AGENT = DrillKind.KILL, DrillKind.SIGTERM, DrillKind.AGENT


def left(struck: Node, **more: Any) -> tuple[Node, View, list[str]]:
    before = view(struck, job={"head": head()}, **more)
    after, plan = settle(before)
    return by_id(after, struck), after, kinds(plan)


def test_a_kill_is_not_charged_and_the_next_machine_comes_at_once() -> None:
    struck = node(R, drill="kill", exit_code=137, exited_at_us=NOW)
    was, after, said = left(struck)
    assert was.departure.leave_reason is LeaveReason.DRILL
    assert (after.job.backoff.failures, after.job.backoff.place_after_us) == (0, 0)
    assert "crashed" not in said
    assert after.job.generation == 2
    assert after.attempts[-1].cause == "drill"
    _, crashed, said = left(replace(struck, drill=""))
    assert crashed.job.backoff.failures == 1, "a crash of its own is"
    assert "crashed" in said


def test_a_machine_that_a_drill_ends_is_not_lost() -> None:
    struck = node(R, drill="machine", gone_at_us=NOW)
    was, after, _ = left(struck)
    assert (was.state, was.departure.leave_reason) == (G, LeaveReason.DRILL)
    assert refusal_of(was) is None, "its offer is as good as it was"
    assert interruptions(after.attempts, [was]) == 0
    lost, _, _ = left(replace(struck, drill=""))
    assert lost.departure.leave_reason is LeaveReason.LOST


def test_a_played_notice_drains_like_a_real_one_and_counts_as_none() -> None:
    played = notice(notice_id="drill-d", source=DRILL_SOURCE)
    was, after, said = left(node(R, drill="notice", notices=(played,)))
    assert (was.state, was.departure.leave_reason) == (NodeState.DRAINING, LeaveReason.DRILL)
    assert after.job.generation == 2, "the replacement comes while it trains on"
    assert "notice" in said
    assert preemptions_lately(after.attempts, NOW) == 0
    assert interruptions(after.attempts, [was]) == 0
    assert refusal_of(was) is None


def test_what_its_cloud_takes_during_a_drill_its_cloud_took() -> None:
    was, _, _ = left(node(R, drill="sigterm", notices=(notice(),)))
    assert was.departure.leave_reason is LeaveReason.PREEMPTED


def test_where_it_may_strike_and_what_it_may_cost() -> None:
    ready = view(node(R), job={"head": head()})
    for kind in DrillKind:
        assert why_not(ready, market(), kind, 900, NOW) == ""
    # 10 USD an hour now, and at most 13 for the next; both for a quarter of an hour.
    alone = market(hedging=False)
    assert cost_microusd(ready, alone, KILL, 900, NOW) == 5_750_000
    # Beside one that is not up after 8 min comes another, for the 7 that are left.
    assert cost_microusd(ready, market(), KILL, 480, NOW) == (10 + 13) * 480 * S // 3600
    late = 13 * 420 * S // 3600
    assert cost_microusd(ready, market(), KILL, 900, NOW) == 5_750_000 + late
    wide = view(node(R), job={"head": head(), "spec": spec(candidates=3)})
    whole = 2_500_000 + 3 * (3_250_000 + late)
    assert cost_microusd(wide, market(), KILL, 900, NOW) == pytest.approx(whole, abs=3)
    assert cost_microusd(wide, alone, KILL, 900, NOW) == 5_750_000
    assert cost_microusd(ready, market(), AGENT, 900, NOW) == 0


ANY = OfferRequest(
    accelerator="H100",
    accelerator_count=8,
    capacity_types=(CapacityType.SPOT, CapacityType.ON_DEMAND),
)
FIXED = offer("aws-1c", 40, capacity_type=CapacityType.ON_DEMAND)


@pytest.mark.parametrize(
    ("why", "job", "nodes", "more"),
    [
        ("paused", {"desired": Desired.PAUSE}, [node(R)], {}),
        ("about to end", {"stop_text": "a limit"}, [node(R)], {}),
        ("several machines", {"spec": spec(num_nodes=2)}, [node(R)], {}),
        ("does not train", {}, [node(NodeState.BOOTING)], {}),
        ("does not train", {}, [node(R, exit_code=1)], {}),
        ("starting or ending", {}, [node(R), node(NodeState.LAUNCHING, generation=2)], {}),
        ("starting or ending", {}, [node(R, generation=2), node(NodeState.TERMINATING)], {}),
        ("preempting its machine", {}, [node(R, notices=(notice(),))], {}),
        ("not been heard", {}, [node(R, heard_at_us=NOW - 60 * S)], {}),
        ("saves nothing", {"spec": spec(checkpoint=CheckpointSpec("file:///c"))}, [node(R)], {}),
        ("no checkpoint yet", {"head": None}, [node(R)], {}),
        ("no checkpoint yet", {"head": head(step=0, manifest="")}, [node(R)], {}),
        ("safe mode", {}, [node(R)], {"safe_until_us": NOW + S}),
        ("a limit", {}, [node(R)], {"blocked": "a limit"}),
        ("makes room", {"yields_since_us": NOW}, [node(R)], {}),
        ("no machine that could take over is available", {}, [node(R)], {"offers": ()}),
        ("max_cost_usd", {"spec": spec(max_cost_microusd=5_000_000)}, [node(R)], {}),
        ("too close", {"spec": spec(deadline_us=NOW + 1000 * S)}, [node(R)], {}),
        (
            "on demand to keep its deadline",
            {"spec": spec(deadline_us=NOW + 9000 * S, alternatives=(ANY,))},
            [node(R, offer=FIXED)],
            {},
        ),
    ],
)
def test_where_it_would_do_harm(
    why: str, job: dict[str, Any], nodes: list[Node], more: dict[str, Any]
) -> None:
    found = view(*nodes, job={"head": head()} | job)
    assert why in why_not(found, market(**({"offers": OFFERS} | more)), SIGTERM, 900, NOW)


def test_its_agent_may_be_killed_before_anything_is_saved() -> None:
    assert why_not(view(node(R)), market(offers=()), AGENT, 900, NOW) == ""
