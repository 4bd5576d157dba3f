"""The cost account of a job, built from the store's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotd.api.request.request import ApiRequest
from spotd.api.views.job_bill import all_reports
from spotd.api.views.lost_work import losses
from spotd.domain.job import Job
from spotd.domain.lost_work import trained_attempts
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, Outcome
from spotd.domain.units import US_PER_H, S
from spotd.money.hour_breakdown import Machine, Save, Span, script_spans
from spotd.money.report import Account, Item, Kind, Report, report_of
from spotd.money.units import cost_microusd, share_out
from spotd.store.checkpoint_costs import Window
from spotd.store.checkpoints import CheckpointRow
from spotd.store.dataset_costs import freight_of
from spotd.store.interface import Store
from spotd.store.ledger import SegmentRow, stretch_of
from spotd.store.output_costs import output_costs
from spotd.store.outputs import StoredOutput
from spotd.store.progress import ProgressRow, steps_of
from spotd.store.storage_costs import extras_of
from spotd.store.transfers import DataTransfer

NO_STEPS = (
    "no steps of {name} are on record (none reported, or no longer retained): the use of its hours "
    "is untold, and its saving is not known"
)
NO_BOX = "the cost of the control box is not known: [money] control_box_usd_per_hour is not set"


@dataclass(frozen=True)
class ControlBoxCost:
    """The cost of the control box, and the machine time of each job that it is shared out by.

    `microusd_per_h` 0: not configured. `billed_us` is machine time in the window, by job id.
    """

    microusd_per_h: int
    billed_us: Mapping[str, int]
    since_us: int  # start of the first machine, or of the window

    def whole(self, window: Window) -> int:
        """Return the micro-USD of the window. Costs of adjacent windows add up."""
        bounds = (max(self.since_us, at_us) for at_us in (window.since_us, window.until_us))
        cost_before, cost_until = (
            cost_microusd(self.microusd_per_h, self.since_us, at) for at in bounds
        )
        return cost_until - cost_before

    def share(self, job_id: str, window: Window) -> int:
        """Return one job's share in micro-USD, by its part of all machine time.

        The shares of all jobs add up to the cost of the box in the window.
        """
        jobs = sorted(self.billed_us)
        if job_id not in self.billed_us:
            return 0
        parts = share_out(self.whole(window), [self.billed_us[job] for job in jobs])
        return parts[jobs.index(job_id)]

    def hours(self, job_id: str, window: Window) -> float:
        """Return the job's part of the hours of the box in the window."""
        share = self.billed_us.get(job_id, 0) / max(1, sum(self.billed_us.values()))
        elapsed_us = max(0, window.until_us - max(self.since_us, window.since_us))
        return elapsed_us / US_PER_H * share


def box_of(
    rows: Sequence[SegmentRow], microusd_per_h: int, window: Window, now_us: int
) -> ControlBoxCost:
    """Return the cost of the control box, shared out over all segments of the ledger."""
    billed: dict[str, int] = {}
    for row in rows:
        start_us, end_us = stretch_of(row, now_us).within(window.since_us, window.until_us)
        if row.state != "void" and end_us > start_us:
            billed[row.job_id] = billed.get(row.job_id, 0) + end_us - start_us
    first_us = min((row.start_us for row in rows if row.state != "void"), default=now_us)
    return ControlBoxCost(microusd_per_h, billed, max(first_us, window.since_us))


@dataclass(frozen=True)
class Records:
    """The records of one job."""

    job: Job
    user: str
    nodes: Sequence[Node]
    segments: Sequence[SegmentRow]
    progress: Sequence[ProgressRow]
    checkpoints: Sequence[CheckpointRow]
    shipments: Sequence[DataTransfer] = ()
    uploads: Sequence[StoredOutput] = ()

    def spent(self, window: Window, now_us: int) -> int:
        """Return the micro-USD of its machines in the window."""
        rows = (row for row in self.segments if row.state != "void")
        return sum(stretch_of(row, now_us).spent(window.since_us, window.until_us) for row in rows)

    def extras(self, market: Market, window: Window, now_us: int) -> tuple[list[Item], list[str]]:
        """Return the costs of checkpoints, data and outputs in the window, and the unknown ones."""
        items, unknown = extras_of(self.job, self.nodes, self.checkpoints, market, window, now_us)
        data_items, data_unknown = freight_of(
            self.job, self.nodes, self.shipments, market, window, now_us
        )
        outputs, outputs_unknown = output_costs(
            self.job, self.nodes, self.uploads, market, window, now_us
        )
        return items + data_items + outputs, unknown + data_unknown + outputs_unknown


