"""The Compute Engine watcher against the local cloud's metadata server and against broken ones."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from providers.base import MetadataError, Notice, NoticeKind
from providers.gcp.notice import NOTICE_ATTRIBUTE, Watcher
from providers.local.documents import MetadataReply, MetadataRequest
from tests.fixtures.metadata import serve_metadata, serve_script
from tests.fixtures.waiting import LIMIT_S


@pytest.mark.req("PRE-02")
def test_a_preemption_ends_the_long_poll_at_once() -> None:
    with serve_metadata("gcp") as service:
        watcher = Watcher(service.url, wait_s=int(2 * LIMIT_S), notice_s=30.0, wall=lambda: 1000.0)
        assert watcher.poll() == []
        result: list[Notice] = []

        waiting = threading.Thread(target=lambda: result.extend(watcher.poll()), daemon=True)
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive(), "the second poll waits for a change"
        service.publish("preempt", 0)
        waiting.join(LIMIT_S)
    (notice,) = result
    assert notice.kind is NoticeKind.PREEMPT
    assert notice.deadline_us == 1_030_000_000


def test_the_deadline_stays_that_of_the_first_sight() -> None:
    now = [1000.0]
    with serve_metadata("gcp") as service:
        watcher = Watcher(service.url, wait_s=1, notice_s=120.0, wall=lambda: now[0])
        assert watcher.poll() == []
        service.publish("preempt", 0)
        first = watcher.poll()
        now[0] = 1010.0
        assert watcher.poll() == first
        assert first[0].deadline_us == 1_120_000_000


def test_the_long_poll_carries_the_etag_and_a_timeout() -> None:
    def reply(ask: MetadataRequest) -> MetadataReply:
        body = b"NONE" if "maintenance" in ask.path else b"FALSE"
        return MetadataReply(200, body, headers={"ETag": "e/1", "Metadata-Flavor": "Google"})

    with serve_script(reply) as (url, script):
        watcher = Watcher(url, wait_s=7)
        watcher.poll()
        watcher.poll()
    _, first, _, second, _ = script.requests
    assert first.query == {}
    assert second.query == {"wait_for_change": "true", "last_etag": "e/1", "timeout_sec": "7"}
    assert all(ask.headers["metadata-flavor"] == "Google" for ask in script.requests)


def _tells(attribute: MetadataReply) -> Callable[[MetadataRequest], MetadataReply]:
    """Not preempted at first, then preempted."""

    def reply(ask: MetadataRequest) -> MetadataReply:
        if ask.path.endswith(f"/attributes/{NOTICE_ATTRIBUTE}"):
            return attribute
        if "maintenance" in ask.path:
            return MetadataReply(200, b"NONE")
        again = ask.query.get("wait_for_change") == "true"
        return MetadataReply(200, b"TRUE" if again else b"FALSE", headers={"ETag": "1"})

    return reply


@pytest.mark.parametrize(
    ("attribute", "seconds"),
    [
        (MetadataReply(200, b"120"), 120),
        (MetadataReply(404, b""), 30),  # a machine that was made without: 30 s is all it has
        (MetadataReply(200, b"0"), 30),
        (MetadataReply(200, b"soon"), 30),
        (MetadataReply(200, b"-5"), 30),
        (MetadataReply(200, b"9" * 40), 30),
    ],
)
def test_the_machine_says_how_long_its_notice_is(attribute: MetadataReply, seconds: int) -> None:
    with serve_script(_tells(attribute)) as (url, _):
        watcher = Watcher(url, wait_s=1, wall=lambda: 1000.0)
        assert watcher.poll() == []
        (notice,) = watcher.poll()
    assert notice.deadline_us == (1000 + seconds) * 1_000_000
    assert f"within {seconds} s" in notice.text


def test_it_is_asked_until_it_answers_and_then_never_again() -> None:
    answers = [MetadataReply(503, b""), MetadataReply(200, b"120")]

    def reply(ask: MetadataRequest) -> MetadataReply:
        if NOTICE_ATTRIBUTE in ask.path:
            return answers.pop(0)
        body = b"NONE" if "maintenance" in ask.path else b"FALSE"
        return MetadataReply(200, body, headers={"ETag": "1"})

    with serve_script(reply) as (url, script):
        watcher = Watcher(url, wait_s=1)
        for _ in range(4):
            assert watcher.poll() == []
    assert len([request for request in script.requests if NOTICE_ATTRIBUTE in request.path]) == 2


def test_a_preemption_that_may_be_old_counts_for_the_least() -> None:
    """After a restart of the agent, or an outage, the start of the preemption is unknown."""

    def reply(ask: MetadataRequest) -> MetadataReply:
        if NOTICE_ATTRIBUTE in ask.path:
            return MetadataReply(200, b"120")
        return MetadataReply(200, b"TRUE", headers={"ETag": "1"})

    with serve_script(reply) as (url, _):
        (notice,) = Watcher(url, wall=lambda: 1000.0).poll()
    assert notice.deadline_us == 1_030_000_000


def test_maintenance_comes_and_goes() -> None:
    with serve_metadata("gcp") as service:
        watcher = Watcher(service.url, wait_s=1, wall=lambda: 1000.0)
        assert watcher.poll() == []
        service.publish("maintenance", 0)
        (notice,) = watcher.poll()
        assert notice.kind is NoticeKind.MAINTENANCE
        assert notice.deadline_us == 4_600_000_000
        service.withdraw()
        assert watcher.poll() == []


def test_a_live_migration_takes_nothing_away() -> None:
    def reply(ask: MetadataRequest) -> MetadataReply:
        moving = "maintenance" in ask.path
        body = b"MIGRATE_ON_HOST_MAINTENANCE" if moving else b"FALSE"
        return MetadataReply(200, body, headers={"ETag": "1"})

    with serve_script(reply) as (url, _):
        assert Watcher(url).poll() == []


def test_503_is_an_outage_and_the_next_read_is_a_plain_one() -> None:
    with serve_metadata("gcp") as service:
        watcher = Watcher(service.url)
        watcher.poll()
        service.fault("error_503", 60.0)
        with pytest.raises(MetadataError, match="503"):
            watcher.poll()
        service.publish("preempt", 0)  # during the outage
        service.fault("error_503", 0.0)
        assert [notice.kind for notice in watcher.poll()] == [NoticeKind.PREEMPT]


@pytest.mark.parametrize("body", [b"", b"<html>", b"MAYBE", b"\xff\xfe"])
def test_nonsense_is_an_outage_and_never_a_preemption(body: bytes) -> None:
    with (
        serve_script(lambda _: MetadataReply(200, body, headers={"ETag": "1"})) as (url, _),
        pytest.raises(MetadataError),
    ):
        Watcher(url).poll()


def test_somebody_else_on_the_address_is_not_believed() -> None:
    strange = MetadataReply(200, b"TRUE", headers={"ETag": "1", "Metadata-Flavor": "Other"})
    with serve_script(lambda _: strange) as (url, _), pytest.raises(MetadataError):
        Watcher(url).poll()


def test_without_etags_it_polls_once_a_second() -> None:
    def reply(ask: MetadataRequest) -> MetadataReply:
        return MetadataReply(200, b"NONE" if "maintenance" in ask.path else b"FALSE")

    with serve_script(reply) as (url, script):
        watcher = Watcher(url)
        watcher.poll()
        watcher.poll()
    assert watcher.interval_s == 1.0
    assert all(ask.query == {} for ask in script.requests)
