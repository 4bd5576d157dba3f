"""Values sealed with the master key: stored, and resealed when the key is rotated.

A value sealed with the old key and stored after a rotation would never open again. So a writer
names the epoch of its key, and locks the row that holds the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from spotd.security.master_key import KeyState, SealedValue
from spotd.store import schema
from spotd.store.errors import StaleKeyError
from spotd.store.session import Repository, read, write_unfenced


@dataclass(frozen=True)
class SecretRow:
    """A secret of the deployment, without its value."""

    name: str
    set_at_us: int
    set_by: str


_deployment, _jobs = schema.deployment.c, schema.jobs.c
_secrets, _kept = schema.secrets.c, schema.kept_secrets.c


class SecretRepository(Repository):
    """The deployment's secrets, and the check value of the master key."""

    @read
    def key_state(self, conn: Connection) -> KeyState:
        """The check value and the epoch of the master key."""
        return key_state(conn)

    @write_unfenced
    def store_key_check(self, conn: Connection, check: bytes) -> KeyState:
        """Store `check` as the master key's if none is stored; return the state in force."""
        missing = _deployment.key_check.is_(None)
        conn.execute(update(schema.deployment).where(missing).values(key_check=check))
        return key_state(conn)

    @write_unfenced
    def rotate_key(
        self, conn: Connection, epoch: int, check: bytes, reseal: Callable[[SealedValue], bytes]
    ) -> KeyState:
        """Replace every sealed value by the result of `reseal`, and the check value, all or
        nothing.

        Raises StaleKeyError if `epoch` is not the current one.
        """
        # Jobs first and in order, as everybody who goes on to lock the deployment.
        conn.execute(select(_jobs.id).order_by(_jobs.id).with_for_update()).all()
        now = conn.execute(select(_deployment.key_epoch).with_for_update()).scalar_one()
        check_epoch(epoch, now)
        for item in list(_sealed(conn)):
            _replace(conn, item, reseal(item))
        values = {"key_check": check, "key_epoch": epoch + 1}
        conn.execute(update(schema.deployment).values(**values))
        return KeyState(check, epoch + 1)

    @read
    def rows(self, conn: Connection) -> list[SecretRow]:
        """The deployment's secrets without their values, by name."""
        query = select(_kept.name, _kept.set_at_us, _kept.set_by).order_by(_kept.name)
        return [SecretRow(row.name, row.set_at_us, row.set_by) for row in conn.execute(query)]

    @read
    def values(self, conn: Connection, names: Collection[str]) -> dict[str, bytes]:
        """Ciphertexts of those of the names that exist."""
        query = select(_kept.name, _kept.value).where(_kept.name.in_(sorted(names)))
        return {row.name: row.value for row in conn.execute(query)}

    @write_unfenced
    def put(self, conn: Connection, row: SecretRow, value: bytes, key_epoch: int) -> None:
        """Store a secret, replacing one of that name. Raises StaleKeyError."""
        hold_epoch(conn, key_epoch)
        drop_secret(conn, row.name)
        values = {
            "name": row.name,
            "value": value,
            "set_at_us": row.set_at_us,
            "set_by": row.set_by,
        }
        conn.execute(insert(schema.kept_secrets).values(**values))

    @write_unfenced
    def delete(self, conn: Connection, name: str) -> bool:
        """Delete a secret; False if there was none of that name."""
        return drop_secret(conn, name)


def key_state(conn: Connection) -> KeyState:
    """The check value and the epoch of the master key."""
    row = conn.execute(select(_deployment.key_check, _deployment.key_epoch)).one()
    return KeyState(row.key_check, row.key_epoch)


def hold_epoch(conn: Connection, epoch: int) -> None:
    """Keep the key from being rotated until the transaction ends. Raises StaleKeyError."""
    now = conn.execute(select(_deployment.key_epoch).with_for_update(read=True)).scalar_one()
    check_epoch(epoch, now)


def check_epoch(epoch: int, now: int) -> None:
    """Raises StaleKeyError."""
    if epoch != now:
        raise StaleKeyError(
            f"the master key was changed: this was sealed with key {epoch} of {now}"
        )


def _sealed(conn: Connection) -> Iterator[SealedValue]:
    for job_id, value in conn.execute(select(_jobs.id, _jobs.job_key)):
        yield SealedValue(job_id, "", value)
    for job_id, name, value in conn.execute(select(_secrets.job_id, _secrets.name, _secrets.value)):
        yield SealedValue(job_id, name, value)
    for name, value in conn.execute(select(_kept.name, _kept.value)):
        yield SealedValue("", name, value)


def _replace(conn: Connection, item: SealedValue, value: bytes) -> None:
    if not item.name:
        where = _jobs.id == item.job_id
        conn.execute(update(schema.jobs).where(where).values(job_key=value))
    elif item.job_id:
        where = (_secrets.job_id == item.job_id) & (_secrets.name == item.name)
        conn.execute(update(schema.secrets).where(where).values(value=value))
    else:
        where = _kept.name == item.name
        conn.execute(update(schema.kept_secrets).where(where).values(value=value))


def drop_secret(conn: Connection, name: str) -> bool:
    """Delete a secret; False if there was none of that name."""
    return conn.execute(delete(schema.kept_secrets).where(_kept.name == name)).rowcount > 0
