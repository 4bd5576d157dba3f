"""The part of the store's contract about drills."""

from __future__ import annotations

from typing import Protocol

from spotd.domain.events import Event
from spotd.domain.fault_drill import FaultDrill
from spotd.store.evaluation_records import ResultRecords


class DrillRecords(ResultRecords, Protocol):
    """A part of `spotd.store.interface.Store`."""

    def add_drill(self, drill: FaultDrill) -> FaultDrill:
        """The drill on record: this one, the one of the same id, or the one of the same job that
        has not ended, which keeps this one out."""
        ...

    def set_drill(self, drill: FaultDrill, said: Event | None = None) -> bool:
        """What became of it since, with an event of its job that says so; false, and nothing is
        written, when it has ended already. While
        it is aimed and not ended, its node is one that a drill strikes; a node that is to stay is
        none any more at its end. One that was struck is, until its own end is heard of."""
        ...

    def drills(self, job_id: str = "", *, unfinished: bool = False) -> list[FaultDrill]:
        """Of that job or of all, in the order in which they were asked for."""
        ...
