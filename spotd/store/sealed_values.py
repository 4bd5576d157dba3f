"""Everything that the master key has sealed: kept, and sealed anew when another key takes over.

A value sealed with the old key that is stored after the change would never open again. So whoever
stores one names the epoch of its key, and the row that has the epoch is locked meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from sqlalchemy import Connection, delete, insert, select, update

from spotd.store import schema
from spotd.store.interface import KeyState, SealedValue, SecretRow, StaleKeyError

_deployment, _jobs = schema.deployment.c, schema.jobs.c
_secrets, _kept = schema.secrets.c, schema.kept_secrets.c


def key_state(conn: Connection) -> KeyState:
    """See Store.key_state."""
    row = conn.execute(select(_deployment.key_check, _deployment.key_epoch)).one()
    return KeyState(row.key_check, row.key_epoch)


def keep_key_check(conn: Connection, check: bytes) -> KeyState:
    """See Store.keep_key_check."""
    missing = _deployment.key_check.is_(None)
    conn.execute(update(schema.deployment).where(missing).values(key_check=check))
    return key_state(conn)


def hold_epoch(conn: Connection, epoch: int) -> None:
    """No other key takes over before the transaction ends. Raises StaleKeyError."""
    now = conn.execute(select(_deployment.key_epoch).with_for_update(read=True)).scalar_one()
    check_epoch(epoch, now)


def check_epoch(epoch: int, now: int) -> None:
    """Raises StaleKeyError."""
    if epoch != now:
        raise StaleKeyError(
            f"the master key was changed: this was sealed with key {epoch} of {now}"
        )


def rotate_key(
    conn: Connection, epoch: int, check: bytes, reseal: Callable[[SealedValue], bytes]
) -> KeyState:
    """See Store.rotate_key."""
    # Jobs first and in order, as everybody who goes on to lock the deployment.
    conn.execute(select(_jobs.id).order_by(_jobs.id).with_for_update()).all()
    now = conn.execute(select(_deployment.key_epoch).with_for_update()).scalar_one()
    check_epoch(epoch, now)
    for item in list(_sealed(conn)):
        _replace(conn, item, reseal(item))
    values = {"key_check": check, "key_epoch": epoch + 1}
    conn.execute(update(schema.deployment).values(**values))
    return KeyState(check, epoch + 1)


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


def kept_secrets(conn: Connection) -> list[SecretRow]:
    """See Store.kept_secrets."""
    query = select(_kept.name, _kept.set_at_us, _kept.set_by).order_by(_kept.name)
    return [SecretRow(row.name, row.set_at_us, row.set_by) for row in conn.execute(query)]


def kept_secret_values(conn: Connection, names: Collection[str]) -> dict[str, bytes]:
    """See Store.kept_secret_values."""
    query = select(_kept.name, _kept.value).where(_kept.name.in_(sorted(names)))
    return {row.name: row.value for row in conn.execute(query)}


def keep_secret(conn: Connection, row: SecretRow, value: bytes, key_epoch: int) -> None:
    """See Store.keep_secret."""
    hold_epoch(conn, key_epoch)
    drop_secret(conn, row.name)
    values = {"name": row.name, "value": value, "set_at_us": row.set_at_us, "set_by": row.set_by}
    conn.execute(insert(schema.kept_secrets).values(**values))


def drop_secret(conn: Connection, name: str) -> bool:
    """See Store.drop_secret."""
    return conn.execute(delete(schema.kept_secrets).where(_kept.name == name)).rowcount > 0
