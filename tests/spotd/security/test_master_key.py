"""Another master key takes over: all of it or nothing, whenever and wherever it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.base.clock import RandomIds
from spotd.security.master_key import KEY_NAME, NEXT_KEY_NAME, MasterKeyError
from spotd.security.secrets import (
    JobKeys,
    SecretBox,
    open_job_keys,
    open_secrets,
    rotate,
    seal_job_keys,
    seal_secrets,
    unlock,
)
from spotd.store.secrets import SecretRow
from spotd.store.sql_store import SqlStore
from tests.fixtures import postgres
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.store.build import NOW, submission
from tests.spotd.store.conftest import make

random_bytes = RandomIds().random_bytes
JOBS = 20


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    with postgres.running() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/spotd.db"
    running: postgres.Postgres = request.getfixturevalue("server")
    return running.url(running.create())


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    """Twenty jobs with a secret each, and a kept one."""
    opened = make(url)
    yield opened
    opened.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


def put(folder: Path, name: str, key: bytes = b"") -> None:
    path = folder / name
    path.write_bytes(key or random_bytes(32))
    path.chmod(0o600)


def fill(store: SqlStore, vault: SecretBox) -> None:
    for number in range(JOBS):
        submit(store, vault, f"j{number}")
    [sealed] = seal_secrets(vault, "", {"KEPT": "kept-value"}).values()
    store.secrets.put(SecretRow("KEPT", NOW, "ada"), sealed, vault.epoch)


def submit(store: SqlStore, vault: SecretBox, job_id: str) -> None:
    keys = seal_job_keys(vault, job_id, JobKeys.create(random_bytes))
    mine = seal_secrets(vault, job_id, {"A": f"value-{job_id}"})
    store.jobs.submit(submission(job_id, job_key=keys, secrets=mine, key_epoch=vault.epoch), NOW)


def check(store: SqlStore, vault: SecretBox) -> None:
    """Everything opens."""
    for number in range(JOBS):
        job_id = f"j{number}"
        open_job_keys(vault, job_id, store.jobs.key(job_id))
        assert open_secrets(vault, job_id, store.jobs.secrets(job_id)) == {"A": f"value-{job_id}"}
    assert open_secrets(vault, "", store.secrets.values(["KEPT"])) == {"KEPT": "kept-value"}


def test_the_next_key_takes_over_under_a_running_vault(store: SqlStore, state: Path) -> None:
    vault = unlock(store.secrets, state, {}, random_bytes)
    fill(store, vault)
    with pytest.raises(MasterKeyError, match="no key to take over") as caught:
        rotate(store.secrets, vault, state, {}, random_bytes)
    assert "openssl rand -hex 32" in caught.value.try_
    put(state, NEXT_KEY_NAME)
    old = (state / KEY_NAME).read_bytes()
    rotate(store.secrets, vault, state, {}, random_bytes)
    check(store, vault)
    submit(store, vault, "later")
    # Whatever the two files are called meanwhile, a start finds the one in force.
    check(store, unlock(store.secrets, state, {}, random_bytes))
    (state / NEXT_KEY_NAME).rename(state / KEY_NAME)
    restarted = unlock(store.secrets, state, {}, random_bytes)
    check(store, restarted)
    open_job_keys(restarted, "later", store.jobs.key("later"))
    put(state, KEY_NAME, old)
    with pytest.raises(MasterKeyError, match="not that of the database"):
        unlock(store.secrets, state, {}, random_bytes)


def test_the_key_in_force_does_not_take_over_again(store: SqlStore, state: Path) -> None:
    vault = unlock(store.secrets, state, {}, random_bytes)
    put(state, NEXT_KEY_NAME)
    rotate(store.secrets, vault, state, {}, random_bytes)
    before = store.secrets.key_state()
    with pytest.raises(MasterKeyError, match="in force already"):
        rotate(store.secrets, vault, state, {}, random_bytes)
    assert store.secrets.key_state() == before


def test_another_replica_goes_on_with_the_key_that_took_over(store: SqlStore, state: Path) -> None:
    """It has both keys at hand, as the advice says; what it sealed with the old one is refused."""
    vault, other = (unlock(store.secrets, state, {}, random_bytes) for _ in range(2))
    fill(store, vault)
    put(state, NEXT_KEY_NAME)
    rotate(store.secrets, vault, state, {}, random_bytes)
    assert other.epoch == 0
    check(store, other)
    assert other.epoch == 1, "it looked again when a value did not open"


def test_a_replica_without_the_new_key_says_so(
    store: SqlStore, state: Path, tmp_path: Path
) -> None:
    vault = unlock(store.secrets, state, {}, random_bytes)
    fill(store, vault)
    away = tmp_path / "another box"
    away.mkdir()
    put(away, KEY_NAME, (state / KEY_NAME).read_bytes())
    other = unlock(store.secrets, away, {}, random_bytes)
    put(state, NEXT_KEY_NAME)
    rotate(store.secrets, vault, state, {}, random_bytes)
    with pytest.raises(MasterKeyError, match="not that of the database"):
        open_job_keys(other, "j1", store.jobs.key("j1"))


def test_both_may_come_as_credentials(store: SqlStore, state: Path, tmp_path: Path) -> None:
    held = tmp_path / "credentials"
    held.mkdir()
    environ = {"CREDENTIALS_DIRECTORY": str(held)}
    (held / KEY_NAME).write_text("ab" * 32)
    vault = unlock(store.secrets, state, environ, random_bytes)
    fill(store, vault)
    (held / NEXT_KEY_NAME).write_text("cd" * 32)
    rotate(store.secrets, vault, state, environ, random_bytes)
    (held / KEY_NAME).unlink()
    check(store, unlock(store.secrets, state, environ, random_bytes))
    assert list(state.iterdir()) == []


DYING = """
import os, signal, sys
from pathlib import Path
from spotd.security import secrets as vault
from spotd.base.clock import RandomIds
from tests.spotd.store.conftest import make

url, state, after = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
store = make(url)
box = vault.unlock(store.secrets, state, {}, RandomIds().random_bytes)
real = store.secrets.rotate_key

def rotate_key(epoch, check, reseal):
    done = []
    def dying(item):
        done.append(item)
        if len(done) > after:
            os.kill(os.getpid(), signal.SIGKILL)
        return reseal(item)
    real(epoch, check, dying)
    os.kill(os.getpid(), signal.SIGKILL)  # the caller never hears of it

store.secrets.rotate_key = rotate_key
vault.rotate(store.secrets, box, state, {}, RandomIds().random_bytes)
"""


@pytest.mark.parametrize("after", [0, 25, 1000])
def test_killed_at_any_moment_it_lost_nothing(
    store: SqlStore, url: str, state: Path, after: int
) -> None:
    """Before the first value, between two, and after the last with nobody told."""
    fill(store, unlock(store.secrets, state, {}, random_bytes))
    put(state, NEXT_KEY_NAME)
    done = subprocess.run(
        [sys.executable, "-c", DYING, url, str(state), str(after)], check=False, timeout=LIMIT_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert store.secrets.key_state().epoch == (after == 1000)
    vault = unlock(store.secrets, state, {}, random_bytes)
    check(store, vault)
    if after < 1000:
        rotate(store.secrets, vault, state, {}, random_bytes)
        check(store, vault)
    (state / NEXT_KEY_NAME).rename(state / KEY_NAME)
    check(store, unlock(store.secrets, state, {}, random_bytes))
