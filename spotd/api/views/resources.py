"""Jobs, nodes, offers and events as JSON: times as ISO 8601 UTC, money in US dollars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from providers.base import CapacityType, Offer
from providers.catalogs.egress import egress_prices
from providers.catalogs.storage import GB, storage_prices
from spotd.api.views.job_bill import spend_microusd
from spotd.api.views.lost_work import count_recoveries, losses
from spotd.domain.job import Desired, Job
from spotd.domain.node import Node
from spotd.domain.phase import phase
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.work_total import differing_totals, least_total, named_total
from spotd.history.recent_rate import WINDOW_S, StepWindow, progress_of
from spotd.money.units import usd
from spotd.planner.core.expiry import expires_us
from spotd.planner.offers.price_sanity import NO_DISCOUNT
from spotd.store.checkpoints import CheckpointRow
from spotd.store.events import EventRow
from spotd.store.interface import Store
from spotd.store.ledger import SegmentRow

_HOLDING = frozenset(
    {NodeState.LAUNCHING, NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING}
)


def iso(at_us: int) -> str | None:
    """Return a time as ISO 8601 UTC with microseconds; None for 0, "has not happened"."""
    if not at_us:
        return None
    seconds, micros = divmod(at_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).strftime(f"%Y-%m-%dT%H:%M:%S.{micros:06d}Z")


@dataclass(frozen=True)
class JobFacts:
    """The rows that a job's summary is made of."""

    job: Job
    nodes: Sequence[Node]
    segments: Sequence[SegmentRow]
    checkpoints: Sequence[CheckpointRow]
    window: StepWindow | None = None

    @classmethod
    def load(cls, store: Store, job: Job, now_us: int) -> JobFacts:
        running = [job.id] if job.outcome is None else []
        windows = store.progress.windows(running, now_us - round(WINDOW_S * S))
        return cls(
            job,
            store.nodes.of_job(job.id),
            store.ledger.segments(job.id),
            store.checkpoints.rows(job.id),
            windows.get(job.id),
        )

    @property
    def step(self) -> int:
        """The last step of the newest generation, or that of HEAD."""
        job = self.job
        own = [node for node in self.nodes if node.generation == job.generation]
        return max([job.head.step if job.head else 0, *(n.training.last_step for n in own)])

    @property
    def named_steps(self) -> int:
        """The steps of the whole run, as its newest program named them; 0: none did."""
        return named_total(self.nodes)

    @property
    def least_steps(self) -> int:
        """The steps that the run has at least, if its newest program named no more; else 0."""
        return least_total(self.nodes)


def progress_data(facts: JobFacts, now_us: int) -> dict[str, Any]:
    """Return how far a job is, and when it ends at its recent rate, with losses and waits."""
    progress = progress_of(
        facts.job,
        facts.step,
        facts.named_steps,
        facts.window,
        now_us,
        least_total=facts.least_steps,
    )
    differs = differing_totals(facts.job, facts.named_steps, facts.least_steps)
    source = "program" if progress.by_program else "job file"
    return {
        "total_steps": progress.total_steps or None,
        "total_from": source if progress.total_steps else None,
        "total_differs": differs or None,
        "at_least_steps": progress.least_steps or None,
        "share": None if progress.share is None else round(progress.share, 6),
        "steps_per_s": round(progress.steps_per_s, 6) or None,
        "eta": iso(progress.eta_us),
        "unknown": progress.unknown,
        "try": progress.advice,
    }


def training(job: Job, nodes: Sequence[Node]) -> int:
    """Return how many of the job's machines train."""
    chosen = [node for node in nodes if node.generation == job.generation and node.chosen]
    return sum(node.state in (NodeState.RUNNING, NodeState.DRAINING) for node in chosen)


def job_data(facts: JobFacts, now_us: int) -> dict[str, Any]:
    """Return the summary of a job, for lists."""
    job, nodes = facts.job, facts.nodes
    counts = count_recoveries(nodes, losses(job, nodes, facts.checkpoints))
    return {
        "id": job.id,
        "name": job.name,
        "phase": phase(job, nodes),
        "desired": job.desired.value,
        "outcome": job.outcome.value if job.outcome else None,
        "outcome_text": job.end.outcome_text or job.end.stop_text,
        "kept_nothing": job.kept_nothing,
        "approval": _approval_data(job),
        "step": facts.step,
        "progress": progress_data(facts, now_us),
        "generation": job.generation,
        "recoveries": counts.resumed,
        "restarts_anew": counts.anew,
        "failures": job.backoff.failures,
        "num_nodes": job.spec.resources.num_nodes,
        "training_nodes": training(job, nodes),
        "where": [where_data(node) for node in nodes if node.state in _HOLDING],
        "created_at": iso(job.created_at_us),
        "first_step_at": iso(job.progress.first_step_at_us),
        "finished_at": iso(job.end.finished_at_us),
        "cost_usd": usd(sum(spend_microusd(s, now_us) for s in facts.segments)),
        "last_checkpoint": _checkpoint_data(facts.checkpoints),
    }


