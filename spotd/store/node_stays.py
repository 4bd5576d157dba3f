"""What became of the machines that were asked for: one narrow row each, for placement."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, RowMapping, and_, case, func, or_, select

from providers.base import NoticeKind
from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.states import LeaveReason
from spotd.store import schema
from spotd.store.rows import NOT_GONE
from spotd.wire import DRILL_SOURCE

MOST_STAYS = 5000  # the newest: a fleet that asks for more a month learns from a shorter past

_nodes, _notices = schema.nodes.c, schema.notices.c
_WARNED = (
    select(_notices.node_id, func.min(_notices.heard_at_us).label("at_us"))
    .where(
        _notices.kind != NoticeKind.REBALANCE.value,
        ~_notices.withdrawn,
        _notices.source != DRILL_SOURCE,
    )
    .group_by(_notices.node_id)
    .subquery()
)
_HEARD = case((_nodes.heard_at_us > _nodes.seen_at_us, _nodes.heard_at_us), else_=_nodes.seen_at_us)
_HERE = _nodes.moved_at_us > 0  # it was up already, in the attempt before
_STAYS = (
    select(
        _nodes.id.label("node_id"),
        _nodes.offer_key,
        case((_HERE, _nodes.moved_at_us), else_=_nodes.requested_at_us).label("asked_at_us"),
        case((_nodes.instance_id == "", _nodes.launch_error_code), else_="").label("refused"),
        _nodes.launched_at_us.label("began_at_us"),
        case((_HERE, 0), else_=_nodes.hello_at_us).label("up_at_us"),
        case((_HERE, 0), else_=_nodes.first_step_at_us).label("trained_at_us"),
        case((_nodes.left_at_us > 0, _nodes.left_at_us), else_=_HEARD).label("until_us"),
        func.coalesce(_WARNED.c.at_us, 0).label("warned_at_us"),
        _nodes.leave_reason,
    )
    .outerjoin(_WARNED, _WARNED.c.node_id == _nodes.id)
    .order_by(_nodes.requested_at_us.desc(), _nodes.id.desc())
    .limit(MOST_STAYS)
)


def past(conn: Connection, since_us: int, now_us: int) -> FleetHistory:
    """See Store.past."""
    asked = _nodes.requested_at_us > since_us
    lives = and_(NOT_GONE, _nodes.launched_at_us > 0)
    rows = conn.execute(_STAYS.where(or_(asked, lives))).mappings()
    return FleetHistory(tuple(reversed([_stay(row) for row in rows])), since_us, now_us)


def _stay(row: RowMapping) -> NodeLifetime:
    told: dict[str, Any] = dict(row)
    left = told.pop("leave_reason")
    return NodeLifetime(**told, left=LeaveReason(left) if left else None)
