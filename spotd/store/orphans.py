"""What keeps machines from leaking: who asked for one, until when it may go on without us, and what
a person said about those that nobody wants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, case, or_, select, update

from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.store import schema
from spotd.store.orphan_records import NodeRowTimes, OwnedResource

RELEASED = "orphans_released/"  # and what: the counter that keeps the time

_counters, _nodes = schema.counters.c, schema.nodes.c
_SOME = 500  # instances in one statement
_PAST = (
    _nodes.token,
    _nodes.instance_id,
    _nodes.state,
    _nodes.gone_at_us,
    _nodes.terminated_at_us,
)


def asked_for(
    conn: Connection, provider: str, instances: Sequence[OwnedResource]
) -> dict[str, NodeRowTimes]:
    """See LeakRecords.asked_for."""
    found: dict[str, NodeRowTimes] = {}
    for at in range(0, len(instances), _SOME):
        some = instances[at : at + _SOME]
        tokens = sorted({i.token for i in some if i.token})
        ids = sorted({i.instance_id for i in some})
        same = or_(_nodes.token.in_(tokens), _nodes.instance_id.in_(ids))
        query = select(*_PAST).where(_nodes.provider == provider, same)
        rows: list[Any] = list(conn.execute(query))
        found |= matched(rows, some)
    return found


def matched(
    rows: Iterable[Row[Any] | Node], instances: Sequence[OwnedResource]
) -> dict[str, NodeRowTimes]:
    """Which instances are those of `rows`, and what became of these."""
    found = [(row, _past(row)) for row in rows]
    by_id = {row.instance_id: past for row, past in found if row.instance_id}
    by_token = {row.token: past for row, past in found}
    # One with an id of ours and somebody else's token is not the machine that our row is about.
    pasts = {
        i.instance_id: by_token.get(i.token) if i.token else by_id.get(i.instance_id)
        for i in instances
    }
    return {instance_id: past for instance_id, past in pasts.items() if past is not None}


def _past(row: Row[Any] | Node) -> NodeRowTimes:
    gone = row.state == NodeState.GONE.value
    return NodeRowTimes(row.gone_at_us if gone else 0, row.terminated_at_us)


def record_renewed(conn: Connection, node_id: str, until_us: int) -> None:
    """See LeakRecords.record_renewed."""
    earlier = (_nodes.id == node_id) & (_nodes.renewed_until_us < until_us)
    conn.execute(update(schema.nodes).where(earlier).values(renewed_until_us=until_us))


def release(conn: Connection, name: str, at_us: int) -> None:
    """See LeakRecords.release_orphans."""
    where = _counters.name == RELEASED + name
    later = case((_counters.value > at_us, _counters.value), else_=at_us)
    if not conn.execute(update(schema.counters).where(where).values(value=later)).rowcount:
        conn.execute(schema.counters.insert().values(name=RELEASED + name, value=at_us))


def released_us(conn: Connection, name: str) -> int:
    """See LeakRecords.orphans_released_us."""
    query = select(_counters.value).where(_counters.name == RELEASED + name)
    return int(conn.execute(query).scalar_one_or_none() or 0)
