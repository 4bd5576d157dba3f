"""Jobs, nodes and events as the API tells them: times as ISO UTC, money in US dollars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from providers.base import CapacityType, NoticeKind, Offer
from providers.catalogs.egress import egress_prices
from providers.catalogs.storage import GB, storage_prices
from spotd.api.views.job_bill import spend_microusd
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.phase import phase
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.core.expiry import expires_us
from spotd.planner.offers.price_sanity import NO_DISCOUNT
from spotd.store.interface import CheckpointRow, EventRow, SegmentRow, Store

_HOLDING = frozenset(
    {NodeState.LAUNCHING, NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING}
)
_TAKEN = (LeaveReason.PREEMPTED, LeaveReason.LOST)


def iso(at_us: int) -> str | None:
    """UTC to the microsecond; None for "has not happened"."""
    if not at_us:
        return None
    seconds, micros = divmod(at_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).strftime(f"%Y-%m-%dT%H:%M:%S.{micros:06d}Z")


def usd(microusd: int) -> float:
    """Dollars, exact to the micro-dollar."""
    return round(microusd / 1e6, 6)


@dataclass(frozen=True)
class JobFacts:
    """All rows that a job's summary is made of."""

    job: Job
    nodes: Sequence[Node]
    segments: Sequence[SegmentRow]
    checkpoints: Sequence[CheckpointRow]

    @classmethod
    def load(cls, store: Store, job: Job) -> JobFacts:
        return cls(job, store.job_nodes(job.id), store.segments(job.id), store.checkpoints(job.id))


def recoveries(nodes: Sequence[Node]) -> int:
    """How often the job trained again after its machine was taken away or lost; not after a pause
    or a crash."""
    trained = [node for node in nodes if node.first_step_at_us]
    taken = {node.generation for node in trained if node.leave_reason in _TAKEN}
    return sum(old in taken for old in sorted({node.generation for node in trained})[:-1])


def training(job: Job, nodes: Sequence[Node]) -> int:
    """How many of the job's machines train."""
    mine = [node for node in nodes if node.generation == job.generation and node.chosen]
    return sum(node.state in (NodeState.RUNNING, NodeState.DRAINING) for node in mine)


def job_data(facts: JobFacts, now_us: int) -> dict[str, Any]:
    """The summary of a job, for lists."""
    job, nodes = facts.job, facts.nodes
    head_step = job.head.step if job.head else 0
    steps = [node.last_step for node in nodes if node.generation == job.generation]
    return {
        "id": job.id,
        "name": job.name,
        "phase": phase(job, nodes),
        "desired": job.desired.value,
        "outcome": job.outcome.value if job.outcome else None,
        "outcome_text": job.outcome_text or job.stop_text,
        "step": max([head_step, *steps]),
        "generation": job.generation,
        "recoveries": recoveries(nodes),
        "failures": job.failures,
        "num_nodes": job.spec.num_nodes,
        "training_nodes": training(job, nodes),
        "where": [where_data(node) for node in nodes if node.state in _HOLDING],
        "created_at": iso(job.created_at_us),
        "first_step_at": iso(job.first_step_at_us),
        "finished_at": iso(job.finished_at_us),
        "cost_usd": usd(sum(spend_microusd(s, now_us) for s in facts.segments)),
        "last_checkpoint": _checkpoint_data(facts.checkpoints),
    }


def job_detail(facts: JobFacts, now_us: int) -> dict[str, Any]:
    """The summary, the settings that matter while it runs, and every node."""
    spec = facts.job.spec
    return job_data(facts, now_us) | {
        "checkpoint": {
            "store": spec.checkpoint.store,
            "engine": spec.checkpoint.engine,
            "every_steps": spec.checkpoint.every_steps,
            "every_s": spec.checkpoint.every_s,
            "auto": spec.checkpoint.auto,
            "keep": spec.checkpoint.keep,
            "keep_every_steps": spec.checkpoint.keep_every_steps,
            "directory": spec.checkpoint.directory,
        },
        "caches": list(spec.caches),
        "max_cost_usd": usd(spec.max_cost_microusd) or None,
        "max_hourly_usd": usd(spec.max_hourly_microusd) or None,
        "deadline": iso(spec.deadline_us),
        "max_duration_s": spec.max_duration_s or None,
        "after": spec.after or None,
        "max_restarts_on_errors": spec.max_restarts_on_errors,
        "secrets": sorted(spec.secrets),
        "on_node_loss": spec.elastic.on_loss.value if spec.num_nodes > 1 else None,
        "nodes": [node_data(node) for node in facts.nodes],
    }


def _checkpoint_data(rows: Sequence[CheckpointRow]) -> dict[str, Any] | None:
    """The newest; the empty manifest by which a script of its own finishes saves nothing."""
    rows = [row for row in rows if row.bytes]
    if not rows:
        return None
    newest = max(rows, key=lambda row: (row.committed_at_us, row.step))
    return {
        "generation": newest.generation,
        "step": newest.step,
        "at": iso(newest.committed_at_us),
        "bytes": newest.bytes,
        "trigger": newest.trigger,
        "final": newest.final,
    }


