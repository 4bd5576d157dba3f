"""The part of the store's contract about people: what they did, who is shut out, and what the
master key seals for them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from spotd.security.master_key import KeyState, SealedValue
from spotd.store.records import AuditRow, DisabledUser, SecretRow


class AccessRecords(Protocol):
    """A part of `spotd.store.interface.Store`."""

    # --- people

    def add_audit(self, row: AuditRow) -> None:
        """Add a line to the audit; nothing ever changes or deletes one. `row.id` is chosen here."""
        ...

    def audit(self, since_us: int, after_id: int = 0, limit: int = 500) -> list[AuditRow]:
        """Lines of the audit since a moment, after an id, oldest first."""
        ...

    def job_owners(self) -> dict[str, str]:
        """Id -> user of every job that is not finished."""
        ...

    def disabled_users(self) -> list[DisabledUser]:
        """By name."""
        ...

    def disable_user(self, row: DisabledUser) -> list[str]:
        """Shut a user out, and make the unfinished jobs those of the successor: their ids; each has
        an event that says so. Raises NoSuccessorError where there are such jobs and no successor;
        nobody is shut out then."""
        ...

    def enable_user(self, name: str) -> bool:
        """False when the user was not shut out."""
        ...

    def add_admission(self, node_id: str, user: str, at_us: int) -> None:
        """A machine is to be given a key of a user; told before it is."""
        ...

    def shut_out(self) -> list[tuple[str, str]]:
        """(node id, user) where the machine is not gone and may have a key of a disabled user."""
        ...

    def record_dismissed(self, node_id: str, user: str, at_us: int) -> None:
        """The machine has no key of the user any more, of those it was given until `at_us`."""
        ...

    # --- the master key

    def key_state(self) -> KeyState: ...

    def keep_key_check(self, check: bytes) -> KeyState:
        """Make `check` that of the master key if there is none yet; the one that counts."""
        ...

    def rotate_key(
        self, epoch: int, check: bytes, reseal: Callable[[SealedValue], bytes]
    ) -> KeyState:
        """Replace every sealed value by what `reseal` makes of it, and the check: all or nothing.
        Raises StaleKeyError when `epoch` is not the present one."""
        ...

    # --- secrets that the deployment keeps, as ciphertexts

    def kept_secrets(self) -> list[SecretRow]:
        """By name."""
        ...

    def kept_secret_values(self, names: Collection[str]) -> dict[str, bytes]:
        """Those of these names that there are."""
        ...

    def keep_secret(self, row: SecretRow, value: bytes, key_epoch: int) -> None:
        """New, or instead of what had that name. Raises StaleKeyError."""
        ...

    def drop_secret(self, name: str) -> bool:
        """False when there was none of that name."""
        ...
