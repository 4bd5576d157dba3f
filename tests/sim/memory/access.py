"""The part of MemoryStore about people and the master key."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from spotd.store.interface import AuditRow, DisabledUser, KeyState, SealedValue, SecretRow
from tests.sim.memory import people, sealed
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")


class MemoryAccess(Protocol):
    """A part of `tests.sim.memory_store.MemoryStore`, which has what it works on."""

    def _here(self) -> Tables: ...

    def _write(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    # --- people

    def add_audit(self, row: AuditRow) -> None:
        self._write(people.add_audit, row)

    def audit(self, since_us: int, after_id: int = 0, limit: int = 500) -> list[AuditRow]:
        return people.audit(self._here(), since_us, after_id, limit)

    def job_owners(self) -> dict[str, str]:
        return people.job_owners(self._here())

    def disabled_users(self) -> list[DisabledUser]:
        return people.disabled_users(self._here())

    def disable_user(self, row: DisabledUser) -> list[str]:
        return self._write(people.disable_user, row)

    def enable_user(self, name: str) -> bool:
        return self._write(people.enable_user, name)

    def add_admission(self, node_id: str, user: str, at_us: int) -> None:
        self._write(people.add_admission, node_id, user, at_us)

    def shut_out(self) -> list[tuple[str, str]]:
        return people.shut_out(self._here())

    def record_dismissed(self, node_id: str, user: str, at_us: int) -> None:
        self._write(people.record_dismissed, node_id, user, at_us)

    # --- the master key

    def key_state(self) -> KeyState:
        return self._here().key

    def keep_key_check(self, check: bytes) -> KeyState:
        return self._write(sealed.keep_key_check, check)

    def rotate_key(
        self, epoch: int, check: bytes, reseal: Callable[[SealedValue], bytes]
    ) -> KeyState:
        return self._write(sealed.rotate_key, epoch, check, reseal)

    def kept_secrets(self) -> list[SecretRow]:
        return sealed.kept_secrets(self._here())

    def kept_secret_values(self, names: Collection[str]) -> dict[str, bytes]:
        return sealed.kept_secret_values(self._here(), names)

    def keep_secret(self, row: SecretRow, value: bytes, key_epoch: int) -> None:
        self._write(sealed.keep_secret, row, value, key_epoch)

    def drop_secret(self, name: str) -> bool:
        return self._write(sealed.drop_secret, name)