def where_data(node: Node) -> dict[str, Any]:
    """Where a node is. `local` machines are processes on the control box, not a cloud's."""
    offer = node.offer
    return {
        "provider": offer.provider,
        "region": offer.region,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "capacity_type": offer.capacity_type.value,
        "local": offer.local,
        "rank": node.rank,
        "state": node.state.value,
        "generation": node.generation,
    }


def margin_s(node: Node) -> float | None:
    """What was left of the notice when its work was saved and given back, in seconds: to the
    earliest deadline in force; below 0 it was late. None without a notice, or a release after it.
    """
    told = [n for n in node.notices if not n.withdrawn and n.kind is not NoticeKind.REBALANCE]
    deadlines = [n.deadline_us for n in told if n.deadline_us is not None]
    if not deadlines or node.released_at_us < min(n.heard_at_us for n in told):
        return None
    return (min(deadlines) - node.released_at_us) / S


def node_data(node: Node) -> dict[str, Any]:
    """One machine of a job, past or present."""
    return where_data(node) | {
        "id": node.id,
        "job_id": node.job_id,
        "chosen": node.chosen,
        "gang_size": node.gang_size or None,
        "moved_at": iso(node.moved_at_us),
        "price_usd_per_h": usd(node.offer.price_microusd_per_h),
        "list_usd_per_h": usd(node.offer.list_microusd_per_h),
        "instance_id": node.instance_id,
        "host": node.host,
        "private_host": node.private_host,
        "port": node.port,
        "step": node.last_step,
        "requested_at": iso(node.requested_at_us),
        "launched_at": iso(node.launched_at_us),
        "booted_at": iso(node.booted_at_us),
        "hello_at": iso(node.hello_at_us),
        "ready_at": iso(node.ready_at_us),
        "claimed_at": iso(node.claimed_at_us),
        "first_step_at": iso(node.first_step_at_us),
        "heard_at": iso(node.heard_at_us),
        "released_at": iso(node.released_at_us),
        "margin_s": margin_s(node),
        "exited_at": iso(node.exited_at_us),
        "gone_at": iso(node.gone_at_us),
        "expires_at": iso(expires_us(node)),
        "wiped_at": iso(node.wiped_at_us),
        "wiped": node.wiped_text,
        "exit_code": node.exit_code,
        "exit_tail": node.exit_tail,
        "leave_reason": node.leave_reason.value if node.leave_reason else None,
        "leave_text": node.leave_text,
        "launch_error": node.launch_error,
        "effect": node.effect.value if node.effect else None,
        "effect_error": node.effect_error,
        "notices": [
            {
                "id": notice.notice_id,
                "kind": notice.kind.value,
                "heard_at": iso(notice.heard_at_us),
                "deadline": iso(notice.deadline_us or 0),
                "withdrawn": notice.withdrawn,
                "source": notice.source,
            }
            for notice in node.notices
        ],
    }


def event_data(row: EventRow, job_name: str) -> dict[str, Any]:
    """One line of the record."""
    return {
        "id": row.id,
        "at": iso(row.at_us),
        "job_id": row.job_id,
        "job": job_name,
        "node_id": row.event.node_id,
        "kind": row.event.kind,
        "severity": row.event.severity.value,
        "text": row.event.text,
        "data": dict(row.event.data),
    }


def offer_data(offer: Offer) -> dict[str, Any]:
    """One thing on sale. `discount` is what it is below the on-demand price, as a share; None where
    that is not known. Spot without one worth the name says so: it is as dear as a machine that
    nobody takes away. `egress_usd_per_gb` is what the first bytes cost that leave its cloud, by a
    dated list, `storage_usd_per_gb_month` what a GB costs that lies in its stores; None where no
    figure is known, and where nothing leaves this box."""
    price, listed = offer.price_microusd_per_h, offer.list_microusd_per_h
    spot = offer.capacity_type is CapacityType.SPOT
    out = None if offer.local else egress_prices().get(offer.cloud)
    kept = None if offer.local else storage_prices().get(offer.cloud)
    return {
        "key": offer.key,
        "provider": offer.provider,
        "region": offer.region,
        "zone": offer.zone,
        "zone_id": offer.zone_id,
        "instance_type": offer.instance_type,
        "capacity_type": offer.capacity_type.value,
        "accelerator": offer.accelerator,
        "accelerator_count": offer.accelerator_count,
        "cpus": offer.cpus,
        "memory_gib": offer.memory_gib,
        "interconnect": offer.interconnect,
        "interconnect_with": offer.joins_with,
        "placement_score": offer.score or None,
        "evicted_pct": offer.evicted_pct or None,
        "reservation": offer.reservation,
        "ends_at": iso(offer.ends_at_us),
        "egress_usd_per_gb": usd(out.first_microusd_per_gb) if out else None,
        "storage_usd_per_gb_month": usd(kept.microusd_per_month(GB)) if kept else None,
        "price_usd_per_h": usd(price),
        "list_usd_per_h": usd(listed),
        "price_source": offer.price_source,
        "discount": round(1 - price / listed, 4) if listed else None,
        "no_discount": spot and bool(listed) and price >= NO_DISCOUNT * listed,
        "local": offer.local,
    }
