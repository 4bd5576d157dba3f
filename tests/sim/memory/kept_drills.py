"""The part of MemoryStore about drills; see `spotd.store.drill_records`."""

from __future__ import annotations

from spotd.domain.events import Event
from spotd.domain.fault_drill import FaultDrill
from spotd.store.drills import STAYING
from tests.sim.memory.kept_evaluations import MemoryEvaluations
from tests.sim.memory.transaction import Transaction


class MemoryDrills(MemoryEvaluations):
    """A part of `tests.sim.memory_store.MemoryStore`, which has what it works on."""

    def add_drill(self, drill: FaultDrill) -> FaultDrill:
        return self._write(add, drill)

    def set_drill(self, drill: FaultDrill, said: Event | None = None) -> bool:
        return self._write(change, drill, said)

    def drills(self, job_id: str = "", *, unfinished: bool = False) -> list[FaultDrill]:
        found = sorted(self._here().drills.values(), key=lambda one: (one.asked_at_us, one.id))
        own = [one for one in found if job_id in ("", one.job_id)]
        return [one for one in own if not (unfinished and one.ended_at_us)]


def add(tx: Transaction, drill: FaultDrill) -> FaultDrill:
    """See DrillRecords.add_drill."""
    table = tx.tables.drills
    if drill.id in table:
        return table[drill.id]
    for one in table.values():
        if one.job_id == drill.job_id and not one.ended_at_us:
            return one
    tx.put(table, drill.id, drill)
    return drill


def change(tx: Transaction, drill: FaultDrill, said: Event | None) -> bool:
    """See DrillRecords.set_drill."""
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
