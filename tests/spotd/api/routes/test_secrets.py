"""Secrets that the deployment keeps, through the door; and a key that takes over under load."""

from __future__ import annotations

import threading

import pytest

from spotd.api.routes.secrets import MAX_VALUE_BYTES
from spotd.base.errors import ExitCode, UserError
from spotd.domain.states import Outcome
from spotd.security.master_key import KEY_NAME, NEXT_KEY_NAME
from spotd.security.secrets import (
    KeyRing,
    SecretBox,
    open_job_keys,
    open_secrets,
    seal_secrets,
    unlock,
)
from spotd.store.secrets import SecretRow
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import JOB_FILE, Rig


def next_key(rig: Rig, key: bytes = b"n" * 32) -> None:
    path = rig.folder / NEXT_KEY_NAME
    path.write_bytes(key)
    path.chmod(0o600)


def test_values_come_in_and_never_go_out(rig: Rig, client: PathClient) -> None:
    client.post("/v1/secrets/HF_TOKEN", {"value": "hf_canary_value"})
    data = client.get("/v1/secrets")
    [item] = data["items"]
    assert item["name"] == "HF_TOKEN"
    assert item["set_by"]
    assert "canary" not in repr(data) + repr(rig.store.audit.rows(0))
    sealed = rig.store.secrets.values(["HF_TOKEN"])
    assert b"canary" not in sealed["HF_TOKEN"]
    assert open_secrets(rig.vault, "", sealed) == {"HF_TOKEN": "hf_canary_value"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, "v") for name in ("1A", "A-B", "SPOTD_X", "A" * 129, "%2e%2e", "ä")],
        *[("A", value) for value in ("", "a\0b", "x" * (MAX_VALUE_BYTES + 1))],
        ("A", ["v"]),
    ],
)
def test_what_is_no_secret_is_refused(
    rig: Rig, client: PathClient, name: str, value: object
) -> None:
    from urllib.parse import quote

    with pytest.raises(UserError) as caught:
        client.post(f"/v1/secrets/{quote(name)}", {"value": value})
    assert caught.value.exit_code is ExitCode.USAGE
    assert rig.store.secrets.rows() == []


def test_one_that_a_job_needs_is_not_forgotten(rig: Rig, client: PathClient) -> None:
    text = JOB_FILE + "secrets: {NEEDED: , OWN: own-value}\n"
    with pytest.raises(UserError, match="NEEDED: the secret has no value"):
        client.post("/v1/jobs", {"yaml": text})
    for name in ("NEEDED", "OWN"):
        client.post(f"/v1/secrets/{name}", {"value": "v"})
    job = client.post("/v1/jobs", {"yaml": text, "secrets": {"OWN": "own-value"}})
    assert list(rig.store.jobs.secrets(job["id"])) == ["OWN"]
    with pytest.raises(UserError, match="NEEDED is needed by gpt"):
        client.delete("/v1/secrets/NEEDED")
    client.delete("/v1/secrets/OWN")
    rig.finish(job["id"], 0, Outcome.CANCELLED)
    client.delete("/v1/secrets/NEEDED")
    assert client.get("/v1/secrets")["items"] == []
    with pytest.raises(UserError, match="there is no secret 'NEEDED'") as caught:
        client.delete("/v1/secrets/NEEDED")
    assert caught.value.exit_code is ExitCode.NOT_FOUND


def test_without_a_next_key_nothing_is_changed(rig: Rig, client: PathClient) -> None:
    with pytest.raises(UserError, match="no key to take over") as caught:
        client.post("/v1/key/rotate")
    assert "openssl rand -hex 32" in caught.value.try_
    assert rig.store.secrets.key_state().epoch == 0


def test_a_key_takes_over_while_jobs_and_secrets_come_in(rig: Rig, client: PathClient) -> None:
    """Whatever was stored, before, meanwhile or after: the new key alone opens it."""
    next_key(rig)
    begun, failed = threading.Barrier(4), []

    def submit(worker: int) -> None:
        begun.wait()
        try:
            for number in range(6):
                name = f"w{worker}-{number}"
                body = {"yaml": JOB_FILE, "name": name, "secrets": {"A": name}}
                PathClient(rig.socket).post("/v1/jobs", body)
                client.post(f"/v1/secrets/S{worker}_{number}", {"value": name})
        except UserError as error:
            failed.append(error)

    workers = [threading.Thread(target=submit, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    begun.wait()
    assert client.post("/v1/key/rotate")["epoch"] == 1
    for worker in workers:
        worker.join()
    assert failed == []
    (rig.folder / NEXT_KEY_NAME).rename(rig.folder / KEY_NAME)
    vault = unlock(rig.store.secrets, rig.folder, {}, rig.ids.random_bytes)
    jobs = rig.store.jobs.rows()
    assert len(jobs) == 18
    for job in jobs:
        open_job_keys(vault, job.id, rig.store.jobs.key(job.id))
        assert open_secrets(vault, job.id, rig.store.jobs.secrets(job.id)) == {"A": job.name}
    names = [row.name for row in rig.store.secrets.rows()]
    assert len(open_secrets(vault, "", rig.store.secrets.values(names))) == 18


def test_what_no_key_opens_is_named_and_left_and_holds_up_no_rotation(
    rig: Rig, client: PathClient
) -> None:
    """Its bytes stay: a key of before may still open them."""
    text = JOB_FILE + "secrets: {OWN: own-value}\n"
    job = client.post("/v1/jobs", {"yaml": text, "secrets": {"OWN": "own-value"}})
    client.post("/v1/secrets/GOOD", {"value": "good"})
    lost = SecretBox(KeyRing((b"l" * 32,)), rig.ids.random_bytes)
    sealed = seal_secrets(lost, "", {"BAD": "lost-value"})["BAD"]
    rig.store.secrets.put(SecretRow("BAD", 1, "ada"), sealed, 0)
    for epoch in (1, 2):
        next_key(rig, bytes([epoch]) * 32)
        data = client.post("/v1/key/rotate")
        assert (data["epoch"], data["unread"]) == (epoch, ["deployment/secrets/BAD"])
        (rig.folder / NEXT_KEY_NAME).rename(rig.folder / KEY_NAME)
    vault = unlock(rig.store.secrets, rig.folder, {}, rig.ids.random_bytes)
    open_job_keys(vault, job["id"], rig.store.jobs.key(job["id"]))
    assert open_secrets(vault, job["id"], rig.store.jobs.secrets(job["id"])) == {"OWN": "own-value"}
    assert open_secrets(vault, "", rig.store.secrets.values(["GOOD"])) == {"GOOD": "good"}
    kept = rig.store.secrets.values(["BAD"])
    assert open_secrets(lost, "", kept) == {"BAD": "lost-value"}


def test_what_was_sealed_just_before_another_key_took_over_is_sealed_again(
    rig: Rig, client: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race above, made to happen."""
    next_key(rig)
    real = rig.store.jobs.submit

    def late(submission: object, at_us: int) -> object:
        if rig.store.secrets.key_state().epoch == 0:
            rig.context().rotate_key()
        return real(submission, at_us)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.store.jobs, "submit", late)
    job = client.post("/v1/jobs", {"yaml": JOB_FILE})
    (rig.folder / KEY_NAME).unlink()
    vault = unlock(rig.store.secrets, rig.folder, {}, rig.ids.random_bytes)
    open_job_keys(vault, job["id"], rig.store.jobs.key(job["id"]))
