"""Submitting and steering jobs through the API."""

from __future__ import annotations

import getpass
import hashlib
import io
import sys
from typing import Any

import pytest

from spotd.api_client.wording import progress_pairs
from spotd.base.errors import ExitCode, UserError
from spotd.domain.events import Event
from spotd.domain.job import Desired
from spotd.domain.queue import Limits
from spotd.domain.states import Outcome
from spotd.domain.units import S
from spotd.security.secrets import open_job_keys, open_secrets
from spotd.store.codec import decode_spec
from spotd.wire import Mount
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig, story


def submission(**fields: Any) -> dict[str, Any]:
    return {"yaml": JOB_FILE, "request_id": "r1", **fields}


def put(client: PathClient, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    client.put_package(digest, io.BytesIO(data), len(data))
    return digest


@pytest.mark.req("UX-01")
def test_a_job_is_stored_with_all_it_needs_later(rig: Rig, client: PathClient) -> None:
    text = JOB_FILE + "workdir: .\nfile_mounts: {data/config.json: mine.json, /opt/x: x}\n"
    text += "secrets: {HF_TOKEN: hf_very_secret}\nenvs: {LR: 1}\n"
    digests = {name: put(client, name.encode()) for name in ("work", "mount", "file")}
    packages = [
        {"target": "", "digest": digests["work"]},
        {"target": "/opt/x", "digest": digests["mount"]},
        {"target": "data/config.json", "digest": digests["file"], "is_file": True},
    ]
    job = client.post(
        "/v1/jobs", submission(yaml=text, packages=packages, env={"LR": "2"}, name="other")
    )
    assert (job["name"], job["phase"]) == ("other", "waiting")
    stored = rig.store.jobs.find(job["id"])
    assert stored is not None
    assert stored.spec.program.envs == {"LR": "2"}
    assert set(stored.spec.files.packages) == {
        Mount(digests["work"], ""),
        Mount(digests["mount"], "/opt/x"),
        Mount(digests["file"], "data"),
    }
    # Secrets are in the vault, and nowhere that one can read.
    assert "hf_very_secret" not in rig.store.jobs.spec_yaml(job["id"])
    sealed = rig.store.jobs.secrets(job["id"])
    assert b"hf_very_secret" not in sealed["HF_TOKEN"]
    assert open_secrets(rig.vault, job["id"], sealed) == {"HF_TOKEN": "hf_very_secret"}
    keys = open_job_keys(rig.vault, job["id"], rig.store.jobs.key(job["id"]))
    assert keys.user.public.startswith("ssh-ed25519 ")
    other = client.post("/v1/jobs", submission(name="third", request_id="another"))
    theirs = open_job_keys(rig.vault, other["id"], rig.store.jobs.key(other["id"]))
    assert theirs.user.public != keys.user.public
    assert theirs.host_seed != keys.host_seed


def test_the_same_request_again_is_the_same_job(rig: Rig, client: PathClient) -> None:
    first = client.post("/v1/jobs", submission())
    again = client.post("/v1/jobs", submission())
    assert again["id"] == first["id"]
    assert len(rig.store.jobs.rows()) == 1


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"yaml": ""}, ExitCode.USAGE, "the file is empty"),
        ({"yaml": 1}, ExitCode.USAGE, "yaml must be a text"),
        ({"yaml": "nmae: x\nrun: y\n"}, ExitCode.USAGE, "did you mean 'name'?"),
        ({"yaml": JOB_FILE + "secrets: {HF_TOKEN: null}\n"}, ExitCode.USAGE, "no value"),
        ({"yaml": JOB_FILE + "workdir: .\n"}, ExitCode.USAGE, "the workdir"),
        ({"name": "no spaces"}, ExitCode.USAGE, "is not a valid name"),
        ({"env": {"A": 1}}, ExitCode.USAGE, "env must map names to texts"),
        ({"packages": ["x"]}, ExitCode.USAGE, "packages must be a list of objects"),
        ({"request_id": "\ud800"}, ExitCode.USAGE, "request_id must be a text"),
        ({"request_id": "\0"}, ExitCode.USAGE, "request_id must be a text"),
        ({"env": {"A": "\udfff"}}, ExitCode.USAGE, "env must map names to texts"),
        (
            {"yaml": f"{JOB_FILE[:-2]}, store: file:///dev/null/x}}\n"},
            ExitCode.USAGE,
            "cannot open",
        ),
    ],
)
def test_bad_submissions_store_nothing(
    rig: Rig, client: PathClient, fields: dict[str, Any], code: ExitCode, text: str
) -> None:
    with pytest.raises(UserError) as caught:
        client.post("/v1/jobs", submission(**fields))
    assert text in caught.value.text
    assert caught.value.try_
    assert caught.value.exit_code is code
    assert rig.store.jobs.rows() == []


