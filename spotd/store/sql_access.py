"""The part of SqlStore about people and the master key; see `spotd.store.access`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from spotd.store import audit, sealed_values, users
from spotd.store.engine import Database
from spotd.store.interface import AuditRow, DisabledUser, KeyState, SealedValue, SecretRow
from spotd.store.transaction import Transaction

T = TypeVar("T")


class SqlAccess(Protocol):
    """A part of `spotd.store.sql_store.SqlStore`, which has what it works on."""

    _database: Database

    def _write(self, work: Callable[[Transaction], T], *, ahead: bool = False) -> T: ...

    # --- people

    def add_audit(self, row: AuditRow) -> None:
        self._write(lambda tx: audit.add_audit(tx, row))

    def audit(self, since_us: int, after_id: int = 0, limit: int = 500) -> list[AuditRow]:
        return self._database.read(lambda c: audit.audit(c, since_us, after_id, limit))

    def job_owners(self) -> dict[str, str]:
        return self._database.read(users.job_owners)

    def disabled_users(self) -> list[DisabledUser]:
        return self._database.read(users.disabled_users)

    def disable_user(self, row: DisabledUser) -> list[str]:
        return self._write(lambda tx: users.disable_user(tx, row))

    def enable_user(self, name: str) -> bool:
        return self._write(lambda tx: users.enable_user(tx, name))

    def add_admission(self, node_id: str, user: str, at_us: int) -> None:
        self._write(lambda tx: users.add_admission(tx, node_id, user, at_us))

    def shut_out(self) -> list[tuple[str, str]]:
        return self._database.read(users.shut_out)

    def record_dismissed(self, node_id: str, user: str, at_us: int) -> None:
        self._write(lambda tx: users.record_dismissed(tx, node_id, user, at_us))

    # --- the master key

    def key_state(self) -> KeyState:
        return self._database.read(sealed_values.key_state)

    def keep_key_check(self, check: bytes) -> KeyState:
        return self._database.write(lambda c: sealed_values.keep_key_check(c, check))

    def rotate_key(
        self, epoch: int, check: bytes, reseal: Callable[[SealedValue], bytes]
    ) -> KeyState:
        return self._database.write(lambda c: sealed_values.rotate_key(c, epoch, check, reseal))

    def kept_secrets(self) -> list[SecretRow]:
        return self._database.read(sealed_values.kept_secrets)

    def kept_secret_values(self, names: Collection[str]) -> dict[str, bytes]:
        return self._database.read(lambda c: sealed_values.kept_secret_values(c, names))

    def keep_secret(self, row: SecretRow, value: bytes, key_epoch: int) -> None:
        self._database.write(lambda c: sealed_values.keep_secret(c, row, value, key_epoch))

    def drop_secret(self, name: str) -> bool:
        return self._database.write(lambda c: sealed_values.drop_secret(c, name))
