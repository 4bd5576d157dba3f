"""What became of the machines that were asked for: one narrow row each, for placement."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, and_, case, func, or_, select

from providers.base import NoticeKind
from spotd.past import Past, Stay
from spotd.states import LeaveReason
from spotd.store import schema
from spotd.store.rows import NOT_GONE

MOST_STAYS = 5000  # the newest: a fleet that asks for more a month learns from a shorter past

_nodes, _notices = schema.nodes.c, schema.notices.c
_WARNED = (
    select(_notices.node_id, func.min(_notices.heard_at_us).label("at_us"))
    .where(_notices.kind != NoticeKind.REBALANCE.value, ~_notices.withdrawn)
    .group_by(_notices.node_id)
    .subquery()
)
_HEARD = case((_nodes.heard_at_us > _nodes.seen_at_us, _nodes.heard_at_us), else_=_nodes.seen_at_us)
_STAYS = (
    select(
        _nodes.id,
        _nodes.offer_key,
        _nodes.requested_at_us,
        case((_nodes.instance_id == "", _nodes.launch_error_code), else_=""),
        _nodes.launched_at_us,
        _nodes.hello_at_us,
        _nodes.first_step_at_us,
        case((_nodes.left_at_us > 0, _nodes.left_at_us), else_=_HEARD),
        func.coalesce(_WARNED.c.at_us, 0),
        _nodes.leave_reason,
    )
    .outerjoin(_WARNED, _WARNED.c.node_id == _nodes.id)
    .order_by(_nodes.requested_at_us.desc(), _nodes.id.desc())
    .limit(MOST_STAYS)
)


def past(conn: Connection, since_us: int, now_us: int) -> Past:
    """See Store.past."""
    asked = _nodes.requested_at_us > since_us
    lives = and_(NOT_GONE, _nodes.launched_at_us > 0)
    rows = conn.execute(_STAYS.where(or_(asked, lives))).all()
    stays = [_stay(row) for row in rows]
    return Past(tuple(reversed(stays)), since_us, now_us)


def _stay(row: Row[Any]) -> Stay:
    told = tuple(row)
    return Stay(*told[:9], LeaveReason(told[9]) if told[9] else None)
