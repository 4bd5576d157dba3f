"""The queries that metrics are computed from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Subquery,
    and_,
    case,
    func,
    literal,
    null,
    or_,
    select,
)

from spotd.domain.health import USAGE
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.history.recoveries import Recovery, TrainedNode, recoveries
from spotd.money.units import cost_microusd
from spotd.store import schema
from spotd.store.notices import FIRST_WARNINGS
from spotd.store.session import Repository, Session, read

PROVISION_S = (30, 60, 120, 240, 360, 480, 900, 1800, 3600)  # 2 to 8 min is what guides promise
NOTICE_S = (5, 15, 30, 60, 90, 120, 300)
MARGIN_S = (-30, -10, 0, 5, 10, 20, 30, 60, 90, 120)
SAVE_S = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900)
STALL_S = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120)
RECOVERY_S = (1, 5, 15, 30, 60, 120, 240, 480, 660, 1200, 3600)


@dataclass(frozen=True)
class Histogram:
    """How many values are at most each bound (`below`, in the bounds' order), their number and
    sum."""

    bounds: Sequence[float]
    below: Sequence[int]
    count: int
    total: float

    @classmethod
    def of(cls, values: Iterable[float], bounds: Sequence[float]) -> Histogram:
        known = list(values)
        below = [sum(value <= bound for value in known) for bound in bounds]
        return cls(bounds, below, len(known), float(sum(known)))

    def __add__(self, other: Histogram) -> Histogram:
        below = [a + b for a, b in zip(self.below, other.below, strict=True)]
        return Histogram(self.bounds, below, self.count + other.count, self.total + other.total)


@dataclass(frozen=True)
class PoolRow:
    """Machines of one offer with the same outcome.

    `outcome` is the request's: "" while it is open, "moved" for a machine that another attempt took
    over; `reason` is "" unless the machine was preempted or lost, and `noticed` says whether it had
    a notice. `seconds` sums their lifetimes; the histograms are of the time from the request to the
    agent's first message, of notice lengths, and of the time left when work was released.
    """

    offer_key: str
    outcome: str
    reason: str
    noticed: bool
    count: int
    seconds: float
    provision: Histogram
    notice: Histogram
    margin: Histogram


@dataclass(frozen=True)
class SaveRow:
    """Checkpoints with the same trigger."""

    trigger: str
    count: int
    bytes: int
    write: Histogram
    stall: Histogram


@dataclass(frozen=True)
class SpentRow:
    """A job's cost in micro-USD: of machines, or storage and transfers (`carriage`); `invoiced` if
    from a bill."""

    job_id: str
    kind: str
    invoiced: bool
    microusd: int


@dataclass(frozen=True)
class RateRow:
    """A machine that costs money now."""

    job_id: str
    offer_key: str
    microusd_per_h: int


@dataclass(frozen=True)
class MetricRecords:
    """All records.

    `saved_at_us`: unfinished job -> time of its newest checkpoint. `usage`: job -> its machines'
    reports of the last 15 min. `overdue_us`: since when the oldest due job waits for a decision, 0
    for none. `held`: holder -> number of duties. `disabled`: provider -> whether its credentials
    are refused. `projects`: of the jobs in `spent` and `rates`.
    """

    pools: Sequence[PoolRow] = ()
    saves: Sequence[SaveRow] = ()
    spent: Sequence[SpentRow] = ()
    rates: Sequence[RateRow] = ()
    recoveries: Sequence[Recovery] = ()
    finished: Mapping[str, int] = field(default_factory=dict)
    saved_at_us: Mapping[str, int] = field(default_factory=dict)
    usage: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    overdue_us: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    disabled: Mapping[str, bool] = field(default_factory=dict)
    projects: Mapping[str, str] = field(default_factory=dict)


_nodes, _jobs = schema.nodes.c, schema.jobs.c
_saves, _segments, _events = schema.checkpoints.c, schema.segments.c, schema.events.c
_carriage, _duties, _providers = schema.carriage.c, schema.duties.c, schema.providers.c
USE_US = 15 * 60 * S
TRIGGERS = 8  # programs name them: the most frequent, and the others as "other"
_MANY = 500  # ids in one query
_ENDED = _nodes.state.in_((NodeState.TERMINATING.value, NodeState.GONE.value))
_FINAL = or_(_ENDED, _nodes.gone_at_us > 0)
_TAKEN = and_(
    _ENDED,
    _nodes.launched_at_us > 0,
    _nodes.leave_reason.in_((LeaveReason.PREEMPTED.value, LeaveReason.LOST.value)),
)
_SEEN = case((_nodes.heard_at_us > _nodes.seen_at_us, _nodes.heard_at_us), else_=_nodes.seen_at_us)


class MetricQueries:
    """Reads the records; one caller at a time.

    Caches values that cannot change: the project of a job, and the id up to which events are too
    old to count.
    """

    def __init__(self) -> None:
        self._projects: dict[str, str] = {}
        self._after = 0

    def read(self, conn: Connection, now_us: int) -> MetricRecords:
        """All records, in one snapshot."""
        spent, rates = _spent(conn, now_us), _rates(conn)
        return MetricRecords(
            pools=_pool_rows(conn),
            saves=_save_rows(conn),
            spent=spent,
            rates=rates,
            recoveries=_recoveries(conn),
            finished=_finished(conn),
            saved_at_us=_newest_saves(conn),
            usage=self._usage(conn, now_us - USE_US),
            overdue_us=_overdue_us(conn, now_us),
            held=_held(conn, now_us),
            disabled=_disabled(conn),
            projects=self._projects_of(
                conn, {row.job_id for row in spent} | {row.job_id for row in rates}
            ),
        )

    def _projects_of(self, conn: Connection, job_ids: set[str]) -> Mapping[str, str]:
        missing = sorted(job_ids - self._projects.keys())
        for first in range(0, len(missing), _MANY):
            query = select(_jobs.id, _jobs.spec).where(_jobs.id.in_(missing[first : first + _MANY]))
            for job_id, spec in conn.execute(query):
                self._projects[job_id] = str(json.loads(spec).get("project", ""))
        return {job_id: self._projects.get(job_id, "") for job_id in job_ids}

    def _usage(self, conn: Connection, since_us: int) -> dict[str, list[Mapping[str, Any]]]:
        """Return usage reports since `since_us`. Ids follow the order of commits, so reports that
        were too old stay too old."""
        young = and_(_events.id > self._after, _events.at_us >= since_us)
        first = conn.execute(select(func.min(_events.id)).where(young)).scalar_one()
        newest = conn.execute(select(func.max(_events.id))).scalar_one() or 0
        self._after = newest if first is None else first - 1
        query = select(_events.job_id, _events.data).where(
            _events.id > self._after, _events.at_us >= since_us, _events.kind == USAGE
        )
        reports: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for job_id, data in conn.execute(query):
            reports[job_id].append(json.loads(data))
        return reports


class MetricRepository(Repository):
    """The queries that metrics are computed from."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._queries = MetricQueries()

    @read
    def read(self, conn: Connection, now_us: int) -> MetricRecords:
        """Everything that metrics are computed from. One caller at a time."""
        return self._queries.read(conn, now_us)


def _spread(value: Any, bounds: Sequence[float], unit: float) -> list[ColumnElement[Any]]:
    """The columns of a histogram of a nullable value; `unit` of the value are one second."""
    below = [func.sum(case((value <= bound * unit, 1), else_=0)) for bound in bounds]
    return [*below, func.count(value), func.coalesce(func.sum(value), 0)]


def _take(values: list[Any], bounds: Sequence[float], unit: float) -> Histogram:
    """Remove the columns of one `_spread` from the front of `values`."""
    mine = [values.pop(0) for _ in range(len(bounds) + 2)]
    return Histogram(bounds, [int(n) for n in mine[:-2]], int(mine[-2]), float(mine[-1]) / unit)


def _machines() -> Subquery:
    asked = _nodes.moved_at_us == 0
    warned, due, spoke = (
        FIRST_WARNINGS.c.heard.is_not(None),
        FIRST_WARNINGS.c.deadline,
        FIRST_WARNINGS.c.heard,
    )
    until = case((_nodes.left_at_us > 0, _nodes.left_at_us), else_=_SEEN)
    since = case((asked, _nodes.launched_at_us), else_=_nodes.moved_at_us)
    noticed = and_(_TAKEN, due.is_not(None))
    outcome = case(
        (~asked, literal("moved")),
        (_nodes.launched_at_us > 0, literal("launched")),
        # The answer to a later call is not final while that to the first may come.
        (and_(_nodes.launch_error_code != "", _FINAL), _nodes.launch_error_code),
        (_ENDED, literal("none")),
        else_=literal(""),
    )
    hello = _nodes.hello_at_us - _nodes.requested_at_us
    left = due - _nodes.released_at_us
    lived = and_(_nodes.launched_at_us > 0, until > since)
    return (
        select(
            _nodes.offer_key,
            outcome.label("outcome"),
            case((_TAKEN, _nodes.leave_reason), else_=literal("")).label("reason"),
            case((warned, 1), else_=0).label("noticed"),
            case((lived, until - since), else_=0).label("lived"),
            case((and_(asked, _nodes.hello_at_us > 0), hello), else_=null()).label("hello"),
            case((noticed, due - spoke), else_=null()).label("notice"),
            case((and_(noticed, _nodes.released_at_us >= spoke), left), else_=null()).label("left"),
        )
        .select_from(schema.nodes)
        .join(FIRST_WARNINGS, FIRST_WARNINGS.c.node_id == _nodes.id, isouter=True)
        .subquery()
    )


def _pool_rows(conn: Connection) -> list[PoolRow]:
    one = _machines().c
    query = select(
        one.offer_key,
        one.outcome,
        one.reason,
        one.noticed,
        func.count(),
        func.sum(one.lived),
        *_spread(one.hello, PROVISION_S, S),
        *_spread(one.notice, NOTICE_S, S),
        *_spread(one.left, MARGIN_S, S),
    ).group_by(one.offer_key, one.outcome, one.reason, one.noticed)
    rows = []
    for row in conn.execute(query):
        offer_key, outcome, reason, noticed, count, lived_us, *rest = row
        rows.append(
            PoolRow(
                offer_key=offer_key,
                outcome=outcome,
                reason=reason,
                noticed=bool(noticed),
                count=int(count),
                seconds=float(lived_us) / S,
                provision=_take(rest, PROVISION_S, S),
                notice=_take(rest, NOTICE_S, S),
                margin=_take(rest, MARGIN_S, S),
            )
        )
    return rows


def _save_rows(conn: Connection) -> list[SaveRow]:
    """Return checkpoints by trigger, with their uploaded bytes.

    The final manifest of a script uploads nothing, and is not counted.
    """
    query = (
        select(
            _saves.trigger,
            func.count(),
            func.sum(_saves.bytes - _saves.shared_bytes),
            *_spread(func.nullif(_saves.write_s, 0.0), SAVE_S, 1),
            *_spread(func.nullif(_saves.stage_s, 0.0), STALL_S, 1),
        )
        .where(_saves.bytes > _saves.shared_bytes)
        .group_by(_saves.trigger)
        .order_by(func.min(_saves.committed_at_us), _saves.trigger)
    )
    rows: dict[str, SaveRow] = {}
    for trigger, count, size, *rest in conn.execute(query):
        name = trigger or "unknown"
        if name not in rows and len(rows) >= TRIGGERS:
            name = "other"
        row = SaveRow(name, int(count), int(size), _take(rest, SAVE_S, 1), _take(rest, STALL_S, 1))
        old = rows.get(name)
        if old is not None:
            sums = old.count + row.count, old.bytes + row.bytes
            row = SaveRow(name, *sums, old.write + row.write, old.stall + row.stall)
        rows[name] = row
    return list(rows.values())


def _spent(conn: Connection, now_us: int) -> list[SpentRow]:
    """As `ledger.spent_microusd`, of all jobs. A billed amount replaces the estimate."""
    billed = _segments.reconciled_at_us > 0
    cost = case((billed, _segments.invoiced_microusd), else_=_segments.cost_microusd)
    ended = (
        select(_segments.job_id, case((billed, 1), else_=0).label("billed"), cost.label("microusd"))
        .where(_segments.end_us > 0)
        .subquery()
    ).c
    sums: dict[tuple[str, str, bool], int] = defaultdict(int)
    query = select(ended.job_id, ended.billed, func.sum(ended.microusd))
    for job_id, had, microusd in conn.execute(query.group_by(ended.job_id, ended.billed)):
        sums[job_id, "machines", bool(had)] += int(microusd)
    running = select(_segments.job_id, _segments.rate_microusd_per_h, _segments.start_us)
    for job_id, rate, start_us in conn.execute(running.where(_segments.end_us == 0)):
        sums[job_id, "machines", False] += cost_microusd(rate, start_us, max(now_us, start_us))
    stored = select(_carriage.job_id, func.sum(_carriage.microusd)).group_by(_carriage.job_id)
    for job_id, microusd in conn.execute(stored):
        sums[job_id, "carriage", False] += int(microusd)
    return [SpentRow(*which, microusd) for which, microusd in sums.items()]


def _rates(conn: Connection) -> list[RateRow]:
    query = (
        select(_segments.job_id, _nodes.offer_key, _segments.rate_microusd_per_h)
        .join(schema.nodes, _nodes.id == _segments.node_id)
        .where(_segments.end_us == 0)
    )
    return [RateRow(*row) for row in conn.execute(query)]


def _recoveries(conn: Connection) -> list[Recovery]:
    """Recoveries of jobs that lost a training machine."""
    trained = and_(_nodes.rank == 0, _nodes.chosen, _nodes.first_step_at_us > 0)
    jobs = select(_nodes.job_id).where(trained, _TAKEN).distinct()
    ceased = case((_nodes.released_at_us > 0, _nodes.released_at_us), else_=_nodes.heard_at_us)
    query = (
        select(
            _nodes.job_id,
            _nodes.generation,
            _nodes.provider,
            _nodes.launched_at_us,
            _nodes.hello_at_us,
            _nodes.first_step_at_us,
            _nodes.last_step,
            ceased,
            case((_TAKEN, 1), else_=0),
            case((FIRST_WARNINGS.c.heard.is_not(None), 1), else_=0),
        )
        .select_from(schema.nodes)
        .join(FIRST_WARNINGS, FIRST_WARNINGS.c.node_id == _nodes.id, isouter=True)
        .where(trained, _nodes.job_id.in_(jobs))
        .order_by(_nodes.job_id, _nodes.generation)
    )
    machines = [TrainedNode(*row[:8], bool(row[8]), bool(row[9])) for row in conn.execute(query)]
    if not machines:
        return []
    by_attempt = (_nodes.job_id, _nodes.generation)
    asked = select(*by_attempt, func.min(_nodes.requested_at_us)).where(_nodes.job_id.in_(jobs))
    saved = select(_saves.job_id, _saves.generation, func.max(_saves.step)).where(
        _saves.job_id.in_(jobs), _saves.bytes > 0
    )
    return recoveries(
        machines,
        {(row[0], row[1]): row[2] for row in conn.execute(asked.group_by(*by_attempt))},
        {
            (row[0], row[1]): row[2]
            for row in conn.execute(saved.group_by(_saves.job_id, _saves.generation))
        },
    )


def _finished(conn: Connection) -> dict[str, int]:
    query = select(_jobs.outcome, func.count()).where(_jobs.outcome.is_not(None))
    return {outcome: int(count) for outcome, count in conn.execute(query.group_by(_jobs.outcome))}


def _newest_saves(conn: Connection) -> dict[str, int]:
    unfinished = select(_jobs.id).where(_jobs.outcome.is_(None))
    query = select(_saves.job_id, func.max(_saves.committed_at_us)).where(
        _saves.bytes > 0, _saves.job_id.in_(unfinished)
    )
    return {job_id: int(at_us) for job_id, at_us in conn.execute(query.group_by(_saves.job_id))}


def _overdue_us(conn: Connection, now_us: int) -> int:
    due = and_(_jobs.due_at_us > 0, _jobs.due_at_us <= now_us, _jobs.claim_until_us <= now_us)
    return int(conn.execute(select(func.min(_jobs.due_at_us)).where(due)).scalar_one() or 0)


def _held(conn: Connection, now_us: int) -> dict[str, int]:
    """Holder -> number of duties; duties with an expired lease belong to ""."""
    counts: dict[str, int] = defaultdict(int)
    for holder, until_us in conn.execute(select(_duties.holder, _duties.until_us)):
        counts[holder if until_us > now_us else ""] += 1
    return counts


def _disabled(conn: Connection) -> dict[str, bool]:
    query = select(_providers.name, _providers.disabled)
    return {name: bool(why) for name, why in conn.execute(query)}
