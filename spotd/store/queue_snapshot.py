"""The queue as decisions see it: jobs that wait for capacity under the limits, and jobs with
machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, select

from spotd.domain.fast_replace import changed
from spotd.domain.job import Desired, Job, JobSpec
from spotd.domain.market import WaitingRequest
from spotd.domain.node import Node
from spotd.domain.queue import Limits, QueueEntry, QueueSnapshot, ResourceHolder
from spotd.domain.states import TRAINS_ON, LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.placement.scarce_offers import ANSWERS_US
from spotd.planner.queue.fair_share import KEPT_US, USE_US, in_order, use_of_late
from spotd.store import schema
from spotd.store.codec import decode_spec
from spotd.store.rows import NOT_GONE, ZERO, JobRow

SHARES_US = 60 * S  # how exact "of late" is: two daemons may know as much in a different minute

Used = Mapping[tuple[str, str], int]  # by project and user

_jobs, _nodes, _segments = schema.jobs.c, schema.nodes.c, schema.segments.c
_WAITING = select(
    _jobs.id,
    _jobs.name,
    _jobs.spec,
    _jobs.user_name,
    _jobs.created_at_us,
    _jobs.room_since_us,
    _jobs.room_microusd_per_h,
).where(
    _jobs.room_asked_us > ZERO,  # as in the index
    _jobs.room_asked_us > bindparam("since", type_=BigInteger),
    _jobs.outcome.is_(None),
    _jobs.desired == Desired.RUN.value,
)
_HOLDING = (
    select(
        _jobs.id,
        _jobs.name,
        _jobs.spec,
        _jobs.yielded_at_us,
        _jobs.yields_to,
        _nodes.state,
        _nodes.chosen,
        _nodes.rate_microusd_per_h,
        _nodes.first_step_at_us,
        _nodes.leave_reason,
        _nodes.released_at_us,
        _nodes.exit_code,
    )
    .join_from(schema.nodes, schema.jobs, _jobs.id == _nodes.job_id)
    .where(NOT_GONE)
    .order_by(_jobs.id)
)
_USED = (
    select(
        _jobs.spec,
        _jobs.user_name,
        _segments.rate_microusd_per_h,
        _segments.start_us,
        _segments.end_us,
    )
    .join_from(schema.segments, schema.jobs, _jobs.id == _segments.job_id)
    .where(
        _segments.state != "void",
        (_segments.end_us == ZERO) | (_segments.end_us > bindparam("since", type_=BigInteger)),
    )
)
_WANT = (_jobs.id, _jobs.name, _jobs.spec, _jobs.user_name, _jobs.created_at_us)
_ASK_AGAIN = (
    select(*_WANT, _jobs.offers_at_us)
    .where(
        _jobs.offers_at_us > ZERO,  # as in the index
        _jobs.outcome.is_(None),
        _jobs.desired == Desired.RUN.value,
    )
    .order_by(_jobs.id)
)
_ASKED = (
    select(*_WANT, _nodes.offer_key, _nodes.requested_at_us)
    .join_from(schema.nodes, schema.jobs, _jobs.id == _nodes.job_id)
    .where(
        _nodes.requested_at_us > bindparam("since", type_=BigInteger),
        _nodes.state == NodeState.LAUNCHING.value,
        _nodes.instance_id == "",
        _nodes.launch_error_code == "",
    )
    .order_by(_nodes.id)
)


class Machine(NamedTuple):
    """The facts of a node, not gone, that the queue needs."""

    state: NodeState
    trains: bool  # chosen, and may write
    first_step_at_us: int
    microusd_per_h: int
    going: bool  # it leaves, and nothing of its job waits for that


class PricedTime(NamedTuple):
    """A machine's time at one price; `end_us` 0 while it runs."""

    project: str
    user: str
    rate_microusd_per_h: int
    start_us: int
    end_us: int


def load(conn: Connection, limits: Limits, now_us: int, used: Callable[[], Used]) -> QueueSnapshot:
    """The queue now; empty if no job waits and no project has a limit.

    `used()` is called only if a job waits.
    """
    waiting = [
        turn_of(row, decode_spec(row.spec), row.user_name)
        for row in conn.execute(_WAITING, {"since": now_us - KEPT_US})
    ]
    if not waiting and not limits.projects:
        return QueueSnapshot()
    holding = []
    for _, rows in groupby(conn.execute(_HOLDING), key=lambda row: row.id):
        mine = list(rows)
        machines = [
            machine_of(
                state=NodeState(row.state),
                chosen=row.chosen,
                first_step_at_us=row.first_step_at_us,
                microusd_per_h=row.rate_microusd_per_h,
                leave_reason=row.leave_reason,
                ended=bool(row.released_at_us) or row.exit_code is not None,
            )
            for row in mine
        ]
        holding.append(holder_of(mine[0], decode_spec(mine[0].spec), machines))
    return line_of(waiting, holding, used() if waiting else {})


def askers(conn: Connection, now_us: int, used: Callable[[], Used]) -> tuple[WaitingRequest, ...]:
    """Jobs that wait for offers, and jobs with an unanswered request.

    In this order: a job that starts a request in between is found twice rather than never.
    """
    again = conn.execute(_ASK_AGAIN).all()
    asked = conn.execute(_ASKED, {"since": now_us - ANSWERS_US}).all()
    line = QueueSnapshot(used=used() if again or asked else {})
    requests: list[tuple[Any, int, str]] = [(row, row.offers_at_us, "") for row in again]
    requests += [(row, row.requested_at_us, row.offer_key) for row in asked]
    return tuple(
        asker_of(line, row, decode_spec(row.spec), row.user_name, at_us, key)
        for row, at_us, key in requests
    )


