"""Fault drills."""

from __future__ import annotations

from spotd.domain.events import Event
from spotd.domain.fault_drill import FaultDrill
from spotd.store.drills import STAYING
from tests.sim.memory.transaction import Transaction


def add(tx: Transaction, drill: FaultDrill) -> FaultDrill:
    """See Store.drills.add."""
    table = tx.tables.drills
    if drill.id in table:
        return table[drill.id]
    for one in table.values():
        if one.job_id == drill.job_id and not one.ended_at_us:
            return one
    tx.put(table, drill.id, drill)
    return drill


def change(tx: Transaction, drill: FaultDrill, said: Event | None) -> bool:
    """See Store.drills.update."""
    at_us = max(drill.asked_at_us, drill.aimed_at_us, drill.struck_at_us, drill.ended_at_us)
    tx.touch({drill.job_id: at_us})
    known = tx.tables.drills.get(drill.id)
    if known is None or known.ended_at_us:
        return False
    tx.put(tx.tables.drills, drill.id, drill)
    if said is not None:
        tx.event(drill.job_id, said, at_us)
    node = tx.tables.nodes.get(drill.node_id)
    stays = drill.spares and node is not None and node.state in STAYING
    if node is not None and (not drill.ended_at_us or stays):
        tx.change_node(node, drill="" if drill.ended_at_us else drill.kind.value)
    return True
