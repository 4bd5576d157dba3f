"""Fault drills."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from spotd.domain.events import Event
from spotd.domain.fault_drill import DrillEnd, DrillKind, FaultDrill, Findings
from spotd.domain.states import NodeState
from spotd.store import schema
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction

_row, _jobs, _nodes = schema.drills.c, schema.jobs.c, schema.nodes.c
_BIRTH = ("id", "job_id", "kind", "actor", "asked_at_us", "within_s")
STAYING = (NodeState.LAUNCHING, NodeState.BOOTING, NodeState.RUNNING)


class DrillRepository(Repository):
    """Fault drills of jobs."""

    @write
    def add(self, tx: Transaction, drill: FaultDrill) -> FaultDrill:
        """Store a drill and return the drill on record.

        That is this one, the one of the same id, or the job's drill that has not ended, which
        excludes this one.
        """
        tx.conn.execute(select(_jobs.id).where(_jobs.id == drill.job_id).with_for_update()).all()
        open_one = (_row.job_id == drill.job_id) & (_row.ended_at_us == 0)
        query = select(schema.drills).where((_row.id == drill.id) | open_one)
        known = [_drill(row) for row in tx.conn.execute(query)]
        if known:
            return next((one for one in known if one.id == drill.id), known[0])
        tx.conn.execute(insert(schema.drills).values(**_values(drill)))
        return drill

    @read
    def rows(
        self, conn: Connection, job_id: str = "", *, unfinished: bool = False
    ) -> list[FaultDrill]:
        """Drills of one job or of all, in the order in which they were requested."""
        query = select(schema.drills).order_by(_row.asked_at_us, _row.id)
        if job_id:
            query = query.where(_row.job_id == job_id)
        if unfinished:
            query = query.where(_row.ended_at_us == 0)
        return [_drill(row) for row in conn.execute(query)]

    @write
    def update(self, tx: Transaction, drill: FaultDrill, event: Event | None = None) -> bool:
        """Update a drill, with an event of its job; False, changing nothing, if it has ended
        already.

        While it is aimed and not ended, its node is marked as a drill's target. At the end of the
        drill a node that stays loses the mark; a node that got the fault keeps it.
        """
        at_us = max(drill.asked_at_us, drill.aimed_at_us, drill.struck_at_us, drill.ended_at_us)
        tx.touch({drill.job_id: at_us})
        values = {name: value for name, value in _values(drill).items() if name not in _BIRTH}
        where = (_row.id == drill.id) & (_row.ended_at_us == 0)
        if not tx.conn.execute(update(schema.drills).where(where).values(**values)).rowcount:
            return False
        if event is not None:
            tx.event(drill.job_id, event, at_us)
        if drill.node_id and (not drill.ended_at_us or drill.spares):
            node = update(schema.nodes).where(_nodes.id == drill.node_id)
            if drill.ended_at_us:
                node = node.where(_nodes.state.in_([state.value for state in STAYING]))
            tx.conn.execute(node.values(drill="" if drill.ended_at_us else drill.kind.value))
        return True


def _values(drill: FaultDrill) -> dict[str, Any]:
    end = drill.end.value if drill.end else None
    findings = json.dumps(asdict(drill.found))
    values = {**vars(drill), "kind": drill.kind.value, "outcome": end, "found": findings}
    del values["end"]
    return values


def _drill(row: Row[Any]) -> FaultDrill:
    values = dict(row._mapping)  # noqa: SLF001 - the public name of a row's mapping
    values["kind"] = DrillKind(values["kind"])
    end = values.pop("outcome")
    values["end"] = DrillEnd(end) if end else None
    values["found"] = Findings(**json.loads(values["found"] or "{}"))
    return FaultDrill(**values)
