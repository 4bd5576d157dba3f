"""What a job starts with."""

from __future__ import annotations

import pytest

from spotd.base.clock import RandomIds
from spotd.daemon.wiring import open_job_secrets
from spotd.security.master_key import MasterKeyError
from spotd.security.secrets import KeyRing, SecretBox, seal_secrets
from spotd.store.secrets import SecretRow
from tests.sim.memory_store import MemoryStore
from tests.spotd.store.build import NOW, Bell, spec, submission

random_bytes = RandomIds().random_bytes
VAULT = SecretBox(KeyRing((random_bytes(32),)), random_bytes)


def keep(store: MemoryStore, name: str, value: str) -> None:
    [sealed] = seal_secrets(VAULT, "", {name: value}).values()
    store.secrets.put(SecretRow(name, NOW, "ada"), sealed, 0)


def test_its_own_come_before_kept_ones_and_those_are_of_now() -> None:
    store = MemoryStore("d0", Bell())
    mine = seal_secrets(VAULT, "j1", {"A": "mine"})
    store.jobs.submit(submission("j1", spec=spec("j1", secrets=("A", "B")), secrets=mine), NOW)
    with pytest.raises(
        MasterKeyError, match="the secret B of job j1 is no longer stored"
    ) as caught:
        open_job_secrets(store, VAULT, "j1")
    assert "spotctl secret set B" in caught.value.try_
    for name, value in (("A", "theirs"), ("B", "old"), ("C", "not named"), ("B", "new")):
        keep(store, name, value)
    assert open_job_secrets(store, VAULT, "j1") == {"A": "mine", "B": "new"}


def test_a_job_that_names_none_has_none() -> None:
    store = MemoryStore("d0", Bell())
    store.jobs.submit(submission("j1"), NOW)
    keep(store, "A", "kept")
    assert open_job_secrets(store, VAULT, "j1") == {}