def used_of_late(conn: Connection, now_us: int) -> Used:
    """Recent use by project and user; see planner/queue/fair_share.py."""
    rows = conn.execute(_USED, {"since": now_us - USE_US})
    return add_up(
        (
            PricedTime(
                project=decode_spec(row.spec).queue.project,
                user=row.user_name,
                rate_microusd_per_h=row.rate_microusd_per_h,
                start_us=row.start_us,
                end_us=row.end_us,
            )
            for row in rows
        ),
        now_us,
    )


# --- without a database


def add_up(stretches: Iterable[PricedTime], now_us: int) -> Used:
    """Recent use by project and user."""
    sums: dict[tuple[str, str], int] = {}
    for stretch in stretches:
        end_us = stretch.end_us or now_us
        more = use_of_late(stretch.rate_microusd_per_h, stretch.start_us, end_us, now_us)
        sums[stretch.project, stretch.user] = sums.get((stretch.project, stretch.user), 0) + more
    return sums


def turn_of(row: JobRow, spec: JobSpec, user: str) -> QueueEntry:
    """The queue entry of a job."""
    return QueueEntry(
        job_id=row.id,
        name=row.name,
        nodes=spec.resources.num_nodes,
        microusd_per_h=row.room_microusd_per_h,
        priority=spec.queue.priority,
        project=spec.queue.project,
        user=user,
        created_at_us=row.created_at_us,
        since_us=row.room_since_us,
    )


def asker_of(
    line: QueueSnapshot, row: JobRow, spec: JobSpec, user: str, at_us: int, key: str = ""
) -> WaitingRequest:
    """Return the waiting request of a job that checks again at `at_us`, or requested the offer
    `key` then."""
    share = line.share(spec.queue.project, user)
    turn = QueueEntry(
        job_id=row.id,
        name=row.name,
        nodes=spec.resources.num_nodes,
        microusd_per_h=0,
        priority=spec.queue.priority,
        project=spec.queue.project,
        user=user,
        created_at_us=row.created_at_us,
        since_us=0,
        used_microusd=share,
    )
    return WaitingRequest(turn, spec, at_us, frozenset({key} if key else ()))


def machine_of(
    state: NodeState,
    chosen: bool,
    first_step_at_us: int,
    microusd_per_h: int,
    leave_reason: LeaveReason | str | None,
    *,
    ended: bool,
) -> Machine:
    """The machine of a node's columns."""
    trains = state is NodeState.RUNNING and chosen and not ended
    draining = state is NodeState.DRAINING and leave_reason not in TRAINS_ON
    going = draining or state is NodeState.TERMINATING
    return Machine(state, trains, first_step_at_us, microusd_per_h, going)


def holder_of(row: JobRow, spec: JobSpec, machines: Sequence[Machine]) -> ResourceHolder:
    """The holder entry of a job with its machines that are not gone."""
    going = [machine for machine in machines if machine.going]
    first_us = max(machine.first_step_at_us for machine in machines)
    # Only a program with our engine saves reliably on request.
    whole = spec.checkpoint.engine == "spotd" and not spec.program.bake
    whole = (
        whole
        and len(machines) == spec.resources.num_nodes
        and all(machine.trains for machine in machines)
    )
    return ResourceHolder(
        row.id,
        row.name,
        nodes=len(machines),
        microusd_per_h=sum(machine.microusd_per_h for machine in machines),
        leaving_nodes=len(going),
        leaving_microusd_per_h=sum(one.microusd_per_h for one in going),
        priority=spec.queue.priority,
        project=spec.queue.project,
        trains_since_us=first_us if whole else 0,
        yielded_at_us=row.yielded_at_us,
        yields_to=row.yields_to,
    )


def line_of(
    waiting: Iterable[QueueEntry], holding: Sequence[ResourceHolder], used: Used
) -> QueueSnapshot:
    """The queue, in order."""
    line = QueueSnapshot((), tuple(holding), used)
    entries = [changed(turn, used_microusd=line.share(turn.project, turn.user)) for turn in waiting]
    return changed(line, waiting=in_order(entries))


def asking(line: QueueSnapshot, job: Job, user: str, added: Sequence[Node]) -> QueueEntry:
    """Return the entry of a job that is about to launch `added`."""
    spec = job.spec
    return QueueEntry(
        job_id=job.id,
        name=job.name,
        nodes=len(added),
        microusd_per_h=sum(node.offer.price_microusd_per_h for node in added),
        priority=spec.queue.priority,
        project=spec.queue.project,
        user=user,
        created_at_us=job.created_at_us,
        used_microusd=line.share(spec.queue.project, user),
    )


def placed(line: QueueSnapshot, turn: QueueEntry) -> QueueSnapshot:
    """The queue once `turn` has what it requested."""
    waiting = tuple(one for one in line.waiting if one.job_id != turn.job_id)
    has = ResourceHolder(
        turn.job_id, turn.name, turn.nodes, turn.microusd_per_h, project=turn.project
    )
    return changed(line, waiting=waiting, holding=(*line.holding, has))
