"""The Azure watcher against the local cloud's Scheduled Events and against broken ones."""

from __future__ import annotations

import json

import pytest

from providers.azure.notice import Watcher
from providers.base import MetadataError, NoticeKind
from providers.local.documents import MetadataReply
from tests.fixtures.metadata import serve_metadata, serve_script

DEADLINE_US = 1_615_856_326_000_000  # Tue, 16 Mar 2021 00:58:46 GMT


def document(**changes: object) -> MetadataReply:
    """The vendor's own example, modified."""
    event = {
        "EventId": "A123BC45-1234-5678-AB90-ABCDEF123456",
        "EventStatus": "Scheduled",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["myspotvm"],
        "NotBefore": "Tue, 16 Mar 2021 00:58:46 GMT",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **changes,
    }
    return MetadataReply(200, json.dumps({"DocumentIncarnation": 1, "Events": [event]}).encode())


@pytest.mark.req("PRE-03")
def test_an_event_is_a_preemption_until_it_is_withdrawn() -> None:
    with serve_metadata("azure") as service:
        watcher = Watcher(service.url)
        assert watcher.poll() == []
        service.publish("preempt", DEADLINE_US)
        (notice,) = watcher.poll()
        assert notice.kind is NoticeKind.PREEMPT
        assert notice.deadline_us == DEADLINE_US
        assert notice.notice_id == "notice-1"
        service.withdraw()
        assert watcher.poll() == []


@pytest.mark.req("PRE-03")
def test_the_first_call_may_take_long_and_the_others_may_not() -> None:
    with serve_metadata("azure", first_call_delay_s=0.6) as service:
        patient = Watcher(service.url, timeout_s=0.1)
        assert patient.poll() == []
        service.fault("slow", 0.5)
        with pytest.raises(MetadataError):
            patient.poll()
    assert Watcher()._first_timeout_s >= 130.0


def test_acknowledging_lets_the_event_start() -> None:
    with serve_metadata("azure") as service:
        watcher = Watcher(service.url)
        service.publish("preempt", DEADLINE_US)
        (notice,) = watcher.poll()
        watcher.acknowledge(notice)
        assert service.told == [("acknowledged", {"id": "notice-1"})]
        (started,) = watcher.poll()
        assert started.deadline_us is None, "it may end the machine at any moment"


def test_the_request_is_the_documented_one() -> None:
    with serve_script(lambda _: document()) as (url, script):
        watcher = Watcher(url)
        (notice,) = watcher.poll()
        watcher.acknowledge(notice)
    read, start = script.requests
    assert (read.method, read.path) == ("GET", "/metadata/scheduledevents")
    assert read.query == {"api-version": "2020-07-01"}
    assert read.headers["metadata"] == start.headers["metadata"] == "true"
    assert start.method == "POST"
    assert json.loads(start.body) == {
        "StartRequests": [{"EventId": "A123BC45-1234-5678-AB90-ABCDEF123456"}]
    }


@pytest.mark.parametrize(
    ("event_type", "kind"),
    [
        ("Preempt", NoticeKind.PREEMPT),
        ("Terminate", NoticeKind.MAINTENANCE),
        ("Redeploy", NoticeKind.MAINTENANCE),
        ("Reboot", NoticeKind.MAINTENANCE),
        ("Freeze", None),
        ("SomethingNew", None),
    ],
)
def test_what_an_event_means(event_type: str, kind: NoticeKind | None) -> None:
    with serve_script(lambda _: document(EventType=event_type)) as (url, _):
        result = [notice.kind for notice in Watcher(url).poll()]
    assert result == ([] if kind is None else [kind])


def test_events_of_peers_are_left_out_when_the_name_is_known() -> None:
    with serve_script(lambda _: document(Resources=["other", "third"])) as (url, _):
        assert Watcher(url, vm_name="myspotvm").poll() == []
        assert len(Watcher(url).poll()) == 1
    with serve_script(lambda _: document()) as (url, _):
        assert len(Watcher(url, vm_name="myspotvm").poll()) == 1


@pytest.mark.parametrize(
    "reply",
    [
        MetadataReply(200, b"<html>not json"),
        MetadataReply(200, b'{"DocumentIncarnation":1}'),
        MetadataReply(200, b'{"Events":[7]}'),
        MetadataReply(429, b"Too many requests"),
        MetadataReply(500, b""),
        document(NotBefore="soon"),
        document(EventId=5),
        document(EventType=["Preempt"]),
    ],
)
def test_nonsense_is_an_outage_and_never_a_preemption(reply: MetadataReply) -> None:
    with serve_script(lambda _: reply) as (url, _), pytest.raises(MetadataError):
        Watcher(url).poll()


@pytest.mark.req("PRE-03")
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("broken", [7, {"EventId": "x"}, {"EventId": "x", "EventType": "Reboot"}])
def test_a_broken_event_hides_no_preemption(broken: object, *, first: bool) -> None:
    (event,) = json.loads(document().body)["Events"]
    events = [broken, event] if first else [event, broken]
    with serve_script(lambda _: MetadataReply(200, json.dumps({"Events": events}).encode())) as (
        url,
        _,
    ):
        (notice,) = Watcher(url).poll()
    assert (notice.kind, notice.notice_id) == (NoticeKind.PREEMPT, event["EventId"])


def test_a_broken_event_beside_a_maintenance_is_an_outage() -> None:
    (event,) = json.loads(document(EventType="Reboot").body)["Events"]
    body = json.dumps({"Events": [7, event]}).encode()
    with serve_script(lambda _: MetadataReply(200, body)) as (url, _), pytest.raises(MetadataError):
        Watcher(url).poll()
