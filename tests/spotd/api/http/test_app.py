"""The door itself: errors, limits, uploads, the record, logs that are followed."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import os
import re
import shutil
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from providers.stores import open_store as open_objects
from providers.stores.base import ObjectStore, StoreConfigError, StoreDeniedError
from providers.stores.base import StoreUnavailableError as ObjectsUnavailableError
from spotd.api.http import app
from spotd.api.http.app import make_app
from spotd.api.http.route import Kind
from spotd.api.http.route_table import ROUTES
from spotd.api.metrics.exposition import Metrics
from spotd.api.routes import checkpoint_imports, packages
from spotd.api_client.client import EXIT_CODES
from spotd.base.errors import ExitCode, UserError
from spotd.domain.events import Event
from spotd.domain.states import LeaveReason, Outcome
from spotd.domain.stored_logs import write_end
from spotd.observe.log_shipper import stream_name
from spotd.store.errors import StoreError, StoreUnavailableError
from spotd.wire import LogEnd, last_output_key
from tests.fixtures.path_client import PathClient
from tests.fixtures.waiting import LIMIT_S, until
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig, story

DIGEST = "0" * 64
FOR_EVER_S = int(2 * LIMIT_S)


@pytest.fixture
def impatient(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> PathClient:
    """A client that may ask for an answer after FOR_EVER_S at the latest, and gives up earlier."""
    monkeypatch.setattr(app, "MAX_WAIT_S", FOR_EVER_S)
    return PathClient(rig.socket, reply_s=LIMIT_S)


def raw(rig: Rig, verb: str, path: str, body: Any = b"") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("spotd", timeout=LIMIT_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(rig.socket))
    try:
        with contextlib.suppress(BrokenPipeError):  # a refusal comes early
            connection.request(verb, path, body)
        response = connection.getresponse()
        data = response.read()
        if data and response.headers["Content-Type"] != "application/json":
            return response.status, data
        return response.status, json.loads(data) if data else None
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("verb", "path", "body", "status", "code"),
    [
        ("GET", "/v1/nothing", b"", 404, "no_route"),
        ("DELETE", "/v1/jobs", b"", 405, "no_route"),
        ("POST", "/v1/jobs", b"not json", 400, "bad_input"),
        ("POST", "/v1/jobs", b"[1]", 400, "bad_input"),
        ("POST", "/v1/jobs", b"[" * 100_000, 400, "bad_input"),
        ("POST", "/v1/jobs", b" " * (app.MAX_BODY_BYTES + 1), 413, "too_large"),
        ("GET", "/v1/jobs?limit=many", b"", 400, "bad_input"),
        ("GET", "/v1/jobs/none", b"", 404, "not_found"),
        ("POST", "/v1/jobs/none/cancel", b"", 404, "not_found"),
        ("GET", "/v1/events?job=none", b"", 404, "not_found"),
    ],
)
def test_every_refusal_says_what_and_what_to_try(
    rig: Rig, verb: str, path: str, body: bytes, status: int, code: str
) -> None:
    found, data = raw(rig, verb, path, body)
    assert found == status
    assert data["apiVersion"] == "spotd/v1"
    assert data["error"]["code"] == code
    assert data["error"]["text"]
    assert data["error"]["try"]


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("disk full"), ObjectsUnavailableError("x")]
)
def test_a_database_that_is_away_says_so(
    rig: Rig, client: PathClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def away(*_: object) -> None:
        raise error

    monkeypatch.setattr(rig.store.jobs, "newest", away)
    with pytest.raises(UserError) as caught:
        client.get("/v1/jobs")
    assert caught.value.text == str(error)
    monkeypatch.undo()
    assert client.get("/v1/jobs")["items"] == []


def test_a_bug_is_a_clear_500_and_the_door_stays_open(
    rig: Rig, client: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.store.jobs, "newest", broken)
    with pytest.raises(UserError, match="the daemon failed on GET /v1/jobs") as caught:
        client.get("/v1/jobs")
    assert "journalctl" in caught.value.try_
    monkeypatch.undo()
    assert client.get("/v1/health")["ok"]


def test_what_a_user_can_do_something_about_is_told_by_every_route_and_is_no_bug(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [*ExitCode]

    def refuse(*_: object) -> Any:
        raise UserError("the store has no key", "give it one", codes[0])

    async def receive(*_: object) -> Any:
        refuse()

    monkeypatch.setattr(app, "ROUTES", tuple(replace(row, handler=refuse) for row in ROUTES))
    monkeypatch.setattr(Metrics, "text", refuse)
    monkeypatch.setattr(packages, "has_package", refuse)
    monkeypatch.setattr(packages, "receive_package", receive)
    monkeypatch.setattr(checkpoint_imports, "receive_shard", receive)
    rig.stop()
    rig.start()
    statuses = {}
    while codes:
        for verb, path in (
            (row.operation.method, row.operation.path)
            for row in ROUTES
            if row.kind is not Kind.OPENAPI
        ):
            where = re.sub(
                r"{(\w+)}", lambda found: DIGEST if found[1] == "digest" else "gpt", path
            )
            status, data = raw(rig, verb, where)
            assert 400 <= status < 500, (verb, path, data)
            statuses[codes[0]] = status
            if verb != "HEAD":
                told = {"text": "the store has no key", "try": "give it one"}
                assert {name: data["error"][name] for name in told} == told
                code = EXIT_CODES.get(data["error"]["code"], ExitCode.FAILURE)
                assert code in {codes[0], ExitCode.FAILURE}
        codes.pop(0)
    assert statuses[ExitCode.USAGE] == 400
    assert statuses[ExitCode.NOT_FOUND] == 404
    assert statuses[ExitCode.AUTH] == 403
    assert statuses[ExitCode.REFUSED] == statuses[ExitCode.FAILURE] == 409


def test_what_is_away_for_a_moment_is_asked_again(
    rig: Rig, client: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wait`, `run` and `logs -f` go on after a short outage of the database; what is broken, not
    away, ends them at once."""
    real = rig.store.jobs.newest
    errors = [StoreUnavailableError("away"), StoreUnavailableError("away")]
    monkeypatch.setattr("spotd.api_client.client._RETRY_S", 0.01)

    def ask() -> dict[str, Any]:
        return client.with_retry(lambda: client.get("/v1/jobs"), 60.0)

    def recovering(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(*arguments)

    monkeypatch.setattr(rig.store.jobs, "newest", recovering)
    assert ask()["items"] == []
    assert errors == []
    errors += [StoreError("of another version"), StoreUnavailableError("away")]
    with pytest.raises(UserError, match="of another version"):
        ask()
    errors.append(StoreUnavailableError("away"))
    with pytest.raises(UserError, match="away"):
        client.with_retry(lambda: client.get("/v1/jobs"), -1.0)


# --- uploads


def test_an_upload_may_take_as_long_as_the_store_behind_the_daemon(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other replies come sooner."""
    real = rig.objects.put

    def put(key: str, data: Any) -> Any:
        threading.Event().wait(1.0)  # a gigabyte on its way to a bucket
        return real(key, data)

    monkeypatch.setattr(rig.objects, "put", put)
    digest = hashlib.sha256(b"large").hexdigest()
    PathClient(rig.socket, reply_s=0.2).put_package(digest, io.BytesIO(b"large"), 5)
    assert rig.objects.get(f"packages/{digest}")[0] == b"large"


@pytest.mark.parametrize("path", ["/v1/jobs/a%00b", "/v1/events?job=a%00b"])
def test_what_no_name_is_is_no_database_that_is_away(client: PathClient, path: str) -> None:
    """PostgreSQL takes no NUL, and a client that is told 503 asks again and again."""
    with pytest.raises(UserError, match="characters that no name has"):
        client.get(path)


def test_an_upload_is_stored_once_under_its_digest(rig: Rig, client: PathClient) -> None:
    data = bytes(range(256)) * 10_000
    digest = hashlib.sha256(data).hexdigest()
    assert not client.has_package(digest)
    client.put_package(digest, io.BytesIO(data), len(data))
    client.put_package(digest, io.BytesIO(data), len(data))
    assert client.has_package(digest)
    assert rig.objects.get(f"packages/{digest}")[0] == data
    assert list((rig.folder / "spool").iterdir()) == []


def test_other_bytes_than_announced_are_refused(rig: Rig, client: PathClient) -> None:
    digest = hashlib.sha256(b"good").hexdigest()
    with pytest.raises(UserError, match="another digest"):
        client.put_package(digest, io.BytesIO(b"evil"), 4)
    assert not client.has_package(digest)
    assert list((rig.folder / "spool").iterdir()) == []


@pytest.mark.parametrize("announced", [True, False])
def test_too_large_an_upload_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    monkeypatch.setattr(packages, "MAX_PACKAGE_BYTES", 1 << 20)
    data = b"x" * (1 << 21)
    body: Any = data if announced else iter([data[:100_000]] * 21)
    status, reply = raw(rig, "PUT", "/v1/packages/" + "0" * 64, body)
    assert status == 413
    assert ".skyignore" in reply["error"]["try"]
    assert not (rig.folder / "spool").exists() or not list((rig.folder / "spool").iterdir())


def test_an_upload_that_is_cut_off_leaves_nothing(rig: Rig, client: PathClient) -> None:
    digest = hashlib.sha256(b"0123456789").hexdigest()
    with socket.socket(socket.AF_UNIX) as half:
        half.connect(str(rig.socket))
        head = f"PUT /v1/packages/{digest} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n01234"
        half.sendall(head.encode())
        until(lambda: (rig.folder / "spool").exists() and any((rig.folder / "spool").iterdir()))
    until(lambda: not any((rig.folder / "spool").iterdir()))
    assert not client.has_package(digest)


# --- the record


def test_events_page_forward_and_from_the_end(rig: Rig, client: PathClient) -> None:
    job_id = rig.submit()
    for number in range(1203):
        rig.store.events.add(job_id, Event("n", f"event {number}"), rig.clock.now_us())
    first = client.get("/v1/events", job="gpt")
    assert len(first["items"]) == 500
    second = client.get("/v1/events", job="gpt", after=first["cursor"])
    assert second["items"][0]["text"] == "event 500"
    last = client.get("/v1/events", job="gpt", last=700)["items"]
    assert [item["text"] for item in last] == [f"event {n}" for n in range(503, 1203)]
    assert last[0]["job"] == "gpt"
    few = client.get("/v1/events", last=2)["items"]
    assert [item["text"] for item in few] == ["event 1201", "event 1202"]


def test_a_long_poll_answers_when_something_happens(
    rig: Rig, client: PathClient, impatient: PathClient
) -> None:
    job_id = rig.submit()
    start = client.get("/v1/events", job="gpt", last=1)["cursor"]
    timer = threading.Timer(
        0.3, lambda: rig.store.events.add(job_id, Event("n", "news"), rig.clock.now_us())
    )
    timer.start()
    news = impatient.get("/v1/events", job="gpt", after=start, wait_s=FOR_EVER_S)
    timer.join()
    assert [item["text"] for item in news["items"]] == ["news"]
    empty = client.get("/v1/events", job="gpt", after=news["cursor"], wait_s=1)
    assert empty["items"] == []
    assert empty["cursor"] == news["cursor"]


def test_who_waits_hears_of_another_phase_at_once(
    rig: Rig, client: PathClient, impatient: PathClient
) -> None:
    """Whatever event there is of it, or none."""
    job_id = rig.submit()
    start = client.get("/v1/events", job="gpt", last=1)["cursor"]
    wanted = {"job": "gpt", "after": start, "phase": "waiting"}
    timer = threading.Timer(0.3, lambda: rig.finish(job_id, 0, Outcome.SUCCEEDED))
    timer.start()
    news = impatient.get("/v1/events", **wanted, wait_s=FOR_EVER_S)
    timer.join()
    assert client.get("/v1/jobs/gpt")["phase"] == "succeeded"
    known = {**wanted, "after": news["cursor"] + 10, "phase": "succeeded"}
    begun = time.monotonic()
    assert client.get("/v1/events", **known, wait_s=1)["items"] == []
    assert time.monotonic() - begun >= 1, "that one is known"


def test_who_waits_is_answered_when_the_daemon_stops(rig: Rig, impatient: PathClient) -> None:
    """And not cut off, which would look like a failure."""
    rig.submit()
    assert rig.server is not None
    rig.server.web.server.config.timeout_graceful_shutdown = FOR_EVER_S
    timer = threading.Timer(0.5, rig.stop)
    timer.start()
    events = impatient.get("/v1/events", job="gpt", after=1 << 40, wait_s=FOR_EVER_S)
    assert events["items"] == []
    timer.join()


# --- logs


def texts(reply: dict[str, Any]) -> str:
    return "".join(chunk["text"] for chunk in reply["chunks"])


def test_logs_span_generations_and_go_on(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    reply = client.post("/v1/jobs/gpt/logs")
    assert texts(reply) == ("installing\nstep 1 loss 3.2\nstep 1190 loss 1.9\nstep 1191 loss 1.9\n")
    assert [chunk["generation"] for chunk in reply["chunks"]] == [1, 1, 1, 2]
    assert not reply["done"]
    # The old machine's last words come late, and are not missed.
    old, new = rig.store.nodes.of_job(job_id)
    rig.log(old, "rank0", 35, b"bye\n")
    timer = threading.Timer(0.3, lambda: rig.log(new, "rank0", 19, b"step 1192\n"))
    timer.start()
    more = client.post("/v1/jobs/gpt/logs", {"cursor": reply["cursor"], "wait_s": 0})
    assert texts(more) == "bye\n"
    news = client.post("/v1/jobs/gpt/logs", {"cursor": more["cursor"], "wait_s": 20})
    timer.join()
    assert texts(news) == "step 1192\n"


def test_logs_of_one_machine_one_attempt_one_stream(rig: Rig, client: PathClient) -> None:
    story(rig)
    assert texts(client.post("/v1/jobs/gpt/logs", {"generation": 2})) == "step 1191 loss 1.9\n"
    assert texts(client.post("/v1/jobs/gpt/logs", {"stream": "setup"})) == "installing\n"
    assert texts(client.post("/v1/jobs/gpt/logs", {"generation": 1, "rank": 0})).startswith("inst")


@pytest.mark.parametrize(
    ("wanted", "text", "advice"),
    [
        ({"generation": 9}, "job gpt has no generation 9", "--gen 1 to 2"),
        ({"generation": 0}, "job gpt has no generation 0", "--gen 1 to 2"),
        ({"rank": 7}, "job gpt has no machine of rank 7", "--rank 0"),
        ({"stream": "foo"}, "there is no stream 'foo'", "setup, rank0"),
        ({"stream": "rank1"}, "there is no stream 'rank1'", "setup, rank0"),
    ],
)
def test_logs_that_cannot_be_are_an_error_that_names_what_there_is(
    rig: Rig, client: PathClient, wanted: dict[str, Any], text: str, advice: str
) -> None:
    story(rig)
    with pytest.raises(UserError, match=text) as caught:
        client.post("/v1/jobs/gpt/logs", wanted)
    assert caught.value.exit_code is ExitCode.NOT_FOUND
    assert advice in caught.value.try_


def test_logs_that_may_still_come_are_waited_for(rig: Rig, client: PathClient) -> None:
    rig.launch(rig.submit(), SPOT, ago_s=10)
    assert texts(client.post("/v1/jobs/gpt/logs", {"generation": 1, "stream": "rank3"})) == ""
    with pytest.raises(UserError, match="there is no stream 'foo'"):
        client.post("/v1/jobs/gpt/logs", {"stream": "foo"})
    with pytest.raises(UserError, match="no generation 2") as caught:
        client.post("/v1/jobs/gpt/logs", {"generation": 2})
    assert "--gen 1" in caught.value.try_


def test_any_byte_survives_and_long_logs_come_in_pieces(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[1]
    data = bytes(range(256)) * 10_000
    rig.log(node, "rank1", 0, data[:1_000_000])
    rig.log(node, "rank1", 1_000_000, data[1_000_000:])
    body: dict[str, Any] = {"stream": "rank1"}
    got = b""
    while True:
        reply = client.post("/v1/jobs/gpt/logs", body)
        got += texts(reply).encode("latin-1")
        body["cursor"] = reply["cursor"]
        if not reply["more"]:
            break
    assert got == data
    tail = client.post("/v1/jobs/gpt/logs", {"stream": "rank1", "tail_bytes": 1000})
    assert texts(tail).encode("latin-1") == data[-1000:]


def test_output_has_the_time_at_which_it_was_stored(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[1]
    for number, hour in enumerate((9, 10, 11)):
        rig.log(node, "rank1", 5 * number, f"{hour:4}\n".encode())
        key = f"logs/{node.job_id}/g{node.generation}/r{node.rank}/rank1/{5 * number:012d}"
        os.utime(Path(rig.objects.url.removeprefix("file://")) / key, (hour * 3600,) * 2)
    reply = client.post("/v1/jobs/gpt/logs", {"stream": "rank1"})
    assert [chunk["at"] for chunk in reply["chunks"]] == [
        f"1970-01-01T{hour:02}:00:00.000000Z" for hour in (9, 10, 11)
    ]
    since = {"stream": "rank1", "since_us": 10 * 3600 * 1_000_000}
    assert texts(client.post("/v1/jobs/gpt/logs", since)) == "  10\n  11\n"
    assert texts(client.post("/v1/jobs/gpt/logs", since | {"tail_bytes": 5})) == "  11\n"
    assert texts(client.post("/v1/jobs/gpt/logs", since | {"since_us": 1 << 50})) == ""
    reply = client.post("/v1/jobs/gpt/logs", since | {"since_us": 1 << 50})
    rig.log(node, "rank1", 15, b"  12\n")
    more = client.post("/v1/jobs/gpt/logs", {**since, "cursor": reply["cursor"]})
    assert texts(more) == "  12\n", "what comes later is not left out"


def test_bytes_that_never_came_are_passed_over(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[1]
    rig.log(node, "rank0", 119, b"after the gap\n")
    assert texts(client.post("/v1/jobs/gpt/logs", {"generation": 2})) == (
        "step 1191 loss 1.9\nafter the gap\n"
    )


def missing(reply: dict[str, Any]) -> list[tuple[int, int | None]]:
    """The gaps in a reply: where they are, and their bytes."""
    return [
        (chunk["offset"], chunk["missing"]["bytes"])
        for chunk in reply["chunks"]
        if "missing" in chunk
    ]


def test_missing_output_is_said_once_with_its_bytes(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[1]
    rig.log(node, "rank0", 119, b"after the gap\n")
    reply = client.post("/v1/jobs/gpt/logs", {"generation": 2})
    assert missing(reply) == [(19, 100)]
    assert missing(client.post("/v1/jobs/gpt/logs", {"cursor": reply["cursor"]})) == []


@pytest.mark.parametrize("stream", ["rank0", "setup"])
def test_the_end_of_a_lost_machine_s_output_is_unknown(
    rig: Rig, client: PathClient, stream: str
) -> None:
    """Of a machine that never said where its output ends; `setup` is complete once `run` runs."""
    job_id = story(rig)
    first, second = rig.store.nodes.of_job(job_id)
    for node in (first, second):
        rig.objects.delete(stream_name(node, stream).end_key)
    reply = client.post("/v1/jobs/gpt/logs")
    assert missing(reply) == ([(35, None)] if stream == "rank0" else [])
    assert missing(client.post("/v1/jobs/gpt/logs", {"cursor": reply["cursor"]})) == []
    assert missing(client.post("/v1/jobs/gpt/logs", {"tail_bytes": 10})) == []
    assert missing(client.post("/v1/jobs/gpt/logs", {"since_us": 1 << 52})) == []
    rig.leave(second, 0, LeaveReason.LOST, "silent")
    rig.finish(job_id, 0, Outcome.FAILED)
    reply = client.post("/v1/jobs/gpt/logs", {"cursor": reply["cursor"]})
    assert missing(reply) == ([(19, None)] if stream == "rank0" else [])
    assert reply["done"]


def test_output_that_only_the_job_s_store_has_is_read_there(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[1]
    place = stream_name(node, "rank0")
    key = last_output_key(job_id, generation=2, rank=0, stream="rank0")
    rest = "".join(f"\u4e16 {number}\n" for number in range(300_000)).encode()
    job = rig.store.jobs.find(job_id)
    assert job is not None
    rig.open_store(job.spec.checkpoint.store).put(key, rest)
    end = LogEnd(2, "rank0", 19 + len(rest), begin=19, end=19 + len(rest))
    rig.objects.put(place.end_key, write_end(end))
    rig.store.logs.record_offset(node.id, "rank0", end.offset)
    body: dict[str, Any] = {"generation": 2}
    got, replies = b"", 0
    while True:
        reply = client.post("/v1/jobs/gpt/logs", body)
        got, replies = got + texts(reply).encode("latin-1"), replies + 1
        body["cursor"] = reply["cursor"]
        assert all(chunk["text"].encode("latin-1").decode() for chunk in reply["chunks"])
        if not reply["more"]:
            break
    assert got == b"step 1191 loss 1.9\n" + rest
    assert replies > 2
    found = client.get("/v1/jobs/gpt/logs/search?text=299999")
    assert [line["text"] for line in found["items"][0]["lines"]] == ["\u4e16 299999"]


def test_output_that_retention_deleted_is_passed_over(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    rig.store.logs.record_offset(rig.store.nodes.of_job(job_id)[1].id, "rank0", 500)
    reply = client.post("/v1/jobs/gpt/logs", {"generation": 2})
    assert texts(reply) == "step 1191 loss 1.9\n"
    assert reply["cursor"] == {"2/0/rank0": 500}


def test_a_tail_that_came_first_waits_for_what_lies_before_it(rig: Rig, client: PathClient) -> None:
    """After a notice the newest bytes are sent first."""
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[1]
    prefix = f"logs/{job_id}/g2/r0/rank0"
    rig.objects.put(f"{prefix}/{38:012d}", b"last words\n")  # the record still says 19
    reply = client.post("/v1/jobs/gpt/logs", {"generation": 2})
    assert texts(reply) == "step 1191 loss 1.9\n"
    rig.objects.put(f"{prefix}/{19:012d}", b"step 1192 l")
    rig.objects.put(f"{prefix}/{26:012d}", b"92 loss 1.8\n")  # by another cut, a part of it again
    rig.store.logs.record_offset(node.id, "rank0", 28)
    more = client.post("/v1/jobs/gpt/logs", {"generation": 2, "cursor": reply["cursor"]})
    assert texts(more) == "step 1192"
    rig.store.logs.record_offset(node.id, "rank0", 49)
    last = client.post("/v1/jobs/gpt/logs", {"generation": 2, "cursor": more["cursor"]})
    assert texts(last) == " loss 1.8\nlast words\n"


def test_when_nothing_more_can_come_the_tail_is_told_all_the_same(
    rig: Rig, client: PathClient
) -> None:
    """The daemon was away when its machine ended."""
    job_id = story(rig)
    rig.objects.put(f"logs/{job_id}/g2/r0/rank0/{30:012d}", b"last words\n")
    rig.leave(rig.store.nodes.of_job(job_id)[1], 0, LeaveReason.DONE, "")
    rig.finish(job_id, 0, Outcome.SUCCEEDED)
    reply = client.post("/v1/jobs/gpt/logs", {"generation": 2})
    assert texts(reply) == "step 1191 loss 1.9\nlast words\n"
    assert reply["done"]


def test_logs_end_with_the_job(rig: Rig, client: PathClient) -> None:
    job_id = rig.submit()
    assert not client.post("/v1/jobs/gpt/logs")["done"]
    rig.finish(job_id, 0, Outcome.CANCELLED)
    assert client.post("/v1/jobs/gpt/logs", {"wait_s": 20})["done"]
    with pytest.raises(UserError) as caught:
        client.post("/v1/jobs/gpt/logs", {"cursor": "x"})
    assert caught.value.exit_code is ExitCode.USAGE


# --- what only the unix socket gives


def test_keys_are_for_the_unix_socket_only(rig: Rig) -> None:
    rig.address(rig.store.nodes.of_job(story(rig))[-1], "127.0.0.9", 2222)
    assert raw(rig, "POST", "/v1/jobs/gpt/ssh")[0] == 200
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        make_app(rig.context(), rig.authority), log_config=None, lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    connection = http.client.HTTPConnection(*listener.getsockname(), timeout=LIMIT_S)
    try:
        connection.request("POST", "/v1/jobs/gpt/ssh")
        reply = connection.getresponse()
        assert reply.status == 403
        assert b"PRIVATE" not in reply.read()
    finally:
        connection.close()
        until(lambda: server.started)
        server.should_exit = True
        thread.join()
        listener.close()


# --- doctor and alerts


def test_doctor_finds_what_is_broken(
    rig: Rig, client: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/v1/doctor")["ok"]
    rig.store.market.record_provider("aws", "credentials refused", rig.clock.now_us())

    def away(*_: object) -> None:
        raise ObjectsUnavailableError("the bucket is away")

    monkeypatch.setattr(rig.objects, "put", away)
    shutil.rmtree(rig.folder / "ckpt")
    (rig.folder / "ckpt").write_text("a file is in the way")
    data = client.get("/v1/doctor")
    bad = {check["name"]: check["text"] for check in data["checks"] if not check["ok"]}
    assert not data["ok"]
    assert set(bad) == {"object store", "checkpoint store", "provider aws"}
    assert "the bucket is away" in bad["object store"]
    assert "credentials refused" in bad["provider aws"]


def test_a_cloud_that_does_not_answer_is_told_by_doctor_plan_and_why(
    rig: Rig, client: PathClient
) -> None:
    """Its offers of before are still on record, and are not a sign of life."""
    rig.submit()
    body = {"yaml": JOB_FILE}
    assert client.post("/v1/plan", body)["answering"] == len(OFFERS)
    rig.silent_providers["toy-gcp"] = "no answer for 95 s: connection refused"
    bad = [check for check in client.get("/v1/doctor")["checks"] if not check["ok"]]
    assert [check["name"] for check in bad] == ["provider toy-gcp"]
    assert "no answer for 95 s: connection refused" in bad[0]["text"]
    assert "spotctl cloud up" in bad[0]["try"]
    planned = client.post("/v1/plan", body)
    marked = {row["provider"]: row["silent"] for row in planned["offers"]}
    assert marked == {"aws": "", "toy-gcp": "no answer for 95 s: connection refused"}
    assert planned["answering"] == len(OFFERS) - 1
    why = client.get("/v1/jobs/gpt/why")
    assert "toy-gcp: no answer for 95 s: connection refused" in why["reasons"]


def test_a_plan_says_what_saves_cost_an_hour(rig: Rig, client: PathClient) -> None:
    """Between clouds, between regions of one where no price is known, and where none is left."""
    saves = "{engine: spotd, every: 5m, size: 100GB, store: s3://b/x}"
    text = JOB_FILE.replace("{engine: spotd, every_steps: 100}", saves)
    rig.places = {"s3://b": ("gcp", "us-central1")}
    planned = client.post("/v1/plan", {"yaml": text})
    costs = {row["key"]: row["checkpoint_usd_per_h"] for row in planned["offers"]}
    assert planned["checkpoint_gb"] == 100
    # $0.09 x 100 GB x 12; 5,961 parts of 16 MiB x 12 x $0.005 for a thousand.
    assert costs[SPOT.key] == {"egress": 108.0, "requests": 0.35766}
    kept = planned["storage"]
    assert (kept["keep"], kept["store"], kept["region"]) == (3, "s3://b/x", "us-east1")
    assert kept["usd_per_month"] == pytest.approx(3 * 100e9 / 2**30 * 0.020, rel=1e-4)
    assert kept["usd_per_h"] == pytest.approx(kept["usd_per_month"] / 730, rel=1e-3)
    assert costs[OFFERS[2].key]["egress"] == 0, "a machine of this box"
    rig.places = {"s3://b": ("aws", "elsewhere")}
    rows = client.post("/v1/plan", {"yaml": text})["offers"]
    assert {r["key"]: r["checkpoint_usd_per_h"]["egress"] for r in rows}[SPOT.key] is None
    for none, places in ((text, {"s3://b": ("", "")}), (text.replace(", size: 100GB", ""), {})):
        rig.places = places
        planned = client.post("/v1/plan", {"yaml": none})
        assert planned["storage"] is None, "a server of one's own, or nobody knows how much"
        assert {r["checkpoint_usd_per_h"]["requests"] for r in planned["offers"]} == {None}


def test_the_size_of_a_save_is_what_the_last_job_of_that_name_saved(
    rig: Rig, client: PathClient
) -> None:
    assert client.post("/v1/plan", {"yaml": JOB_FILE})["checkpoint_gb"] is None
    job_id = story(rig)
    saved = rig.store.checkpoints.rows(job_id)[-1].bytes
    assert saved
    assert client.post("/v1/plan", {"yaml": JOB_FILE})["checkpoint_gb"] == saved / 1e9


def test_doctor_reads_the_bucket_of_checkpoints() -> None:
    """The daemon reads HEAD there, with its own rights: a job's end is seen by nobody else."""
    rig = Rig()
    rig.checkpoint_store = "s3://bucket/checkpoints"
    there: dict[str, ObjectStore] = {}

    def open_store(url: str) -> ObjectStore:
        if url not in there:
            raise StoreConfigError("s3:// needs the package obstore")
        return there[url]

    def refused(_key: str) -> Any:
        raise StoreDeniedError("check the keys and the policy")

    def finding() -> dict[str, Any]:
        checks = PathClient(rig.socket).get("/v1/doctor")["checks"]
        [found] = [check for check in checks if check["name"] == "checkpoint store"]
        return dict(found)

    rig.open_store = open_store
    rig.start()
    try:
        assert finding()["text"] == "s3:// needs the package obstore"
        readable = there[rig.checkpoint_store] = open_objects(f"file://{rig.folder}/bucket")
        assert finding()["ok"]
        assert not (rig.folder / "bucket").exists(), "nothing is written"
        readable.get = refused  # type: ignore[method-assign]
        assert finding()["text"] == "check the keys and the policy"
    finally:
        rig.close()


def test_doctor_sees_a_folder_that_rented_machines_do_not_have(
    rig: Rig, client: PathClient
) -> None:
    def finding() -> dict[str, Any]:
        checks = client.get("/v1/doctor")["checks"]
        [found] = [check for check in checks if check["name"] == "checkpoint store"]
        return dict(found)

    assert finding()["ok"]
    rig.shared = False
    assert not finding()["ok"]
    assert "is a folder, which machines of aws do not have" in finding()["text"]
    assert "shared = true" in finding()["try"]


def test_doctor_works_without_a_database(
    rig: Rig, client: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what finds that out."""

    def away(*_: object) -> None:
        raise StoreUnavailableError("no route to the database")

    for way in ("read", "read_one"):
        monkeypatch.setattr(rig.store.session.database, way, away)
    data = client.get("/v1/doctor")
    bad = {check["name"]: check["text"] for check in data["checks"] if not check["ok"]}
    assert set(bad) == {"database", "limits"}
    assert set(bad.values()) == {"no route to the database"}


def test_a_failing_route_is_reported(rig: Rig, client: PathClient) -> None:
    rig.alerts["pager"] = "HTTP 404 no_service"
    data = client.post("/v1/alerts/test")
    assert not data["ok"]
    assert {item["route"]: item["error"] for item in data["items"]}["pager"] == (
        "HTTP 404 no_service"
    )
    assert client.post("/v1/alerts/test", {"route": "default"})["ok"]


def test_a_caller_that_hangs_up_in_the_middle_is_no_mistake_of_ours(
    rig: Rig, client: PathClient, caplog: pytest.LogCaptureFixture
) -> None:
    """It gave up on a daemon that was busy, stopped or away."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(rig.socket))
        caller.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: spotd\r\nContent-Length: 100\r\n\r\n{")

    def refused() -> bool:
        return any("cut off" in row["text"] for row in client.get("/v1/audit")["items"])

    until(refused)
    assert [row.getMessage() for row in caplog.records if row.exc_info] == []
