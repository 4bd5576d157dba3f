"""Orphans, machines that belong to no node, and the permission to delete them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, case, or_, select, update

from spotd.domain.states import NodeState
from spotd.store import schema
from spotd.store.rows import NodeRow
from spotd.store.session import Repository, read, write_unfenced


class NodeRowTimes(NamedTuple):
    """When a machine's node was gone (0: it is not), and when the cloud accepted its end (0:
    never)."""

    gone_us: int
    ended_us: int


class OwnedResource(Protocol):
    """A resource with a machine's tags: the machine itself, or something it left behind."""

    @property
    def instance_id(self) -> str: ...

    @property
    def token(self) -> str: ...


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


class OrphanRepository(Repository):
    """Machines that belong to no node."""

    @read
    def known(
        self, conn: Connection, provider: str, instances: Sequence[OwnedResource]
    ) -> dict[str, NodeRowTimes]:
        """Return the instances, by id, that belong or belonged to a node, with the node's times.

        An instance belongs to the node with its token, or, without a token, with its instance id.
        """
        known_rows: dict[str, NodeRowTimes] = {}
        for at in range(0, len(instances), _SOME):
            some = instances[at : at + _SOME]
            tokens = sorted({i.token for i in some if i.token})
            ids = sorted({i.instance_id for i in some})
            same = or_(_nodes.token.in_(tokens), _nodes.instance_id.in_(ids))
            query = select(*_PAST).where(_nodes.provider == provider, same)
            rows: list[Any] = list(conn.execute(query))
            known_rows |= matched(rows, some)
        return known_rows

    @write_unfenced
    def release(self, conn: Connection, name: str, at_us: int) -> None:
        """Record that the operator allows the deletion of orphans that existed at `at_us`.

        `name` is a provider's for its machines, or the key of its leftovers
        (`orphan_policy.leftovers_of`).
        """
        where = _counters.name == RELEASED + name
        later = case((_counters.value > at_us, _counters.value), else_=at_us)
        if not conn.execute(update(schema.counters).where(where).values(value=later)).rowcount:
            conn.execute(schema.counters.insert().values(name=RELEASED + name, value=at_us))

    @read
    def released_us(self, conn: Connection, name: str) -> int:
        """The latest such time; 0 if there is none."""
        query = select(_counters.value).where(_counters.name == RELEASED + name)
        return int(conn.execute(query).scalar_one_or_none() or 0)


def matched(rows: Iterable[NodeRow], instances: Sequence[OwnedResource]) -> dict[str, NodeRowTimes]:
    """The instances that belong to `rows`, by id, with the times of those nodes."""
    pairs = [(row, _past(row)) for row in rows]
    by_id = {row.instance_id: past for row, past in pairs if row.instance_id}
    by_token = {row.token: past for row, past in pairs}
    # One with an id of ours and somebody else's token is not the machine that our row is about.
    pasts = {
        i.instance_id: by_token.get(i.token) if i.token else by_id.get(i.instance_id)
        for i in instances
    }
    return {instance_id: past for instance_id, past in pasts.items() if past is not None}


def _past(row: NodeRow) -> NodeRowTimes:
    gone = row.state == NodeState.GONE.value
    return NodeRowTimes(row.gone_at_us if gone else 0, row.terminated_at_us)
