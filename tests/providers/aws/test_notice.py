"""The EC2 watcher against the local cloud's IMDSv2 and against broken ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping

import pytest

from providers.aws.notice import Watcher
from providers.base import MetadataError, NoticeKind
from providers.local.documents import MetadataReply, MetadataRequest
from tests.fixtures.metadata import serve_metadata, serve_script
from tests.fixtures.waiting import LIMIT_S

DEADLINE_US = 1_779_974_382_000_000  # 2026-05-28T13:19:42Z


def answers(**documents: object) -> Callable[[MetadataRequest], MetadataReply]:
    """A service with a token and these documents by the last part of their path."""
    return answers_of(documents)


def answers_of(documents: Mapping[str, object]) -> Callable[[MetadataRequest], MetadataReply]:
    """The same with documents that may change."""

    def reply(ask: MetadataRequest) -> MetadataReply:
        if ask.method == "PUT":
            return MetadataReply(
                200, b"token-1", headers={"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": "60"}
            )
        if ask.headers.get("x-aws-ec2-metadata-token") != "token-1":
            return MetadataReply(401, b"Unauthorized")
        name = ask.path.rpartition("/")[2].replace("-", "_")
        if name not in documents:
            return MetadataReply(404, b"<html>404</html>")
        result = documents[name]
        return (
            result
            if isinstance(result, MetadataReply)
            else MetadataReply(200, json.dumps(result).encode())
        )

    return reply


@pytest.mark.req("PRE-01")
def test_instance_action_is_a_preemption_with_its_time() -> None:
    with serve_metadata("aws") as service:
        watcher = Watcher(service.url)
        assert watcher.poll() == []
        service.publish("preempt", DEADLINE_US)
        (notice,) = watcher.poll()
    assert notice.kind is NoticeKind.PREEMPT
    assert notice.deadline_us == DEADLINE_US
    assert notice.source == "spot/instance-action"


@pytest.mark.req("PRE-01")
def test_a_refused_token_is_renewed_within_the_same_poll() -> None:
    with serve_metadata("aws") as service:
        watcher = Watcher(service.url)
        watcher.poll()
        service.publish("preempt", DEADLINE_US)
        service.fault("expire_tokens")
        assert [notice.kind for notice in watcher.poll()] == [NoticeKind.PREEMPT]


@pytest.mark.req("PRE-01")
def test_every_read_carries_a_token_and_the_token_is_used_again() -> None:
    with serve_script(answers()) as (url, script):
        watcher = Watcher(url)
        watcher.poll()
        watcher.poll()
    puts = [ask for ask in script.requests if ask.method == "PUT"]
    gets = [ask for ask in script.requests if ask.method == "GET"]
    assert len(puts) == 1
    assert puts[0].headers["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
    assert len(gets) >= 2
    assert all(ask.headers["x-aws-ec2-metadata-token"] == "token-1" for ask in gets)


def test_a_token_is_renewed_before_it_expires() -> None:
    now = [100.0]
    with serve_script(answers()) as (url, script):
        watcher = Watcher(url, monotonic=lambda: now[0])
        watcher.poll()
        now[0] += 44.0  # granted for 60 s, renewed 15 s before
        watcher.poll()
        assert sum(ask.method == "PUT" for ask in script.requests) == 1
        now[0] += 2.0
        watcher.poll()
        assert sum(ask.method == "PUT" for ask in script.requests) == 2


@pytest.mark.parametrize("granted", ["9" * 400, "9" * 5000, "-1", "soon", ""])
def test_a_token_whose_time_is_nonsense_counts_as_the_one_asked_for(granted: str) -> None:
    now = [100.0]

    def reply(ask: MetadataRequest) -> MetadataReply:
        headers = {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": granted}
        if ask.method == "PUT":
            return MetadataReply(200, b"t", headers=headers)
        return MetadataReply(404, b"")

    with serve_script(reply) as (url, script):
        watcher = Watcher(url, token_ttl_s=60, monotonic=lambda: now[0])
        assert watcher.poll() == []
        now[0] += 46.0
        watcher.poll()
    assert sum(ask.method == "PUT" for ask in script.requests) == 2


def test_without_tokens_nothing_is_read_the_old_way() -> None:
    def reply(ask: MetadataRequest) -> MetadataReply:
        return (
            MetadataReply(403, b"Forbidden") if ask.method == "PUT" else MetadataReply(200, b"{}")
        )

    with serve_script(reply) as (url, script), pytest.raises(MetadataError, match="403"):
        Watcher(url).poll()
    assert [ask.method for ask in script.requests] == ["PUT"]


def test_rebalance_and_maintenance_are_told_apart() -> None:
    with serve_metadata("aws") as service:
        service.publish("rebalance", DEADLINE_US, "r")
        service.publish("maintenance", DEADLINE_US, "m")
        rebalance, maintenance = Watcher(service.url).poll()
    assert (rebalance.kind, rebalance.deadline_us) == (NoticeKind.REBALANCE, None)
    assert (maintenance.kind, maintenance.deadline_us) == (NoticeKind.MAINTENANCE, DEADLINE_US)
    assert maintenance.notice_id == "aws-event-m"


def test_a_completed_event_is_no_notice() -> None:
    event = {"EventId": "e", "State": "completed", "NotBefore": "21 Jan 2019 09:00:43 GMT"}
    with serve_script(answers(scheduled=[event])) as (url, _):
        assert Watcher(url).poll() == []


@pytest.mark.parametrize(
    "document",
    [
        MetadataReply(200, b"<html>not json"),
        MetadataReply(200, b"[]"),
        MetadataReply(500, b"oops"),
        {"action": "dance", "time": "2026-05-28T13:19:42Z"},
        {"action": "terminate", "time": "tomorrow"},
        {"action": "terminate"},
    ],
)
def test_nonsense_is_an_outage_and_never_a_preemption(document: object) -> None:
    with (
        serve_script(answers(instance_action=document)) as (url, _),
        pytest.raises(MetadataError),
    ):
        Watcher(url).poll()


def test_a_broken_advisory_does_not_hide_a_preemption() -> None:
    action = {"action": "stop", "time": "2026-05-28T13:19:42Z"}
    broken = MetadataReply(200, b"{")
    with serve_script(answers(instance_action=action, rebalance=broken)) as (url, _):
        (notice,) = Watcher(url).poll()
        assert notice.kind is NoticeKind.PREEMPT
    with serve_script(answers(rebalance=broken)) as (url, _), pytest.raises(MetadataError):
        Watcher(url).poll()


ACTION = {"action": "terminate", "time": "2026-05-28T13:19:42Z"}


def test_where_a_preemption_is_nothing_else_is_asked_for() -> None:
    with serve_script(answers(instance_action=ACTION)) as (url, script):
        (notice,) = Watcher(url).poll()
    assert notice.kind is NoticeKind.PREEMPT
    assert [ask.path.rpartition("/")[2] for ask in script.requests] == ["token", "instance-action"]


@pytest.mark.parametrize("slow", ["rebalance", "scheduled"])
@pytest.mark.parametrize("timeout_s", [2.0, 0.3])
def test_a_slow_advisory_does_not_hide_a_preemption(slow: str, timeout_s: float) -> None:
    """A preemption during a slow advisory request is received in the same poll."""
    documents: dict[str, object] = {}
    known = answers_of(documents)

    def reply(ask: MetadataRequest) -> MetadataReply:
        if ask.path.endswith(slow):
            documents["instance_action"] = ACTION
            time.sleep(0.6)
        return known(ask)

    with serve_script(reply) as (url, _):
        (notice,) = Watcher(url, timeout_s=timeout_s).poll()
    assert notice.kind is NoticeKind.PREEMPT


def test_an_unreachable_service_is_an_outage_within_the_timeout() -> None:
    over = threading.Event()

    def reply(ask: MetadataRequest) -> MetadataReply:
        over.wait(LIMIT_S)  # who waits so long is answered
        return answers()(ask)

    with serve_script(reply) as (url, _):
        with pytest.raises(MetadataError):
            Watcher(url, timeout_s=0.2).poll()
        over.set()
    with pytest.raises(MetadataError, match="refused"):
        Watcher(url).poll()


def test_a_proxy_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with serve_metadata("aws") as service:
        assert Watcher(service.url).poll() == []


def test_an_unusable_address_is_named() -> None:
    with pytest.raises(MetadataError, match="ftp://here"):
        Watcher("ftp://here").poll()