@pytest.mark.parametrize(
    ("infra", "refused"), [("", True), ("  infra: aws\n", True), ("  infra: toy-gcp\n", False)]
)
def test_a_folder_keeps_nothing_of_machines_that_are_rented(
    rig: Rig, client: PathClient, infra: str, *, refused: bool
) -> None:
    rig.shared = False
    fields = submission(yaml=JOB_FILE.replace("run:", f"{infra}run:"))
    if not refused:
        assert client.post("/v1/jobs", fields)["name"]
        return
    with pytest.raises(UserError) as caught:
        client.post("/v1/jobs", fields)
    assert "is a folder, and the job may run on rented machines (aws)" in caught.value.text
    assert "s3://" in caught.value.try_
    assert "shared = true" in caught.value.try_
    assert rig.store.jobs.rows() == []
    rig.shared = True
    assert client.post("/v1/jobs", fields)["name"]


def test_a_job_that_comes_after_another(rig: Rig, client: PathClient) -> None:
    """By the name in its file, or by what the request says; on record is that job's id, whoever
    takes its name later."""
    first = client.post("/v1/jobs", submission(name="search"))
    text = JOB_FILE + "  after: search\n"
    named = client.post("/v1/jobs", submission(yaml=text, name="train", request_id="r2"))
    third = submission(name="validate", request_id="r3", after=named["id"])
    last = client.post("/v1/jobs", third)
    chain = [rig.store.jobs.find(job["id"]) for job in (first, named, last)]
    assert [job.spec.queue.after for job in chain if job] == ["", first["id"], named["id"]]
    assert client.get(f"/v1/jobs/{last['id']}")["after"] == named["id"]


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (None, "spotd.after: there is no job 'other'"),
        (Outcome.FAILED, "failed: no job can follow it"),
        (Outcome.CANCELLED, "cancelled: no job can follow it"),
    ],
)
def test_a_job_that_nothing_can_come_after(
    rig: Rig, client: PathClient, outcome: Outcome | None, told: str
) -> None:
    if outcome:
        rig.finish(rig.submit("other", ago_s=60), 0, outcome, "as it ended")
    with pytest.raises(UserError, match=told):
        client.post("/v1/jobs", submission(name="train", after="other"))
    assert rig.store.jobs.find("train") is None


def test_the_same_request_is_the_same_job_whatever_became_of_the_one_before(
    rig: Rig, client: PathClient
) -> None:
    before = rig.submit("other", ago_s=60)
    wanted = submission(name="train", after="other")
    first = client.post("/v1/jobs", wanted)
    rig.finish(before, 0, Outcome.FAILED, "as it ended")
    assert client.post("/v1/jobs", wanted)["id"] == first["id"]
    with pytest.raises(UserError, match="no job can follow it"):
        client.post("/v1/jobs", submission(name="again", after="other", request_id="r2"))


def test_a_job_may_come_after_one_that_has_succeeded(rig: Rig, client: PathClient) -> None:
    rig.finish(rig.submit("other", ago_s=60), 0, Outcome.SUCCEEDED, "done")
    assert client.post("/v1/jobs", submission(name="train", after="other"))["phase"] == "waiting"


