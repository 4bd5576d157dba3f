"""The hand-over from the attempt that trained before to the one that begins to train now."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, func, select

from spotd.domain.job import Job
from spotd.domain.lost_work import HandOver, trained_attempts
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.store import schema
from spotd.store.rows import nodes_query, read_nodes

_nodes, _saves = schema.nodes.c, schema.checkpoints.c
_others = schema.nodes.alias("others")
_OLD_GENERATION = (
    select(func.max(_others.c.generation))
    .where(
        _others.c.job_id == bindparam("job"),
        _others.c.generation < bindparam("generation"),
        _others.c.rank == 0,
        _others.c.first_step_at_us > 0,
    )
    .scalar_subquery()
)
_OLD = nodes_query(
    _nodes.job_id == bindparam("job"),
    _nodes.generation == _OLD_GENERATION,
    _nodes.rank == 0,
)
_SAVED_AT = select(func.max(_saves.committed_at_us)).where(
    _saves.job_id == bindparam("job"),
    _saves.generation < bindparam("generation"),
    _saves.bytes > 0,
)


def begins_to_train(nodes: Sequence[Node]) -> Node | None:
    """The machine of rank 0 that made its first step, which no decision has noted yet."""
    return next(
        (
            node
            for node in nodes
            if node.state is NodeState.BOOTING
            and node.rank == 0
            and node.chosen
            and node.training.first_step_at_us
        ),
        None,
    )


def hand_over_of(conn: Connection, job: Job, nodes: Sequence[Node]) -> HandOver | None:
    """The hand-over to the machine that begins to train; None if there is none, or none before."""
    new = begins_to_train(nodes)
    if new is None or new.generation == 1:
        return None
    ids = {"job": job.id, "generation": new.generation}
    old = trained_attempts(read_nodes(conn, _OLD, ids), job.spec.resources.num_nodes)
    if not old:
        return None
    saved_at_us = conn.execute(_SAVED_AT, ids).scalar_one_or_none() or 0
    return HandOver(old[-1], saved_at_us, reports_steps=job.spec.checkpoint.engine == "spotd")
