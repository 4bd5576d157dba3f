"""Who stands in line for room under the limits, and who has machines."""

from __future__ import annotations

from spotd.domain.job import Desired
from spotd.domain.market import WaitingRequest
from spotd.domain.queue import QueueSnapshot
from spotd.domain.states import NodeState
from spotd.planner.placement.scarce_offers import ANSWERS_US
from spotd.planner.queue.fair_share import KEPT_US, USE_US
from spotd.store.ledger import VOID
from spotd.store.limits import LimitUse
from spotd.store.queue_snapshot import (
    SHARES_US,
    PricedTime,
    Used,
    add_up,
    asker_of,
    holder_of,
    line_of,
    machine_of,
    turn_of,
)
from tests.sim.memory.columns import JobColumns
from tests.sim.memory.tables import Tables


def load(tables: Tables, now_us: int) -> QueueSnapshot:
    """See spotd.store.queue_snapshot.load."""
    jobs = (tables.jobs[job_id] for job_id in tables.unfinished.values())
    waiting = [
        turn_of(JobColumns(job), job.spec, tables.submissions[job.id].user)
        for job in jobs
        if job.queue.room_asked_us > max(now_us - KEPT_US, 0) and job.desired is Desired.RUN
    ]
    if not waiting and not tables.limits.projects:
        return QueueSnapshot()
    holding: dict[str, list[str]] = {}
    for node_id in tables.active:
        holding.setdefault(tables.nodes[node_id].job_id, []).append(node_id)
    found = []
    for job_id in sorted(holding):
        job = tables.jobs[job_id]
        nodes = [tables.nodes[node_id] for node_id in holding[job_id]]
        machines = [
            machine_of(
                state=node.state,
                chosen=node.chosen,
                first_step_at_us=node.training.first_step_at_us,
                microusd_per_h=node.offer.price_microusd_per_h,
                leave_reason=node.departure.leave_reason,
                ended=bool(node.training.released_at_us) or node.training.exit_code is not None,
            )
            for node in nodes
        ]
        found.append(holder_of(JobColumns(job), job.spec, machines))
    return line_of(waiting, found, used(tables, now_us) if waiting else {})


def askers(tables: Tables, now_us: int) -> tuple[WaitingRequest, ...]:
    """See spotd.store.queue_snapshot.askers."""
    jobs = [tables.jobs[job_id] for job_id in sorted(tables.unfinished.values())]
    again = [job for job in jobs if job.queue.offers_at_us and job.desired is Desired.RUN]
    nodes = [tables.nodes[node_id] for node_id in sorted(tables.active)]
    asked = [
        node
        for node in nodes
        if node.state is NodeState.LAUNCHING
        and not (node.instance_id or node.machine.launch_error_code)
        and node.requested_at_us > now_us - ANSWERS_US
    ]
    line = QueueSnapshot(used=used(tables, now_us) if again or asked else {})
    found = [(job, job.queue.offers_at_us, "") for job in again]
    found += [(tables.jobs[n.job_id], n.requested_at_us, n.offer.key) for n in asked]
    return tuple(
        asker_of(line, JobColumns(job), job.spec, tables.submissions[job.id].user, at_us, key)
        for job, at_us, key in found
    )


def used(tables: Tables, now_us: int) -> Used:
    """What projects and users used of late, as of this minute."""
    at_us = now_us - now_us % SHARES_US
    if tables.used is None or tables.used[0] != at_us:
        rows = [
            row
            for row in tables.segments.values()
            if row.state != VOID and (not row.end_us or row.end_us > at_us - USE_US)
        ]
        stretches = (
            PricedTime(
                project=tables.jobs[row.job_id].spec.queue.project,
                user=tables.submissions[row.job_id].user,
                rate_microusd_per_h=row.rate_microusd_per_h,
                start_us=row.start_us,
                end_us=row.end_us,
            )
            for row in rows
        )
        tables.used = at_us, add_up(stretches, at_us)
    return tables.used[1]


def held_use(tables: Tables, nodes: int, microusd_per_h: int, now_us: int) -> LimitUse:
    """What the limits are held against."""
    return LimitUse(tables.limits, nodes, microusd_per_h, load(tables, now_us))
