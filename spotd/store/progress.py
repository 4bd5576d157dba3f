"""Reports of training steps, and the throughput they show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    Row,
    bindparam,
    case,
    func,
    select,
)

from spotd.domain.health import HealthSpec
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import Throughput
from spotd.history.recent_rate import StepWindow
from spotd.money.hour_breakdown import Steps
from spotd.planner.core.slow_detection import WARM_UP_US, baseline_tokens_per_s
from spotd.store import schema
from spotd.store.codec import decode_spec
from spotd.store.rows import nodes_query, numbers, read_nodes
from spotd.store.session import Repository, read


@dataclass(frozen=True)
class ProgressRow:
    """One reported range of steps; `losses` has one float per step from `from_step`, or is thinned.

    `first_at_us` and `last_at_us` are on the node's clock; `at_us`, when it was reported, is on the
    daemon's. `id` grows with every row of the store: the position to read on from.
    """

    generation: int
    from_step: int
    to_step: int
    losses: tuple[float, ...]
    first_at_us: int
    last_at_us: int
    tokens: int
    busy_s: float
    id: int = 0
    at_us: int = 0


# How far back is looked: long enough for a baseline before the health checks' windows.
LOOK_BACK_S = 600.0
# A machine that is slower than the one before shows it soon; from then on it is its own measure.
COMPARED_S = 7200.0
Recent = dict[str, tuple[HealthSpec, tuple[Throughput, ...]]]  # by job
_jobs, _nodes, _progress = schema.jobs.c, schema.nodes.c, schema.progress.c
_IDS: BindParameter[Any] = bindparam("jobs", expanding=True)
# An attempt that has chosen nobody yet took nothing over: its candidates may be given back.
_CHOSEN = (
    select(func.max(_nodes.generation))
    .where(_nodes.job_id == _jobs.id, _nodes.chosen)
    .scalar_subquery()
)
_REPORTED = (
    select(
        _progress.job_id,
        _progress.generation,
        _progress.at_us,
        _progress.to_step,
        _progress.tokens,
        _progress.busy_s,
    )
    .join(schema.jobs, _jobs.id == _progress.job_id)
    .where(
        _progress.job_id.in_(_IDS),
        _progress.at_us > bindparam("since"),
        _progress.generation == _CHOSEN,
    )
    .order_by(_progress.job_id, _progress.at_us, _progress.id)
)
_RUNNING = select(_jobs.id, _jobs.spec).where(
    _jobs.outcome.is_(None),
    select(_nodes.id)
    .where(_nodes.job_id == _jobs.id, _nodes.state == NodeState.RUNNING.value)
    .exists(),
)
_PAST = nodes_query(
    _nodes.job_id == bindparam("job"),
    _nodes.chosen,
    _nodes.rank == 0,
    _nodes.first_step_at_us > 0,
)
_STRETCH = select(
    _progress.generation,
    _progress.at_us,
    _progress.to_step,
    _progress.tokens,
    _progress.busy_s,
).where(
    _progress.job_id == bindparam("job"),
    _progress.generation == bindparam("generation"),
    _progress.at_us > bindparam("begin"),
    _progress.at_us <= bindparam("end"),
)
# Two are enough to know whether there is a rate; the index leads to them.
_FIRST_TWO = (
    select(_progress.from_step, _progress.at_us, _progress.first_at_us, _progress.last_at_us)
    .where(_progress.job_id == bindparam("job"), _progress.at_us > bindparam("since"))
    .order_by(_progress.at_us, _progress.id)
    .limit(2)
)
_NEW = _progress.at_us > bindparam("recent")
_SUMS = (
    select(
        _progress.job_id,
        func.sum(case((_NEW, 1), else_=0)).label("reports"),
        func.sum(case((_NEW, _progress.tokens), else_=0)).label("tokens"),
        func.sum(case((_NEW, _progress.busy_s), else_=0.0)).label("busy_s"),
        func.max(case((~_NEW & (_progress.busy_s > 0), _progress.tokens / _progress.busy_s))).label(
            "best"
        ),
    )
    .join(schema.jobs, _jobs.id == _progress.job_id)
    .where(
        _jobs.outcome.is_(None),
        _progress.at_us > bindparam("since"),
        _progress.generation == _CHOSEN,
    )
    .group_by(_progress.job_id)
)


def since_us(specs: Iterable[HealthSpec], now_us: int) -> int:
    """Where to start reading: three times the longest check's period before now, at least
    LOOK_BACK_S."""
    needed_s = max((3 * spec.checks * spec.check_every_s for spec in specs), default=0.0)
    return now_us - int(max(needed_s, LOOK_BACK_S) * S)


def reported(
    conn: Connection, job_ids: Sequence[str], start_us: int
) -> dict[str, list[Throughput]]:
    """Reports since `start_us`, oldest first, of the newest attempt that chose its machines, by
    job."""
    result: dict[str, list[Throughput]] = {job_id: [] for job_id in job_ids}
    for job_id, *values in conn.execute(_REPORTED, {"jobs": list(job_ids), "since": start_us}):
        result[job_id].append(Throughput(*values))
    return result


@dataclass(frozen=True)
class EarlierTraining:
    """A period of an earlier attempt, on the daemon's clock."""

    generation: int
    begin_us: int
    end_us: int


