"""A job as decisions see it, put together from what is kept ready."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from spotd.domain.health import Diagnosis, HealthSpec, Setbacks
from spotd.domain.job import Job
from spotd.domain.lost_work import HandOver, trained_attempts
from spotd.domain.node import Node
from spotd.domain.node_history import Prerequisite
from spotd.domain.preferences import GenerationSaves
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import Throughput, View
from spotd.domain.work_total import named_total, with_total
from spotd.planner.core.slow_detection import baseline_tokens_per_s
from spotd.store.checkpoints import CheckpointRow
from spotd.store.commit_effects import shown
from spotd.store.hand_overs import begins_to_train
from spotd.store.progress import ThroughputWindow, current_of, may_be_slow, since_us, stretch_before
from spotd.store.views import VERDICT_EVENTS, setbacks_of, verdicts_of
from tests.sim.memory import ledger
from tests.sim.memory.tables import Tables


def load_views(tables: Tables, job_ids: Sequence[str], now_us: int) -> dict[str, View]:
    """See Store.load_views."""
    known = [tables.jobs[job_id] for job_id in dict.fromkeys(job_ids) if job_id in tables.jobs]
    jobs = [with_total(job, _named_total(tables, job.id)) for job in known]
    start_us = since_us((job.spec.monitoring.health for job in jobs), now_us)
    return {
        job.id: View(
            job=job,
            attempts=tables.attempts.get(job.id, ()),
            nodes=shown_nodes(tables, job.id),
            throughput=reported(tables, job.id, start_us),
            spent_microusd=ledger.spent_microusd(tables, job.id, now_us),
            loaded_at_us=now_us,
            verdicts=_verdicts(tables, job.id),
            typical_tokens_per_s=_typical(tables, job.id, now_us),
            saved=_saved(tables, job.id) if job.spec.preferences.measurable else (),
            setbacks=_setbacks(tables, job.id) if job.backoff.failures else Setbacks(),
            before=_before(tables, job.spec.queue.after),
            hand_over=_hand_over(tables, job),
        )
        for job in jobs
    }


def _named_total(tables: Tables, job_id: str) -> int:
    return named_total(tables.nodes[node_id] for node_id in tables.nodes_of.get(job_id, ()))


def _hand_over(tables: Tables, job: Job) -> HandOver | None:
    new = begins_to_train(shown_nodes(tables, job.id))
    if new is None or new.generation == 1:
        return None
    nodes = [tables.nodes[node_id] for node_id in tables.nodes_of.get(job.id, ())]
    old = trained_attempts(
        [node for node in nodes if node.generation < new.generation], job.spec.resources.num_nodes
    )
    if not old:
        return None
    saves = [
        row.committed_at_us
        for row in tables.checkpoints.values()
        if row.job_id == job.id and row.generation < new.generation and row.bytes
    ]
    reports_steps = job.spec.checkpoint.engine == "spotd"
    return HandOver(old[-1], max(saves, default=0), reports_steps=reports_steps)


def _before(tables: Tables, job_id: str) -> Prerequisite | None:
    job = tables.jobs.get(job_id)
    if job is None:
        return None
    return Prerequisite(job.name, job.outcome, job.end.outcome_text, job.end.finished_at_us)


def _saved(tables: Tables, job_id: str) -> tuple[GenerationSaves, ...]:
    rows: dict[int, list[CheckpointRow]] = {}
    for row in tables.checkpoints.values():
        if row.job_id == job_id:
            rows.setdefault(row.generation, []).append(row)
    found = []
    for generation, told in sorted(rows.items()):
        steps, times = [row.step for row in told], [row.committed_at_us for row in told]
        most = max(row.bytes for row in told)
        ends = (min(steps), max(steps), min(times), max(times))
        found.append(GenerationSaves(generation, *ends, most))
    return tuple(found)


def shown_nodes(tables: Tables, job_id: str) -> tuple[Node, ...]:
    """The nodes that decisions look at, oldest first; the same object until one changes."""
    found = tables.shown.get(job_id)
    if found is None:
        nodes = (tables.nodes[node_id] for node_id in tables.nodes_of.get(job_id, ()))
        found = tables.shown[job_id] = shown(nodes, tables.jobs[job_id].generation)
    return found


def reported(tables: Tables, job_id: str, start_us: int) -> tuple[Throughput, ...]:
    """What the newest attempt that chose its machines reported since `start_us`, oldest first."""
    reports = tables.reports.get((job_id, _chosen(tables, job_id)))
    if not reports:
        return ()
    return tuple(reports[bisect_right(reports, start_us, key=lambda report: report.at_us) :])


def _chosen(tables: Tables, job_id: str) -> int:
    """The newest generation that chose a machine; -1 where none did."""
    found = tables.chosen.get(job_id)
    if found is None:
        nodes = (tables.nodes[node_id] for node_id in tables.nodes_of.get(job_id, ()))
        found = max((node.generation for node in nodes if node.chosen), default=-1)
        tables.chosen[job_id] = found
    return found


def recent_throughput(
    tables: Tables, now_us: int
) -> dict[str, tuple[HealthSpec, tuple[Throughput, ...]]]:
    """See Store.progress.recent_throughput."""
    specs = {
        job_id: tables.jobs[job_id].spec.monitoring.health
        for job_id in sorted(tables.unfinished.values())
        if any(node.state is NodeState.RUNNING for node in shown_nodes(tables, job_id))
    }
    start_us = since_us(specs.values(), now_us)
    found = {}
    for job_id, spec in specs.items():
        reports = reported(tables, job_id, start_us)
        if may_be_slow(_window(reports, now_us - int(spec.check_every_s * S)), spec):
            found[job_id] = (spec, reports)
    return found


def _window(reports: Sequence[Throughput], since_us: int) -> ThroughputWindow:
    """The reports after `since_us`, added up, and the best rate of those before."""
    at = bisect_right(reports, since_us, key=lambda report: report.at_us)
    before, new = reports[:at], reports[at:]
    best = max((r.tokens / r.busy_s for r in before if r.busy_s > 0), default=None)
    return ThroughputWindow(len(new), sum(r.tokens for r in new), sum(r.busy_s for r in new), best)


def _verdicts(tables: Tables, job_id: str) -> tuple[Diagnosis, ...]:
    if all(node.state is not NodeState.RUNNING for node in shown_nodes(tables, job_id)):
        return ()
    newest = tables.events_of.get(job_id, [])[-VERDICT_EVENTS:]
    return verdicts_of([Diagnosis(row.event.kind, row.at_us, row.event.node_id) for row in newest])


def _setbacks(tables: Tables, job_id: str) -> Setbacks:
    told = (row.event for row in reversed(tables.events_of.get(job_id, [])))
    return setbacks_of((event.kind, event.node_id, event.data) for event in told)


def _typical(tables: Tables, job_id: str, now_us: int) -> float:
    node = current_of(shown_nodes(tables, job_id), now_us)
    if node is None or node.generation == 1:
        return 0.0
    past = (tables.nodes[node_id] for node_id in tables.nodes_of.get(job_id, ()))
    stretch = stretch_before(node, past)
    if stretch is None:
        return 0.0
    reports = tables.reports.get((job_id, stretch.generation), [])
    inside = [r for r in reports if stretch.begin_us < r.at_us <= stretch.end_us]
    return baseline_tokens_per_s(inside, stretch.end_us)