def records_of(store: Store, job: Job) -> Records:
    """Read the records of a job from the store."""
    return Records(
        job,
        store.jobs.users([job.id]).get(job.id, ""),
        store.nodes.of_job(job.id),
        store.ledger.segments(job.id),
        all_reports(store.progress.rows(job.id), job.progress.first_step_at_us),
        store.checkpoints.rows(job.id),
        store.transfers.rows(job.id),
        store.outputs.rows(job.id),
    )


def account_of(
    records: Records, market: Market, box: ControlBoxCost, window: Window, now_us: int
) -> Account:
    """Return the account of a job; extras are those of the window, machines are whole."""
    job, nodes, segments = records.job, records.nodes, records.segments
    progress, rows = records.progress, records.checkpoints
    extras, unknown = records.extras(market, window, now_us)
    share = box.share(job.id, window)
    if share:
        hours = box.hours(job.id, window)
        description = "control box, shared by machine hours"
        extras.append(Item(Kind.CONTROL, "control", description, hours, "Hours", share))
    if not box.microusd_per_h:
        unknown.append(NO_BOX)
    script = {} if progress else _script_spans(job, nodes, rows)
    if nodes and not progress and not script and any(row.state != "void" for row in segments):
        unknown.insert(0, NO_STEPS.format(name=job.name))
    return Account(
        job.id,
        job.name,
        records.user,
        job.spec.resources.num_nodes,
        tuple(
            _machine(node, [row for row in segments if row.node_id == node.id], now_us)
            for node in nodes
        ),
        steps=tuple(map(steps_of, progress)),
        saves=tuple(_save(row) for row in rows),
        extras=tuple(extras),
        unknown=tuple(unknown),
        project=job.spec.queue.project,
        script=script,
        no_result=job.outcome is Outcome.FAILED or job.kept_nothing,
    )


def _script_spans(
    job: Job, nodes: Sequence[Node], rows: Sequence[CheckpointRow]
) -> dict[int, list[Span]]:
    """Return how a program without spotd's engine used its time, judged by its saves."""
    if job.spec.checkpoint.engine != "none":
        return {}
    return script_spans(
        trained_attempts(nodes, job.spec.resources.num_nodes),
        losses(job, nodes, rows),
        saved_at_us=max((row.committed_at_us for row in rows if row.bytes), default=0),
        succeeded=job.outcome is Outcome.SUCCEEDED,
    )


def _machine(node: Node, segments: Sequence[SegmentRow], now_us: int) -> Machine:
    hedge_lost = node.departure.leave_reason is LeaveReason.HEDGE_LOST
    description = f"{node.offer.instance_type} {node.offer.capacity_type.value}"
    return Machine(
        node.id,
        node.generation,
        tuple(stretch_of(row, now_us) for row in segments if row.state != "void"),
        gpus=node.offer.accelerator_count,
        rank=node.rank,
        chosen=not hedge_lost and (node.chosen or bool(node.startup.started_at_us)),
        hedge_lost=hedge_lost,
        ready_at_us=node.startup.ready_at_us,
        claimed_at_us=node.training.claimed_at_us,
        ended_at_us=node.training.released_at_us or node.training.exited_at_us,
        details={"what": description, "node": node.id, **_details(node)},
    )


def _details(node: Node) -> dict[str, str]:
    """Return the details of a machine that exports have."""
    offer = node.offer
    taken = node.departure.leave_reason in (LeaveReason.PREEMPTED, LeaveReason.LOST)
    return {
        "provider": offer.provider,
        "cloud": offer.cloud,
        "region": offer.region,
        "zone": offer.zone_id or offer.zone,
        "type": offer.instance_type,
        "capacity": offer.capacity_type.value,
        "reservation": offer.reservation,
        "accelerator": offer.accelerator,
        "instance_id": node.instance_id,
        "interrupted": "true" if taken else "false",
    }


def _save(row: CheckpointRow) -> Save:
    return Save(row.generation, row.step, round(row.stage_s * S), round(row.write_s * S))


def whole_report(call: ApiRequest, job: Job) -> Report:
    """Return the report of a job over all of its time, with its share of the control box."""
    window, now_us = Window(0, call.now_us), call.now_us
    segments = call.context.store.ledger.segments()
    box = box_of(segments, call.context.settings.box_microusd_per_h(), window, now_us)
    records = records_of(call.context.store, job)
    account = account_of(records, call.context.market(now_us), box, window, now_us)
    return report_of(account, 0, now_us)
