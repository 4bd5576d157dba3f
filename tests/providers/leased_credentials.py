"""Checks of leased credentials: how long they last, and that they reach one folder alone."""

from __future__ import annotations

import time

import pytest

from providers.credential_leases import LeasedCredentials
from providers.stores.base import ConflictError, ObjectStore, StoreDeniedError

MIB = 1 << 20


def lasts(leased: LeasedCredentials, seconds: int, asked_us: int) -> bool:
    """Return whether they were made for `seconds` at some moment since `asked_us`.

    Clouds cut off fractions of a second.
    """
    made_us = leased.expires_at_us - seconds * 1_000_000
    return asked_us - 1_000_000 <= made_us <= time.time_ns() // 1000


def keeps_to_its_folder(store: ObjectStore) -> None:
    """Check `store`, opened with credentials for jobs/j1/; somebody else wrote jobs/j2/HEAD."""
    tag = store.put_if("jobs/j1/HEAD", b"1", None)
    store.put_if("jobs/j1/HEAD", b"2", tag)
    with pytest.raises(ConflictError):
        store.put_if("jobs/j1/HEAD", b"3", tag)
    store.put("jobs/j1/large", bytes(17 * MIB))  # in parts
    assert store.get("jobs/j1/HEAD")[0] == b"2"
    assert [info.key for info in store.list("jobs/j1/")] == ["jobs/j1/HEAD", "jobs/j1/large"]
    store.delete("jobs/j1/large")
    for forbidden in (
        lambda: store.get("jobs/j2/HEAD"),
        lambda: store.put("jobs/j2/shard", b""),
        lambda: store.put_if("jobs/j10/HEAD", b"", None),
        lambda: store.delete("jobs/j2/HEAD"),
        lambda: list(store.list("jobs/")),
        lambda: list(store.list("jobs/j2/")),
    ):
        with pytest.raises(StoreDeniedError):
            forbidden()
