"""The part of the store's contract about what became of machines, and of prices and capacity."""

from __future__ import annotations

from typing import Protocol

from spotd.history.lives import MachineLife


class LifeRecords(Protocol):
    """A part of `spotd.store.base.Store`."""

    def machine_lives(self, since_us: int) -> list[MachineLife]:
        """Every machine that was asked for since, or lived after that: oldest request first."""
        ...
