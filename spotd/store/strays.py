"""What keeps machines from leaking: who asked for one, until when it may go on without us, and what
a person said about those that nobody wants."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, case, or_, select, update

from providers.base import Instance
from spotd.store import schema

RELEASED = "orphans_released"  # the counter that keeps the time

_counters, _nodes = schema.counters.c, schema.nodes.c
_SOME = 500  # instances in one statement


def asked_for(conn: Connection, provider: str, instances: Sequence[Instance]) -> set[str]:
    """See LeakRecords.asked_for."""
    found: set[str] = set()
    for at in range(0, len(instances), _SOME):
        some = instances[at : at + _SOME]
        tokens = sorted({i.token for i in some if i.token})
        ids = sorted({i.instance_id for i in some})
        same = or_(_nodes.token.in_(tokens), _nodes.instance_id.in_(ids))
        query = select(_nodes.token, _nodes.instance_id).where(_nodes.provider == provider, same)
        rows = conn.execute(query).all()
        known = {row.token for row in rows}, {row.instance_id for row in rows}
        found |= {i.instance_id for i in some if i.token in known[0] or i.instance_id in known[1]}
    return found


def record_renewed(conn: Connection, node_id: str, until_us: int) -> None:
    """See LeakRecords.record_renewed."""
    earlier = (_nodes.id == node_id) & (_nodes.renewed_until_us < until_us)
    conn.execute(update(schema.nodes).where(earlier).values(renewed_until_us=until_us))


def release(conn: Connection, at_us: int) -> None:
    """See LeakRecords.release_orphans."""
    where = _counters.name == RELEASED
    later = case((_counters.value > at_us, _counters.value), else_=at_us)
    if not conn.execute(update(schema.counters).where(where).values(value=later)).rowcount:
        conn.execute(schema.counters.insert().values(name=RELEASED, value=at_us))


def released_us(conn: Connection) -> int:
    """See LeakRecords.orphans_released_us."""
    query = select(_counters.value).where(_counters.name == RELEASED)
    return int(conn.execute(query).scalar_one_or_none() or 0)
