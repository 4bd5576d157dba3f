"""The part of MemoryStore about what became of machines; see `spotd.store.life_records`."""

from __future__ import annotations

from spotd.history.lives import MachineLife
from tests.sim.memory import lives
from tests.sim.memory.kept_invoices import MemoryInvoices


class MemoryLives(MemoryInvoices):
    """A part of `tests.sim.memory_store.MemoryStore`, which has what it works on."""

    def machine_lives(self, since_us: int) -> list[MachineLife]:
        return lives.machine_lives(self._here(), since_us)