def current_of(nodes: Iterable[Node], now_us: int) -> Node | None:
    """The training machine of rank 0, during its first COMPARED_S: it is compared with the one
    before."""
    running = (n for n in nodes if n.chosen and not n.rank and n.state is NodeState.RUNNING)
    node = next((n for n in running if n.training.first_step_at_us), None)
    long = node is not None and now_us - node.training.first_step_at_us > COMPARED_S * S
    return None if long else node


def stretch_before(node: Node, nodes: Iterable[Node]) -> EarlierTraining | None:
    """The period to compare `node` with: after the warm-up of the newest earlier attempt of its job
    on this instance type."""
    same = [
        past
        for past in nodes
        if (past.chosen and not past.rank and past.training.first_step_at_us)
        and past.generation < node.generation
        and past.offer.instance_type == node.offer.instance_type
    ]
    if not same:
        return None
    past = max(same, key=lambda one: one.generation)
    begin_us = past.training.first_step_at_us + WARM_UP_US
    return EarlierTraining(past.generation, begin_us, begin_us + int(LOOK_BACK_S * S))


def typical(conn: Connection, node: Node) -> float:
    """Tokens per second of the attempt to compare `node` with; 0.0 if there is none."""
    stretch = stretch_before(node, read_nodes(conn, _PAST, {"job": node.job_id}))
    if stretch is None:
        return 0.0
    between = {"begin": stretch.begin_us, "end": stretch.end_us}
    asked = {"job": node.job_id, "generation": stretch.generation, **between}
    samples = [Throughput(*row) for row in conn.execute(_STRETCH, asked)]
    return baseline_tokens_per_s(samples, stretch.end_us)


@dataclass(frozen=True)
class ThroughputWindow:
    """A job's reports in its newest window, and the `best` rate of any earlier report, in tokens
    per second; None if there is none."""

    reports: int
    tokens: int
    busy_s: float
    best: float | None


class ProgressRepository(Repository):
    """Reports of training steps."""

    @read
    def rows(self, conn: Connection, job_id: str, after: int = 0) -> list[ProgressRow]:
        """Rows whose `id` is greater than `after`, in the order in which they were recorded."""
        query = (
            select(schema.progress)
            .where(_progress.job_id == job_id, _progress.id > after)
            .order_by(_progress.id)
        )
        names = [name for name in ProgressRow.__dataclass_fields__ if name != "losses"]
        return [
            ProgressRow(**{name: row[name] for name in names}, losses=numbers(row["losses"]))
            for row in conn.execute(query).mappings()
        ]

    @read
    def windows(
        self, conn: Connection, job_ids: Iterable[str], since_us: int
    ) -> dict[str, StepWindow]:
        """The step of each job at its first report since `since_us`; jobs without one are left
        out."""
        found: dict[str, StepWindow] = {}
        for job_id in job_ids:
            rows = conn.execute(_FIRST_TWO, {"job": job_id, "since": since_us}).all()
            if rows:
                lasted_us = max(0, rows[0].last_at_us - rows[0].first_at_us)
                begin_us = rows[0].at_us - lasted_us
                found[job_id] = StepWindow(rows[0].from_step - 1, begin_us, len(rows))
        return found

    @read
    def recent_throughput(self, conn: Connection, now_us: int) -> Recent:
        """Jobs with a running node that may be slow: health spec and reports of the newest attempt.

        Jobs whose newest window is clearly healthy are left out. The database computes the sums, so
        only the rows of the few jobs that may be slow are loaded.
        """
        specs = {row.id: decode_spec(row.spec).monitoring.health for row in conn.execute(_RUNNING)}
        start_us = since_us(specs.values(), now_us)
        suspects: list[str] = []
        for window_s in sorted({spec.check_every_s for spec in specs.values()}):
            times = {"since": start_us, "recent": now_us - int(window_s * S)}
            for row in conn.execute(_SUMS, times):
                spec = specs.get(row.job_id)
                if spec is not None and spec.check_every_s == window_s and may_be_slow(row, spec):
                    suspects.append(row.job_id)
        if not suspects:
            return {}
        rows = reported(conn, suspects, start_us)
        return {job_id: (specs[job_id], tuple(rows[job_id])) for job_id in suspects}


def may_be_slow(row: Row[Any, Any, Any, Any, Any] | ThroughputWindow, spec: HealthSpec) -> bool:
    """Whether the newest window is slow by the most generous baseline: the best rate of any
    report."""
    if row.best is None:
        return False
    silent = row.reports == 0
    return bool(silent or (row.busy_s > 0 and row.tokens < spec.ratio * row.best * row.busy_s))


def steps_of(row: ProgressRow) -> Steps:
    """Convert a progress report for the cost functions."""
    times = (row.first_at_us, row.last_at_us, round(row.busy_s * S), row.at_us)
    return Steps(row.generation, row.from_step, row.to_step, *times)
