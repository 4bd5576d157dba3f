"""The part of SqlStore about drills; see `spotd.store.drill_records`."""

from __future__ import annotations

from typing import Protocol

from spotd.domain.events import Event
from spotd.domain.fault_drill import FaultDrill
from spotd.store import drills
from spotd.store.sql_evaluations import SqlEvaluations


class SqlDrills(SqlEvaluations, Protocol):
    """A part of `spotd.store.sql_store.SqlStore`, which has what it works on."""

    def add_drill(self, drill: FaultDrill) -> FaultDrill:
        return self._write(lambda tx: drills.add(tx, drill))

    def set_drill(self, drill: FaultDrill, said: Event | None = None) -> bool:
        at_us = max(drill.asked_at_us, drill.aimed_at_us, drill.struck_at_us, drill.ended_at_us)
        return self._write(lambda tx: drills.change(tx, drill, at_us, said))

    def drills(self, job_id: str = "", *, unfinished: bool = False) -> list[FaultDrill]:
        return self._database.read(lambda c: drills.drills(c, job_id, unfinished=unfinished))