def test_a_job_whose_store_the_daemon_cannot_read_is_refused(
    rig: Rig, client: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would rent machines, and never be seen to end."""
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    text = "name: gpt\nrun: x\nspotd: {checkpoint: {store: s3://bucket/gpt}}\n"
    with pytest.raises(UserError) as caught:
        client.post("/v1/jobs", submission(yaml=text))
    assert "the daemon cannot open checkpoint.store s3://bucket/gpt" in caught.value.text
    assert "obstore" in caught.value.text
    assert "the daemon's config.toml" in caught.value.try_
    assert caught.value.exit_code is ExitCode.USAGE
    assert rig.store.jobs.rows() == []


def test_a_package_must_be_there(rig: Rig, client: PathClient) -> None:
    packages = [{"target": "", "digest": "0" * 64}]
    body = submission(yaml=JOB_FILE + "workdir: .\n", packages=packages)
    with pytest.raises(UserError, match="was not uploaded"):
        client.post("/v1/jobs", body)
    packages[0]["digest"] = "../escape"
    with pytest.raises(UserError, match="is not a sha256 digest"):
        client.post("/v1/jobs", body)


def test_a_duplicate_name_says_what_to_do(rig: Rig, client: PathClient) -> None:
    job_id = rig.submit()
    with pytest.raises(UserError) as caught:
        client.post("/v1/jobs", submission())
    assert job_id in caught.value.text
    assert "--name gpt-2" in caught.value.try_
    # A name is free again once its job has ended.
    rig.finish(job_id, 0, Outcome.CANCELLED)
    assert client.post("/v1/jobs", submission(request_id="r2"))["id"] != job_id


def test_without_any_checkpoint_store_it_is_refused(rig: Rig) -> None:
    rig.stop()
    rig.checkpoint_store = ""
    client = PathClient(rig.start().socket)
    with pytest.raises(UserError, match="no store for checkpoints"):
        client.post("/v1/jobs", submission())


def test_pause_resume_cancel(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    assert client.post("/v1/jobs/gpt/pause")["phase"] == "draining"
    assert client.post("/v1/jobs/gpt/resume")["phase"] == "running"
    assert client.post("/v1/jobs/gpt/cancel")["phase"] == "cancelling"
    assert client.post("/v1/jobs/gpt/cancel")["phase"] == "cancelling"
    with pytest.raises(UserError, match="being cancelled"):
        client.post("/v1/jobs/gpt/resume")
    stored = rig.store.jobs.find(job_id)
    assert stored is not None
    assert stored.desired is Desired.CANCEL
    texts = [row.event.text for row in rig.store.events.rows(job_id)]
    said = [text for text in texts if "requested by" in text]
    user = getpass.getuser()
    assert said == [f"{verb} requested by {user}" for verb in ("pause", "resume", "cancel")]


def test_a_finished_job_cannot_be_steered(rig: Rig, client: PathClient) -> None:
    job_id = rig.submit()
    rig.finish(job_id, 0, Outcome.SUCCEEDED)
    for verb in ("pause", "resume", "cancel"):
        with pytest.raises(UserError, match="already succeeded"):
            client.post(f"/v1/jobs/gpt/{verb}")


def test_ssh_prefers_the_machine_that_trains(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    with pytest.raises(UserError, match="no machine that can be reached"):
        client.post("/v1/jobs/gpt/ssh")
    rig.address(rig.store.nodes.of_job(job_id)[-1], "127.0.0.9", 2222)
    access = client.post("/v1/jobs/gpt/ssh")
    assert (access["host"], access["port"], access["generation"]) == ("127.0.0.9", 2222, 2)
    assert "PRIVATE KEY" in access["private_key"]
    assert access["host_public_key"].startswith("ssh-ed25519 ")
    with pytest.raises(UserError, match="no rank 1"):
        client.post("/v1/jobs/gpt/ssh", {"rank": 1})


def test_who_asks_for_the_address_alone_is_not_let_in(rig: Rig, client: PathClient) -> None:
    node = rig.store.nodes.of_job(story(rig))[-1]
    rig.address(node, "127.0.0.9", 2222)
    address = client.get("/v1/jobs/gpt/ssh", rank=0)
    assert rig.hosts.inside == {}
    access = client.post("/v1/jobs/gpt/ssh", {"rank": 0})
    assert len(rig.hosts.inside) == 1
    assert {**address, "private_key": access["private_key"]} == access


def test_a_job_with_an_odd_name_in_the_path(rig: Rig, client: PathClient) -> None:
    with pytest.raises(UserError) as caught:
        client.get("/v1/jobs/..%2F..%2Fetc")
    assert caught.value.exit_code in (ExitCode.NOT_FOUND, ExitCode.FAILURE)


def test_nodes_of_all_jobs_are_those_that_cost(rig: Rig, client: PathClient) -> None:
    story(rig)
    assert [node["generation"] for node in client.get("/v1/nodes")["items"]] == [2]
    assert [n["generation"] for n in client.get("/v1/nodes", job="gpt")["items"]] == [1, 2]


def test_a_look_at_the_machines_reads_no_job_but_theirs(rig: Rig, client: PathClient) -> None:
    """A daemon keeps finished jobs for months, and is asked this again and again."""
    rig.finish(rig.submit(name="old"), 0, Outcome.SUCCEEDED)
    story(rig)
    decode_spec.cache_clear()
    assert [node["job"] for node in client.get("/v1/nodes")["items"]] == ["gpt"]
    assert decode_spec.cache_info().misses == 0


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/costs"])
def test_a_page_of_jobs_reads_no_others(rig: Rig, client: PathClient, path: str) -> None:
    for number in range(3):
        rig.submit(name=f"job-{number}")
    decode_spec.cache_clear()
    page = client.get(path, limit="1")
    assert len(page["items"]) == 1
    assert page["total"] == 3
    assert decode_spec.cache_info().misses == 1


def test_why_shows_a_decision_and_takes_none(rig: Rig, client: PathClient) -> None:
    job_id = rig.submit()
    before = rig.store.jobs.find(job_id)
    data = client.get("/v1/jobs/gpt/why")
    assert SPOT.zone in data["reason"]
    assert rig.store.jobs.find(job_id) == before
    assert rig.store.nodes.of_job(job_id) == []


def test_why_has_the_last_words_of_a_machine_that_did_not_come_up(
    rig: Rig, client: PathClient
) -> None:
    job_id, now_us = rig.submit(), rig.clock.now_us()
    said = {"lines": ["[  4.2] EXT4-fs error", "[  9.1] Kernel panic"]}
    text = "the console of n1 ended with: [  9.1] Kernel panic"
    rig.store.events.add(job_id, Event("console", text, data={"lines": ["older"]}), now_us - 2 * S)
    rig.store.events.add(job_id, Event("console", text, data=said), now_us - S)
    data = client.get("/v1/jobs/gpt/why")
    assert data["console"] == ["the console of n1 printed last:", *said["lines"]]


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(max_nodes=1), SPOT.zone),  # one machine instead of two
        (Limits(max_microusd_per_h=19_000_000), "limits.max_usd_per_hour is $19.00"),
    ],
)
def test_why_names_the_limit_that_holds_a_job_back(
    rig: Rig, client: PathClient, limits: Limits, why: str
) -> None:
    """Which only the commit of a launch checks, and nothing is committed here."""
    rig.submit(text=JOB_FILE.replace("spotd:\n", "spotd:\n  candidates: 2\n"))
    rig.store.market.set_limits(limits)
    data = client.get("/v1/jobs/gpt/why")
    assert why in data["reason"]
    launches = [text for text in data["next"] if SPOT.instance_type in text]
    assert len(launches) == (1 if limits.max_nodes else 0), data["next"]


def test_progress_is_that_of_the_record(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    unknown = client.get("/v1/jobs")["items"][0]["progress"]
    assert (unknown["eta"], unknown["unknown"]) == (None, "the total number of steps is not known")
    node = rig.store.nodes.of_job(job_id)[-1]
    rig.say(node, 30, "progress", from_step=1791, to_step=2000, losses=[], tokens=1, busy_s=1.0,
            first_at_us=rig.ago(900), last_at_us=rig.ago(30), total_steps=4000)  # fmt: skip
    (job,) = client.get("/v1/jobs")["items"]
    shown = client.get(f"/v1/jobs/{job_id}")
    progress = job["progress"]
    assert progress == shown["progress"]
    assert (progress["total_steps"], progress["total_from"]) == (4000, "program")
    assert progress["share"] == 0.5
    # 2,000 steps in the 6,270 s since its first one, the hand-over included.
    assert progress["steps_per_s"] == pytest.approx(2000 / 6270, rel=1e-3)
    assert progress["eta"] > shown["created_at"]
    rig.say(node, 31, "progress", from_step=2001, to_step=2100, losses=[], tokens=1, busy_s=1.0,
            first_at_us=rig.ago(25), last_at_us=rig.ago(20), total_steps=6000,
            at_least=True)  # fmt: skip
    progress = client.get(f"/v1/jobs/{job_id}")["progress"]
    assert (progress["total_steps"], progress["share"], progress["eta"]) == (None, None, None)
    assert progress["at_least_steps"] == 6000
    shown_pairs = dict(progress_pairs(progress))
    assert shown_pairs["progress"] == "of at least 6,000 steps"
    assert shown_pairs["ends in"].startswith("unknown: its program may train on")
    rig.finish(job_id, 5, Outcome.SUCCEEDED, "done")
    ended = client.get(f"/v1/jobs/{job_id}")["progress"]
    assert (ended["eta"], ended["unknown"]) == (None, "it has ended")
