"""Tiny builders: a view, a market, nodes in any state, with defaults that hardly ever matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from providers.base import CapacityType, NoticeKind, Offer, OfferRequest
from spotd.domain.fast_replace import changed
from spotd.domain.job import (
    Attempt,
    CheckpointSpec,
    Desired,
    HeadSnapshot,
    Job,
    JobProgram,
    JobResources,
    JobSpec,
)
from spotd.domain.market import Market
from spotd.domain.node import Node, NoticeRecord
from spotd.domain.plan import Plan
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.apply import apply_all
from spotd.planner.planner import decide

NOW = 1_000_000 * S
JOB = "j0"


def spec(**fields: Any) -> JobSpec:
    base = JobSpec(
        name="train",
        program=JobProgram(run="python train.py"),
        resources=JobResources((OfferRequest(accelerator="H100", accelerator_count=8),)),
        checkpoint=CheckpointSpec(store="file:///ckpt", engine="spotd"),
    )
    return changed(base, **fields)


def offer(zone: str = "aws-1a", price: float = 10.0, **fields: Any) -> Offer:
    cloud = zone.split("-", maxsplit=1)[0]
    base = Offer(
        provider=cloud,
        region=zone[:-1],
        zone=zone,
        instance_type="8xh100",
        capacity_type=CapacityType.SPOT,
        price_microusd_per_h=int(price * 1e6),
        list_microusd_per_h=int(price * 4e6),
        accelerator="H100",
        accelerator_count=8,
        cloud=cloud,
    )
    return replace(base, **fields)


OFFERS = (offer("aws-1a", 10), offer("aws-1b", 11), offer("gcp-1a", 12), offer("azure-1a", 13))


def market(offers: tuple[Offer, ...] = OFFERS, **fields: Any) -> Market:
    return changed(Market(offers=offers, deployment="d"), **fields)


def job(**fields: Any) -> Job:
    base = Job(
        id=JOB,
        name="train",
        spec=spec(),
        desired=Desired.RUN,
        version=1,
        created_at_us=NOW - 60 * S,
    )
    return changed(base, **fields)


def node(state: NodeState = NodeState.LAUNCHING, **fields: Any) -> Node:
    """A node with the observations that its state implies."""
    generation = fields.pop("generation", 1)
    rank = fields.pop("rank", 0)
    candidate = fields.pop("candidate", 0)
    seen: dict[str, Any] = {}
    if state is not NodeState.LAUNCHING:
        seen |= {
            "instance_id": f"i-{generation}-{candidate}-{rank}",
            "launched_at_us": NOW - 50 * S,
        }
    if state in (NodeState.RUNNING, NodeState.DRAINING):
        seen |= {
            "chosen": True,
            "host": "127.0.0.1",
            "booted_at_us": NOW - 45 * S,
            "hello_at_us": NOW - 44 * S,
            "started_at_us": NOW - 43 * S,
            "started_claim": "now",
            "ready_at_us": NOW - 42 * S,
            "claimed_at_us": NOW - 41 * S,
            "first_step_at_us": NOW - 40 * S,
            "heard_at_us": NOW - S,
            "last_step": 100,
        }
    base = Node(
        id=f"{JOB}-g{generation}-c{candidate}-r{rank}",
        job_id=JOB,
        generation=generation,
        rank=rank,
        candidate=candidate,
        token=f"t-{generation}-{candidate}-{rank}",
        offer=fields.pop("offer", OFFERS[0]),
        state=state,
        requested_at_us=NOW - 55 * S,
    )
    return changed(base, **(seen | fields))


def hello(**fields: Any) -> Node:
    """A booting node whose agent has spoken."""
    seen = {"host": "127.0.0.1", "booted_at_us": NOW - 2 * S, "hello_at_us": NOW - S}
    return node(NodeState.BOOTING, **({"heard_at_us": NOW - S} | seen | fields))


def notice(seconds: float = 120.0, **fields: Any) -> NoticeRecord:
    base = NoticeRecord("n1", NoticeKind.PREEMPT, NOW - S, NOW + int(seconds * S))
    return replace(base, **fields)


def head(**fields: Any) -> HeadSnapshot:
    base = HeadSnapshot(1, 100, "m", released=False, final=False, seen_at_us=NOW - S)
    return replace(base, **fields)


def view(*nodes: Node, **fields: Any) -> View:
    """A view whose job is at the newest of the nodes' generations."""
    generation = max((n.generation for n in nodes), default=0)
    job_fields = {"generation": generation} | fields.pop("job", {})
    if generation:
        job_fields.setdefault("first_step_at_us", NOW - 40 * S)
    attempts = tuple(Attempt(JOB, g, NOW - 55 * S, "first") for g in range(1, generation + 1))
    base = View(job(**job_fields), attempts, nodes, loaded_at_us=NOW)
    return replace(base, **fields)


def settle(before: View, market_: Market | None = None, now: int = NOW) -> tuple[View, Plan]:
    """Decide once and apply: (the view after the commit, the plan)."""
    plan = decide(before, market_ or market(), now)
    after = apply_all(before, plan.changes)
    return replace(after, job=changed(after.job, wake_at_us=plan.wake_at_us)), plan


def by_id(after: View, ident: Node) -> Node:
    return next(n for n in after.nodes if n.id == ident.id)


def kinds(plan: Plan) -> list[str]:
    return [event.kind for event in plan.events]


def is_moved(before: View, **said: Any) -> bool:
    """Whether a decision moves a machine to another place; it is told where it does."""
    after, plan = settle(before, market(**said))
    moved = [n for n in after.nodes if n.departure.leave_reason is LeaveReason.OUTBID]
    assert bool(moved) is ("moved" in kinds(plan))
    return bool(moved)
