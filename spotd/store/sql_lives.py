"""The part of SqlStore about what became of machines; see `spotd.store.life_records`."""

from __future__ import annotations

from typing import Protocol

from spotd.history.lives import MachineLife
from spotd.store import lives
from spotd.store.sql_invoices import SqlInvoices


class SqlLives(SqlInvoices, Protocol):
    """A part of `spotd.store.sql.SqlStore`, which has what it works on."""

    def machine_lives(self, since_us: int) -> list[MachineLife]:
        return self._database.read(lambda c: lives.machine_lives(c, since_us))