def _approval_data(job: Job) -> dict[str, str] | None:
    """Return the approval that a job needs from another person before it runs; None for none."""
    asked_by, text = job.approval.approval_asked_by, job.approval.approval_text
    if not asked_by or job.outcome is not None or job.desired is not Desired.PAUSE:
        return None
    return {"asked_by": asked_by, "text": text}


def job_detail(facts: JobFacts, now_us: int) -> dict[str, Any]:
    """Return the summary, the settings that matter while the job runs, and every node."""
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
        "caches": list(spec.files.caches),
        "max_cost_usd": usd(spec.limits.max_cost_microusd) or None,
        "max_hourly_usd": usd(spec.limits.max_hourly_microusd) or None,
        "deadline": iso(spec.limits.deadline_us),
        "max_duration_s": spec.limits.max_duration_s or None,
        "after": spec.queue.after or None,
        "max_restarts_on_errors": spec.restarts.max_restarts_on_errors,
        "secrets": sorted(spec.program.secrets),
        "on_node_loss": spec.resources.elastic.on_loss.value
        if spec.resources.num_nodes > 1
        else None,
        "nodes": [node_data(node) for node in facts.nodes],
    }


def _checkpoint_data(rows: Sequence[CheckpointRow]) -> dict[str, Any] | None:
    """Return the newest checkpoint.

    Skips the empty manifest that a job's own script commits when it finishes, which saves nothing.
    """
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
    """Return the place of a node; `local` machines are processes on the control box."""
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
    """Return the seconds left of the notice when the node's work was saved and released.

    Measured to the earliest deadline in force; negative when it was late. None without a notice, or
    without a release after it.
    """
    notices = [notice for notice in node.notices if notice.takes_machine]
    deadlines = [n.deadline_us for n in notices if n.deadline_us is not None]
    if not deadlines or node.training.released_at_us < min(n.heard_at_us for n in notices):
        return None
    return (min(deadlines) - node.training.released_at_us) / S


def node_data(node: Node) -> dict[str, Any]:
    """Return one machine of a job, past or present."""
    return where_data(node) | {
        "id": node.id,
        "job_id": node.job_id,
        "chosen": node.chosen,
        "gang_size": node.gang_size or None,
        "moved_at": iso(node.moved_at_us),
        "price_usd_per_h": usd(node.offer.price_microusd_per_h),
        "list_usd_per_h": usd(node.offer.list_microusd_per_h),
        "instance_id": node.instance_id,
        "host": node.address.host,
        "private_host": node.address.private_host,
        "port": node.address.port,
        "step": node.training.last_step,
        "requested_at": iso(node.requested_at_us),
        "launched_at": iso(node.machine.launched_at_us),
        "booted_at": iso(node.startup.booted_at_us),
        "hello_at": iso(node.startup.hello_at_us),
        "ready_at": iso(node.startup.ready_at_us),
        "claimed_at": iso(node.training.claimed_at_us),
        "first_step_at": iso(node.training.first_step_at_us),
        "heard_at": iso(node.agent.heard_at_us),
        "released_at": iso(node.training.released_at_us),
        "margin_s": margin_s(node),
        "exited_at": iso(node.training.exited_at_us),
        "gone_at": iso(node.machine.gone_at_us),
        "expires_at": iso(expires_us(node)),
        "wiped_at": iso(node.storage.wiped_at_us),
        "wiped": node.storage.wiped_text,
        "exit_code": node.training.exit_code,
        "exit_tail": node.training.exit_tail,
        "leave_reason": node.departure.leave_reason.value if node.departure.leave_reason else None,
        "leave_text": node.departure.leave_text,
        "launch_error": node.machine.launch_error,
        "effect": node.call.effect.value if node.call.effect else None,
        "effect_error": node.call.effect_error,
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
    """Return one event of the record."""
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
    """Return one offer.

    `discount` is the fraction below the on-demand price; None where that price is not known.
    `no_discount` marks spot offers that cost about as much as on-demand, which is not preempted.
    `egress_usd_per_gb` is the price of the first bytes that leave its cloud, and
    `storage_usd_per_gb_month` the price of a GB in its stores, both by a dated list. They are None
    where no price is known, and for machines on this box.
    """
    price, list_price = offer.price_microusd_per_h, offer.list_microusd_per_h
    spot = offer.capacity_type is CapacityType.SPOT
    egress = None if offer.local else egress_prices().get(offer.cloud)
    storage = None if offer.local else storage_prices().get(offer.cloud)
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
        "egress_usd_per_gb": usd(egress.first_microusd_per_gb) if egress else None,
        "storage_usd_per_gb_month": usd(storage.microusd_per_month(GB)) if storage else None,
        "price_usd_per_h": usd(price),
        "list_usd_per_h": usd(list_price),
        "price_source": offer.price_source,
        "discount": round(1 - price / list_price, 4) if list_price else None,
        "no_discount": spot and bool(list_price) and price >= NO_DISCOUNT * list_price,
        "local": offer.local,
    }
