"""Jobs of a lost database, taken over through the API."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from providers.stores import open_store
from providers.stores.base import ObjectInfo, StoreDeniedError, StoreUnavailableError
from spotd.api.routes import resume_from_checkpoint
from spotd.base.errors import ExitCode, UserError
from spotd.security.secrets import open_job_keys
from spotd.wire import Head, HeadRef, head_key, manifest_key
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import JOB_FILE, Rig

LOST = "jabcdefghi"


def leave_head(rig: Rig, job_id: str = LOST, step: int = 1200, **fields: Any) -> Head:
    """What the generation 7 of a job left in the store."""
    ref = HeadRef(7, step, f"jobs/{job_id}/g7/s{step}/MANIFEST.json", "0" * 64) if step else None
    head = replace(Head(job_id, 7, 3, "n", "owner", ref), **fields)
    objects = open_store(rig.checkpoint_store)
    objects.put_if(head_key(job_id), head.to_bytes(), None)
    objects.put(f"jobs/{job_id}/g00000007/s000000001200-n/MANIFEST.json", b"{}")
    return head


def take_over(client: PathClient, job_id: str = LOST, **fields: Any) -> dict[str, Any]:
    body = {"yaml": JOB_FILE, "request_id": "r1", "continue": job_id} | fields
    return client.post("/v1/jobs", body)


def refused(rig: Rig, client: PathClient, job_id: str = LOST, **fields: Any) -> UserError:
    before = rig.store.jobs.rows(), rig.store.events.rows(None)
    with pytest.raises(UserError) as caught:
        take_over(client, job_id, **fields)
    assert (rig.store.jobs.rows(), rig.store.events.rows(None)) == before
    return caught.value


def test_it_goes_on_under_its_old_id_with_keys_of_its_own(rig: Rig, client: PathClient) -> None:
    leave_head(rig)
    job = take_over(client)
    assert (job["id"], job["name"], job["phase"]) == (LOST, "gpt", "waiting")
    assert (job["step"], job["generation"]) == (1200, 0)
    stored = rig.store.jobs.find(LOST)
    assert stored is not None
    assert stored.head is not None
    assert (stored.head.generation, stored.head.step, stored.head.final) == (7, 1200, False)
    assert stored.head.manifest.endswith("s1200/MANIFEST.json")
    assert open_job_keys(rig.vault, LOST, rig.store.jobs.key(LOST)).user.public
    [event] = rig.store.events.rows(LOST)
    assert event.event.kind == "continued"
    assert "resumes from step 1200, which generation 7 of a lost database" in event.event.text


def test_a_head_without_a_checkpoint_goes_on_from_the_beginning(
    rig: Rig, client: PathClient
) -> None:
    leave_head(rig, step=0)
    assert take_over(client)["step"] == 0


def test_the_same_request_again_is_the_same_job(rig: Rig, client: PathClient) -> None:
    leave_head(rig)
    take_over(client)
    objects = open_store(rig.checkpoint_store)
    objects.delete(head_key(LOST))  # it is not asked for again
    assert take_over(client)["id"] == LOST
    assert len(rig.store.events.rows(LOST)) == 1
    leave_head(rig, "jzzzzzzzzz")
    assert take_over(client, "jzzzzzzzzz")["id"] == LOST
    assert len(rig.store.events.rows(None)) == 1


def test_what_it_came_after_is_lost_as_well(rig: Rig, client: PathClient) -> None:
    leave_head(rig)
    for _ in range(2):
        assert take_over(client, yaml=JOB_FILE + "  after: search\n")["id"] == LOST
    stored = rig.store.jobs.find(LOST)
    assert stored is not None
    assert stored.spec.queue.after == ""


def test_what_begins_with_an_import_still_comes_after_another(rig: Rig, client: PathClient) -> None:
    """It has had no machine: it is a new job."""
    ref = HeadRef(1, 1200, manifest_key(LOST, 1, 1200, "import"), "0" * 64)
    leave_head(rig, current=ref)
    text = JOB_FILE + "  after: search\n"
    assert "there is no job 'search'" in refused(rig, client, yaml=text).text
    before = rig.submit("search", ago_s=60)
    take_over(client, yaml=text)
    stored = rig.store.jobs.find(LOST)
    assert stored is not None
    assert stored.spec.queue.after == before


def test_a_job_that_the_database_has_is_refused(rig: Rig, client: PathClient) -> None:
    leave_head(rig)
    take_over(client)
    error = refused(rig, client, request_id="r2", name="other")
    assert f"job {LOST} is already in this database" in error.text
    assert f"spotctl show {LOST}" in error.try_


def test_without_a_head_those_are_named_that_can_go_on(rig: Rig, client: PathClient) -> None:
    leave_head(rig, "jaaaaaaaaa", step=5)
    leave_head(rig, "jbbbbbbbbb", final=True)
    leave_head(rig, "jccccccccc", step=70)
    open_store(rig.checkpoint_store).put("jobs/jddddddddd/HEAD", b"torn")
    error = refused(rig, client)
    assert error.exit_code is ExitCode.NOT_FOUND
    assert f"no HEAD of a job {LOST} in {rig.checkpoint_store}" in error.text
    assert error.try_.endswith(": jaaaaaaaaa (step 5), jccccccccc (step 70)")


def test_so_many_are_named_and_no_more(rig: Rig, client: PathClient) -> None:
    for letter in "abcdefghijkl":
        leave_head(rig, f"j{letter * 9}")
    assert refused(rig, client).try_.count("(step 1200)") == resume_from_checkpoint.NAMED


def test_a_store_with_no_job_says_what_may_be_wrong(rig: Rig, client: PathClient) -> None:
    assert "name its checkpoint.store" in refused(rig, client).try_


def test_a_large_store_is_not_read_to_its_end(
    rig: Rig, client: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = itertools.count()

    class Large:
        url = "s3://large"

        def get(self, key: str) -> tuple[bytes, str]:
            return open_store(rig.checkpoint_store).get(key)

        def list(self, prefix: str) -> Any:
            return (ObjectInfo(f"{prefix}jaaaaaaaaa/{next(listed)}", 1) for _ in itertools.count())

    rig.stop()
    rig.open_store = lambda url: Large()  # type: ignore[assignment,return-value]
    monkeypatch.setattr(resume_from_checkpoint, "LOOKED_AT", 100)
    rig.start()
    assert "no job that could resume" in refused(rig, client).try_
    assert next(listed) == 100


@pytest.mark.parametrize("job_id", ["../jabcdefgh", "jabcdefghi/..", "gpt", "JABCDEFGHI", "j"])
def test_what_is_no_id_becomes_no_key(rig: Rig, client: PathClient, job_id: str) -> None:
    assert "is not a job's id" in refused(rig, client, job_id).text


def test_a_job_that_has_finished_does_not_go_on(rig: Rig, client: PathClient) -> None:
    leave_head(rig, step=400, final=True, released=True)
    assert f"job {LOST} has finished at step 400" in refused(rig, client).text


def test_one_that_saves_by_itself_has_nothing_to_go_on_from(rig: Rig, client: PathClient) -> None:
    text = JOB_FILE.replace("engine: spotd, every_steps: 100", "engine: none")
    error = refused(rig, client, yaml=text)
    assert "checkpoint.engine is none" in error.text
    assert "new job" in error.try_


def test_a_head_that_cannot_be_read_is_told(rig: Rig, client: PathClient) -> None:
    open_store(rig.checkpoint_store).put(head_key(LOST), json.dumps({"head": 1}).encode())
    error = refused(rig, client)
    assert f"HEAD of job {LOST}" in error.text
    assert "cannot be read" in error.text


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        (StoreDeniedError("access denied"), "cannot be read: access denied"),
        (StoreUnavailableError("timed out"), "timed out"),
    ],
)
def test_a_store_in_trouble_takes_nothing_over(
    rig: Rig, client: PathClient, trouble: Exception, text: str
) -> None:
    class Away:
        url = "s3://away"

        def get(self, key: str) -> tuple[bytes, str]:
            raise trouble

    rig.stop()
    rig.open_store = lambda url: Away()  # type: ignore[assignment,return-value]
    rig.start()
    assert text in refused(rig, client).text


def test_a_listing_that_is_refused_is_only_a_hint_less(rig: Rig, client: PathClient) -> None:
    class Closed:
        url = "s3://closed"

        def get(self, key: str) -> tuple[bytes, str]:
            return open_store(rig.checkpoint_store).get(key)

        def list(self, prefix: str) -> Any:
            raise StoreDeniedError("no listing here")

    rig.stop()
    rig.open_store = lambda url: Closed()  # type: ignore[assignment,return-value]
    rig.start()
    error = refused(rig, client)
    assert error.exit_code is ExitCode.NOT_FOUND


def test_old_machines_that_are_still_there_are_named(rig: Rig, client: PathClient) -> None:
    leave_head(rig, "joldoldold")
    held = rig.hold("i-old", 3600, "not on record")
    tags = {**held.instance.tags, "spotd-job": "joldoldold"}
    rig.held[-1] = replace(held, instance=replace(held.instance, tags=tags))
    rig.hold("i-other", 3600, "not on record")
    [warning] = [w for w in take_over(client, "joldoldold")["warnings"] if "old machines" in w]
    assert "i-old;" in warning
    assert "spotctl orphans" in warning
