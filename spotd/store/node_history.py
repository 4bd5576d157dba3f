"""Every machine that was asked for of late, in one query; see
`spotd.history.interruption_stats`."""

from __future__ import annotations

from sqlalchemy import Connection, and_, case, func, or_, select

from providers.base import NoticeKind
from spotd.domain.states import LeaveReason
from spotd.history.interruption_stats import MachineLife
from spotd.store import schema
from spotd.store.codec import decode_offer
from spotd.wire import DRILL_SOURCE

_nodes, _notices, _jobs = schema.nodes.c, schema.notices.c, schema.jobs.c

# Of each machine the notices in force that take it away: when the first was heard, and the earliest
# deadline. A rebalance recommendation takes nothing away.
_TOLD = (
    select(
        _notices.node_id,
        func.min(_notices.heard_at_us).label("heard"),
        func.min(_notices.deadline_us).label("deadline"),
    )
    .where(
        ~_notices.withdrawn,
        _notices.kind != NoticeKind.REBALANCE.value,
        _notices.source != DRILL_SOURCE,
    )
    .group_by(_notices.node_id)
    .subquery()
)

_RESUMES = and_(
    _nodes.rank == 0,
    _jobs.first_step_at_us > 0,
    _jobs.first_step_at_us < _nodes.claimed_at_us,
)


def machine_lives(conn: Connection, since_us: int) -> list[MachineLife]:
    """See LifeRecords.machine_lives."""
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
            _TOLD.c.heard,
            _TOLD.c.deadline,
            _nodes.heard_at_us,
            or_(_nodes.released_at_us > 0, _nodes.exited_at_us > 0).label("returned"),
            case((_RESUMES, _nodes.claimed_at_us), else_=0).label("resumed_us"),
            _nodes.first_step_at_us,
        )
        .join(schema.jobs, _jobs.id == _nodes.job_id)
        .join(_TOLD, _TOLD.c.node_id == _nodes.id, isouter=True)
        .where(
            or_(
                _nodes.requested_at_us >= since_us,
                and_(_nodes.launched_at_us > 0, ended > since_us),
            )
        )
        .order_by(_nodes.requested_at_us, _nodes.id)
    )
    found = []
    for row in conn.execute(query):
        offer = decode_offer(row.offer)
        found.append(
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
            )
        )
    return found
