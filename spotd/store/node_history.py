"""The lifetimes of machines: for placement, and for statistics of interruptions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Connection,
    RowMapping,
    and_,
    case,
    func,
    or_,
    select,
)

from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.states import LeaveReason
from spotd.history.interruption_stats import MachineLife
from spotd.planner.core.checkpoint_interval import ObservedLifetimes
from spotd.store import schema
from spotd.store.codec import decode_offer
from spotd.store.notices import FIRST_WARNINGS
from spotd.store.rows import NOT_GONE
from spotd.store.session import Repository, read

MOST_STAYS = 5000  # the newest: a fleet that asks for more a month learns from a shorter past
_nodes = schema.nodes.c
_HEARD = case((_nodes.heard_at_us > _nodes.seen_at_us, _nodes.heard_at_us), else_=_nodes.seen_at_us)
_HERE = _nodes.moved_at_us > 0  # it was up already, in the attempt before
_STAYS = (
    select(
        _nodes.id.label("node_id"),
        _nodes.offer_key,
        case((_HERE, _nodes.moved_at_us), else_=_nodes.requested_at_us).label("asked_at_us"),
        case((_nodes.instance_id == "", _nodes.launch_error_code), else_="").label("refused"),
        _nodes.launched_at_us.label("began_at_us"),
        case((_HERE, 0), else_=_nodes.first_step_at_us).label("trained_at_us"),
        case((_nodes.left_at_us > 0, _nodes.left_at_us), else_=_HEARD).label("until_us"),
        _nodes.leave_reason,
    )
    .order_by(_nodes.requested_at_us.desc(), _nodes.id.desc())
    .limit(MOST_STAYS)
)


def _stay(row: RowMapping) -> NodeLifetime:
    values: dict[str, Any] = dict(row)
    left = values.pop("leave_reason")
    return NodeLifetime(**values, left=LeaveReason(left) if left else None)


_nodes, _jobs = schema.nodes.c, schema.jobs.c
_RESUMES = and_(
    _nodes.rank == 0,
    _jobs.first_step_at_us > 0,
    _jobs.first_step_at_us < _nodes.claimed_at_us,
)


class NodeHistoryRepository(Repository):
    """The lifetimes of machines."""

    @read
    def observed_lifetimes(self, conn: Connection, since_us: int) -> list[ObservedLifetimes]:
        """Return machine time since `since_us` by offer, and the number of preempted or lost
        machines.

        A machine's time counts from its launch until it left; while it runs, until its last listing
        or message.
        """
        nodes = schema.nodes.c
        began = case((nodes.launched_at_us > since_us, nodes.launched_at_us), else_=since_us)
        last_seen = case(
            (nodes.heard_at_us > nodes.seen_at_us, nodes.heard_at_us), else_=nodes.seen_at_us
        )
        ended = case((nodes.left_at_us > 0, nodes.left_at_us), else_=last_seen)
        lost = nodes.leave_reason.in_([LeaveReason.PREEMPTED.value, LeaveReason.LOST.value])
        query = (
            select(nodes.offer_key, func.sum(ended - began), func.sum(case((lost, 1), else_=0)))
            .where(nodes.launched_at_us > 0, ended > began)
            .group_by(nodes.offer_key)
            .order_by(nodes.offer_key)
        )
        return [
            ObservedLifetimes(key, int(time_us), int(losses))
            for key, time_us, losses in conn.execute(query)
        ]

    @read
    def fleet(self, conn: Connection, since_us: int, now_us: int) -> FleetHistory:
        """The lifetimes of nodes requested since `since_us` and of those that live; the newest
        MAX_LIFETIMES at most."""
        asked = _nodes.requested_at_us > since_us
        lives = and_(NOT_GONE, _nodes.launched_at_us > 0)
        rows = conn.execute(_STAYS.where(or_(asked, lives))).mappings()
        return FleetHistory(tuple(reversed([_stay(row) for row in rows])), since_us, now_us)

    @read
    def machine_lives(self, conn: Connection, since_us: int) -> list[MachineLife]:
        """Every machine requested since `since_us` or alive after it, oldest request first."""
        seen = case(
            (_nodes.heard_at_us > _nodes.seen_at_us, _nodes.heard_at_us), else_=_nodes.seen_at_us
        )
        ended = case((_nodes.left_at_us > 0, _nodes.left_at_us), else_=seen).label("ended_us")
        query = (
            select(
                _nodes.offer,
                _nodes.requested_at_us,
                _nodes.launched_at_us,
                _nodes.hello_at_us,
                ended,
                _nodes.leave_reason,
                _nodes.launch_error_code,
                FIRST_WARNINGS.c.heard,
                FIRST_WARNINGS.c.deadline,
                _nodes.heard_at_us,
                or_(_nodes.released_at_us > 0, _nodes.exited_at_us > 0).label("returned"),
                case((_RESUMES, _nodes.claimed_at_us), else_=0).label("resumed_us"),
                _nodes.first_step_at_us,
                and_(_RESUMES, func.coalesce(_nodes.resumed_step, -1) == 0).label("anew"),
            )
            .join(schema.jobs, _jobs.id == _nodes.job_id)
            .join(FIRST_WARNINGS, FIRST_WARNINGS.c.node_id == _nodes.id, isouter=True)
            .where(
                or_(
                    _nodes.requested_at_us >= since_us,
                    and_(_nodes.launched_at_us > 0, ended > since_us),
                )
            )
            .order_by(_nodes.requested_at_us, _nodes.id)
        )
        lifetimes = []
        for row in conn.execute(query):
            offer = decode_offer(row.offer)
            lifetimes.append(
                MachineLife(
                    offer_key=offer.key,
                    cloud=offer.cloud,
                    requested_us=row.requested_at_us,
                    launched_us=row.launched_at_us,
                    hello_us=row.hello_at_us,
                    ended_us=row.ended_us if row.launched_at_us else 0,
                    reason=LeaveReason(row.leave_reason) if row.leave_reason else None,
                    refused=row.launch_error_code,
                    notice_us=row.heard or 0,
                    deadline_us=row.deadline,
                    heard_us=row.heard_at_us,
                    returned=bool(row.returned),
                    accelerator=offer.accelerator,
                    accelerator_count=offer.accelerator_count,
                    resumed_us=row.resumed_us,
                    trained_us=row.first_step_at_us,
                    anew=bool(row.anew),
                )
            )
        return lifetimes
