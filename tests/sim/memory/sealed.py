"""Everything that the master key has sealed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from spotd.security.master_key import KeyState, SealedValue
from spotd.store.columns import clean
from spotd.store.secrets import SecretRow, check_epoch
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction


def keep_key_check(tx: Transaction, check: bytes) -> KeyState:
    """See Store.secrets.store_key_check."""
    if tx.tables.key.check is None:
        tx.put(vars(tx.tables), "key", replace(tx.tables.key, check=check))
    return tx.tables.key


def rotate_key(
    tx: Transaction, epoch: int, check: bytes, reseal: Callable[[SealedValue], bytes]
) -> KeyState:
    """See Store.secrets.rotate_key."""
    tables = tx.tables
    check_epoch(epoch, tables.key.epoch)
    for job_id, told in list(tables.submissions.items()):
        key = reseal(SealedValue(job_id, "", told.job_key))
        values = {n: reseal(SealedValue(job_id, n, v)) for n, v in told.secrets.items()}
        tx.put(tables.submissions, job_id, replace(told, job_key=key, secrets=values))
    for name, (row, value) in list(tables.kept_secrets.items()):
        tx.put(tables.kept_secrets, name, (row, reseal(SealedValue("", name, value))))
    tx.put(vars(tables), "key", KeyState(check, epoch + 1))
    return tables.key


def kept_secrets(tables: Tables) -> list[SecretRow]:
    """See Store.secrets.rows."""
    return [tables.kept_secrets[name][0] for name in sorted(tables.kept_secrets)]


def kept_secret_values(tables: Tables, names: Collection[str]) -> dict[str, bytes]:
    """See Store.secrets.values."""
    return {n: tables.kept_secrets[n][1] for n in sorted(names) if n in tables.kept_secrets}


def keep_secret(tx: Transaction, row: SecretRow, value: bytes, key_epoch: int) -> None:
    """See Store.secrets.put."""
    check_epoch(key_epoch, tx.tables.key.epoch)
    tx.put(tx.tables.kept_secrets, row.name, (replace(row, set_by=clean(row.set_by)), value))


def drop_secret(tx: Transaction, name: str) -> bool:
    """See Store.secrets.delete."""
    known = name in tx.tables.kept_secrets
    tx.drop(tx.tables.kept_secrets, name)
    return known
