"""Exact responses of the three metadata dialects."""

from __future__ import annotations

import json
import threading

import pytest

from providers.base import Notice, NoticeKind
from providers.local.aws_documents import AwsDocuments
from providers.local.azure_documents import AzureDocuments
from providers.local.documents import MachineFacts, MetadataReply, MetadataRequest
from providers.local.gcp_documents import GcpDocuments
from providers.local.metadata import document_for
from tests.fixtures.waiting import LIMIT_S

FACTS = MachineFacts("i-1", "aws", "node-1", "us-east-2", "us-east-2a", "p5.48xlarge", spot=True)
DEADLINE_US = 1_779_974_382_900_000  # 2026-05-28 13:19:42.9 UTC
PREEMPT = Notice("aws-terminate-x", NoticeKind.PREEMPT, DEADLINE_US)
REBALANCE = Notice("r", NoticeKind.REBALANCE, DEADLINE_US)
MAINTENANCE = Notice("instance-event-1", NoticeKind.MAINTENANCE, DEADLINE_US)


class Clock:
    """A monotonic clock set by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


# --- aws


def aws(clock: Clock | None = None) -> AwsDocuments:
    return AwsDocuments(FACTS, monotonic=clock or Clock(), wall_us=lambda: DEADLINE_US)


def token(documents: AwsDocuments, ttl: str = "60") -> str:
    reply = documents.respond(
        MetadataRequest(
            "PUT", "/latest/api/token", {}, {"x-aws-ec2-metadata-token-ttl-seconds": ttl}
        )
    )
    assert reply.status == 200
    assert reply.headers["X-Aws-Ec2-Metadata-Token-Ttl-Seconds"] == ttl
    return reply.body.decode()


def aws_get(documents: AwsDocuments, key: str, with_token: str | None = None) -> MetadataReply:
    value = token(documents) if with_token is None else with_token
    headers = {"x-aws-ec2-metadata-token": value} if value else {}
    return documents.respond(MetadataRequest("GET", f"/latest/meta-data/{key}", {}, headers))


@pytest.mark.req("PRE-01")
def test_aws_documents_before_and_after_a_notice() -> None:
    documents = aws()
    for key in ("spot/instance-action", "spot/termination-time"):
        before = aws_get(documents, key)
        assert before.status == 404
        assert before.content_type == "text/html"
        assert b"<title>404 - Not Found</title>" in before.body
    documents.publish(PREEMPT)
    action = aws_get(documents, "spot/instance-action")
    assert action.body == b'{"action":"terminate","time":"2026-05-28T13:19:42Z"}'
    assert aws_get(documents, "spot/termination-time").body == b"2026-05-28T13:19:42Z"
    assert aws_get(documents, "events/recommendations/rebalance").status == 404


def test_aws_rebalance_and_maintenance() -> None:
    documents = aws()
    assert aws_get(documents, "events/maintenance/scheduled").body == b"[]"
    documents.publish(REBALANCE)
    documents.publish(MAINTENANCE)
    rebalance = aws_get(documents, "events/recommendations/rebalance")
    assert rebalance.body == b'{"noticeTime":"2026-05-28T13:19:42Z"}'
    assert json.loads(aws_get(documents, "events/maintenance/scheduled").body) == [
        {
            "NotBefore": "28 May 2026 13:19:42 GMT",
            "Code": "instance-retirement",
            "Description": "The instance is running on degraded hardware",
            "EventId": "instance-event-1",
            "NotAfter": "28 May 2026 15:19:42 GMT",
            "State": "active",
        }
    ]
    assert aws_get(documents, "spot/instance-action").status == 404
    documents.withdraw("instance-event-1")
    assert aws_get(documents, "events/maintenance/scheduled").body == b"[]"


def test_aws_facts() -> None:
    documents = aws()
    assert aws_get(documents, "instance-life-cycle").body == b"spot"
    assert aws_get(documents, "placement/availability-zone").body == b"us-east-2a"
    assert aws_get(documents, "instance-id").body == b"i-1"


@pytest.mark.req("PRE-01")
def test_aws_needs_a_token_that_is_valid() -> None:
    clock = Clock()
    documents = aws(clock)
    assert aws_get(documents, "spot/instance-action", "").status == 401
    assert aws_get(documents, "spot/instance-action", "wrong").status == 401
    good = token(documents, "60")
    assert aws_get(documents, "instance-id", good).status == 200
    clock.now += 60
    assert aws_get(documents, "instance-id", good).status == 401
    good = token(documents)
    documents.expire_tokens()
    assert aws_get(documents, "instance-id", good).status == 401


@pytest.mark.parametrize("ttl", ["", "0", "21601", "-1", "ten"])
def test_aws_bad_ttl(ttl: str) -> None:
    headers = {"x-aws-ec2-metadata-token-ttl-seconds": ttl} if ttl else {}
    assert aws().respond(MetadataRequest("PUT", "/latest/api/token", {}, headers)).status == 400


def test_aws_refuses_forwarded_requests() -> None:
    headers = {"x-aws-ec2-metadata-token-ttl-seconds": "60", "x-forwarded-for": "10.0.0.1"}
    assert aws().respond(MetadataRequest("PUT", "/latest/api/token", {}, headers)).status == 403


# --- gcp

GCP = MachineFacts(
    "i-2", "gcp", "node-2", "us-central1", "us-central1-a", "a3-highgpu-8g", spot=True
)
FLAVOR = {"metadata-flavor": "Google"}


def gcp_get(documents: GcpDocuments, key: str, **query: str) -> MetadataReply:
    return documents.respond(MetadataRequest("GET", f"/computeMetadata/v1/{key}", query, FLAVOR))


@pytest.mark.req("PRE-02")
def test_gcp_values_and_headers() -> None:
    documents = GcpDocuments(GCP)
    reply = gcp_get(documents, "instance/preempted")
    assert (reply.status, reply.body) == (200, b"FALSE")
    assert reply.headers["Metadata-Flavor"] == "Google"
    assert len(reply.headers["ETag"]) == 16
    assert gcp_get(documents, "instance/maintenance-event").body == b"NONE"
    assert gcp_get(documents, "instance/scheduling/preemptible").body == b"TRUE"
    assert gcp_get(documents, "instance/zone").body == b"projects/1/zones/us-central1-a"
    assert gcp_get(documents, "instance/no-such-key").status == 404
    assert gcp_get(documents, "instance").status == 301
    documents.publish(Notice("g", NoticeKind.PREEMPT, DEADLINE_US))
    documents.publish(Notice("m", NoticeKind.MAINTENANCE, DEADLINE_US))
    assert gcp_get(documents, "instance/preempted").body == b"TRUE"
    event = gcp_get(documents, "instance/maintenance-event")
    assert event.body == b"TERMINATE_ON_HOST_MAINTENANCE"
    documents.withdraw("m")
    documents.withdraw("g")
    assert gcp_get(documents, "instance/maintenance-event").body == b"NONE"
    assert gcp_get(documents, "instance/preempted").body == b"TRUE"  # never taken back


def test_gcp_needs_its_header() -> None:
    for headers in ({}, {"metadata-flavor": "other"}, {**FLAVOR, "x-forwarded-for": "1.2.3.4"}):
        request = MetadataRequest("GET", "/computeMetadata/v1/instance/preempted", {}, headers)
        assert GcpDocuments(GCP).respond(request).status == 403


def test_gcp_json() -> None:
    documents = GcpDocuments(GCP)
    reply = gcp_get(documents, "instance/preempted", alt="json")
    assert (reply.body, reply.content_type) == (b'"FALSE"', "application/json")
    tree = json.loads(gcp_get(documents, "instance/", recursive="true").body)
    assert tree["maintenanceEvent"] == "NONE"
    assert tree["preempted"] == "FALSE"
    assert tree["scheduling"] == {
        "automaticRestart": "FALSE",
        "onHostMaintenance": "TERMINATE",
        "preemptible": "TRUE",
    }
    assert b"scheduling/\n" in gcp_get(documents, "instance/").body


def test_gcp_waits_for_a_change() -> None:
    documents = GcpDocuments(GCP)
    first = gcp_get(documents, "instance/preempted")
    replies: list[MetadataReply] = []

    def wait() -> None:
        etag = first.headers["ETag"]
        replies.append(
            gcp_get(
                documents,
                "instance/preempted",
                wait_for_change="true",
                last_etag=etag,
                timeout_sec="60",
            )
        )

    waiter = threading.Thread(target=wait)
    waiter.start()
    documents.publish(Notice("m", NoticeKind.MAINTENANCE, DEADLINE_US))  # another key's change
    waiter.join(0.2)
    assert waiter.is_alive()
    documents.publish(Notice("g", NoticeKind.PREEMPT, DEADLINE_US))
    waiter.join(LIMIT_S)
    assert not waiter.is_alive()
    assert replies[0].body == b"TRUE"
    assert replies[0].headers["ETag"] != first.headers["ETag"]


def test_gcp_wait_with_an_old_tag_or_a_timeout_answers() -> None:
    documents = GcpDocuments(GCP)
    request = {"wait_for_change": "true", "timeout_sec": "0"}
    assert gcp_get(documents, "instance/preempted", last_etag="0", **request).body == b"FALSE"
    assert gcp_get(documents, "instance/preempted", **request).body == b"FALSE"


# --- azure

AZURE = MachineFacts("i-3", "azure", "node-3", "eastus", "eastus-1", "Standard_F2s_v2", spot=True)
EVENTS = "/metadata/scheduledevents"
QUERY = {"api-version": "2020-07-01"}
META = {"metadata": "true"}
AZURE_PREEMPT = Notice("A123BC45-1234-5678-AB90-ABCDEF123456", NoticeKind.PREEMPT, DEADLINE_US)


def azure(clock: Clock | None = None, acknowledged: list[str] | None = None) -> AzureDocuments:
    clock = clock or Clock()
    acknowledge = (acknowledged if acknowledged is not None else []).append
    return AzureDocuments(AZURE, acknowledge, monotonic=clock, sleep=clock.sleep)


@pytest.mark.req("PRE-03")
def test_azure_documents_before_and_after_a_notice() -> None:
    documents = azure()
    request = MetadataRequest("GET", EVENTS, QUERY, META)
    assert documents.respond(request).body == b'{"DocumentIncarnation":1,"Events":[]}'
    documents.publish(AZURE_PREEMPT)
    assert documents.respond(request).body == (
        b'{"DocumentIncarnation":2,"Events":[{"EventId":"A123BC45-1234-5678-AB90-ABCDEF123456",'
        b'"EventStatus":"Scheduled","EventType":"Preempt","ResourceType":"VirtualMachine",'
        b'"Resources":["node-3"],"NotBefore":"Thu, 28 May 2026 13:19:42 GMT","Description":"",'
        b'"EventSource":"Platform","DurationInSeconds":-1}]}'
    )
    documents.withdraw(AZURE_PREEMPT.notice_id)
    assert documents.respond(request).body == b'{"DocumentIncarnation":3,"Events":[]}'


def test_azure_start_requests() -> None:
    acknowledged: list[str] = []
    documents = azure(acknowledged=acknowledged)
    documents.publish(AZURE_PREEMPT)
    body = json.dumps({"StartRequests": [{"EventId": AZURE_PREEMPT.notice_id}]}).encode()
    assert documents.respond(MetadataRequest("POST", EVENTS, QUERY, META, body)).status == 200
    assert acknowledged == [AZURE_PREEMPT.notice_id]
    assert documents.respond(MetadataRequest("POST", EVENTS, QUERY, META, body)).status == 200
    assert len(acknowledged) == 1
    event = json.loads(documents.respond(MetadataRequest("GET", EVENTS, QUERY, META)).body)[
        "Events"
    ][0]
    assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")
    for bad in (b"", b"[]", b'{"StartRequests":[{}]}', b"\xff"):
        assert azure().respond(MetadataRequest("POST", EVENTS, QUERY, META, bad)).status == 400


def test_azure_needs_header_and_version() -> None:
    assert azure().respond(MetadataRequest("GET", EVENTS, QUERY, {})).status == 400
    assert azure().respond(MetadataRequest("GET", EVENTS, {}, META)).status == 400
    assert (
        azure()
        .respond(MetadataRequest("GET", EVENTS, QUERY, {**META, "x-forwarded-for": "x"}))
        .status
        == 400
    )


@pytest.mark.req("PRE-03")
def test_azure_first_call_is_slow_and_only_the_first() -> None:
    clock = Clock()
    facts = MachineFacts(**{**AZURE.to_data(), "first_call_delay_s": 120.0})  # type: ignore[arg-type]
    documents = AzureDocuments(facts, monotonic=clock, sleep=clock.sleep)
    request = MetadataRequest("GET", EVENTS, QUERY, META)
    assert documents.respond(request).status == 200
    assert clock.now == 220.0
    assert documents.respond(request).status == 200
    assert clock.now == 220.0


def test_azure_limits_the_rate() -> None:
    clock = Clock()
    documents = azure(clock)
    request = MetadataRequest("GET", EVENTS, QUERY, META)
    assert [documents.respond(request).status for _ in range(6)] == [200] * 5 + [429]
    clock.now += 1.0
    assert documents.respond(request).status == 200


def test_azure_compute_document() -> None:
    documents = azure()
    compute = json.loads(
        documents.respond(MetadataRequest("GET", "/metadata/instance/compute", QUERY, META)).body
    )
    assert compute["name"] == "node-3"
    assert compute["priority"] == "Spot"


def test_every_personality_has_a_dialect_and_facts_travel() -> None:
    for facts in (FACTS, GCP, AZURE):
        assert MachineFacts.from_data(json.loads(json.dumps(facts.to_data()))) == facts
        document_for(facts)
    with pytest.raises(ValueError, match="aws, gcp or azure"):
        document_for(MachineFacts("i", "oracle", "n", "r", "z", "t", spot=True))
