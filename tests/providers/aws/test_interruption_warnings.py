"""Cloud-side warnings: spot requests, and an SQS queue of moto's."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest

from providers.aws.interruption_warnings import MAX_RECEIVES, MESSAGES_PER_RECEIVE, read_event
from providers.base import AuthError, NoticeKind, UnknownOutcome, UnpreparedError
from tests.clouds.aws.serving import PROFILE, StandIn
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented

AT = datetime(2026, 11, 22, 13, 17, 42, tzinfo=UTC)
AT_US = int(AT.timestamp()) * 1_000_000
QUEUE = "spotd-notices"


def event(kind: str = "EC2 Spot Instance Interruption Warning", **detail: Any) -> dict[str, Any]:
    return {
        "version": "0",
        "id": "12345678-1234-1234-1234-123456789012",
        "detail-type": kind,
        "source": "aws.ec2",
        "account": "123456789012",
        "time": "2026-11-22T13:17:42Z",
        "region": "us-east-1",
        "resources": [],
        "detail": {"instance-id": "i-1", **detail},
    }


class Queue:
    """A region's queue as seen by EventBridge and the console."""

    def __init__(self) -> None:
        self._sqs: Any = boto3.Session(profile_name=PROFILE).client("sqs", "us-east-1")
        self.url = self._sqs.create_queue(QueueName=QUEUE)["QueueUrl"]

    def put(self, body: str) -> None:
        self._sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def sizes(self) -> tuple[int, int]:
        """Return (visible messages, received but not deleted)."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        visible, away = (int(answer["Attributes"][name]) for name in names)
        return visible, away

    def close(self) -> None:
        self._sqs.delete_queue(QueueUrl=self.url)
        self._sqs.close()


@pytest.fixture
def queue(aws: StandIn) -> Iterator[Queue]:
    made = Queue()
    yield made
    made.close()


def test_a_marked_spot_request_is_a_preemption_with_its_deadline(rented: Rented) -> None:
    cloud = rented.cloud()
    cloud.launch(rented.request("marked"))
    cloud.launch(rented.request("fine"))
    ids = {machine.token.rpartition("-")[2]: machine.instance_id for machine in cloud.list()}
    assert cloud.notices() == []
    rented.aws.ec2.interrupt(ids["marked"].partition("/")[2], AT)
    [notice] = cloud.notices()
    assert (notice.kind, notice.instance_id) == (NoticeKind.PREEMPT, ids["marked"])
    assert notice.deadline_us == AT_US + 120_000_000
    assert (notice.source, notice.text[:18]) == ("spot request", "Your Spot instance")
    assert cloud.notices() == [notice]  # for as long as the request says so, with the same id
    other = Rented(rented.aws)
    assert other.cloud().notices() == []


def test_an_event_is_told_once_and_deleted_with_the_next_call(rented: Rented, queue: Queue) -> None:
    cloud = rented.cloud(regions=("us-east-1",), queue=QUEUE)
    queue.put(json.dumps(event(**{"instance-action": "terminate"})))
    [notice] = cloud.notices()
    assert (notice.instance_id, notice.kind) == ("us-east-1/i-1", NoticeKind.PREEMPT)
    assert notice.deadline_us == AT_US + 120_000_000
    assert (notice.source, notice.text) == ("EventBridge", "terminate")
    assert queue.sizes() == (0, 1)  # if nobody keeps it, another daemon will be told
    assert cloud.notices() == []
    assert queue.sizes() == (0, 0)


def test_the_event_and_the_spot_request_are_one_notice(rented: Rented, queue: Queue) -> None:
    cloud = rented.cloud(regions=("us-east-1",), queue=QUEUE)
    cloud.launch(rented.request("both"))
    name = cloud.list()[0].instance_id
    rented.aws.ec2.interrupt(name.partition("/")[2], AT)
    queue.put(json.dumps(event(**{"instance-id": name.partition("/")[2]})))
    notices = cloud.notices()
    assert {notice.source for notice in notices} == {"spot request", "EventBridge"}
    assert (
        len({(notice.notice_id, notice.instance_id, notice.deadline_us) for notice in notices}) == 1
    )


def test_a_rebalance_recommendation_takes_nothing_away(rented: Rented, queue: Queue) -> None:
    queue.put(json.dumps(event("EC2 Instance Rebalance Recommendation")))
    [notice] = rented.cloud(regions=("us-east-1",), queue=QUEUE).notices()
    assert (notice.kind, notice.deadline_us) == (NoticeKind.REBALANCE, None)


def test_many_events_of_strangers_come_in_one_round(rented: Rented, queue: Queue) -> None:
    """Rules cannot be limited to our machines; the record tells whose they are."""
    for number in range(2 * MESSAGES_PER_RECEIVE + 3):
        queue.put(json.dumps(event(**{"instance-id": f"i-{number}"})))
    rented.forget()
    cloud = rented.cloud(regions=("us-east-1",), queue=QUEUE)
    reported = {notice.instance_id for notice in cloud.notices()}
    assert reported == {f"us-east-1/i-{n}" for n in range(2 * MESSAGES_PER_RECEIVE + 3)}
    assert rented.actions("ReceiveMessage") == ["ReceiveMessage"] * 3
    assert cloud.notices() == []
    assert rented.actions("DeleteMessageBatch") == ["DeleteMessageBatch"] * 3
    assert queue.sizes() == (0, 0)
    assert MAX_RECEIVES * MESSAGES_PER_RECEIVE >= 100


def test_what_is_no_warning_leaves_the_queue_without_a_word(rented: Rented, queue: Queue) -> None:
    bodies = ["", "{", "[]", "null", json.dumps({"detail-type": 1}), json.dumps(event("Other"))]
    for body in bodies[1:] + [json.dumps(event())]:
        queue.put(body)
    cloud = rented.cloud(regions=("us-east-1",), queue=QUEUE)
    assert len(cloud.notices()) == 1
    assert cloud.notices() == []
    assert queue.sizes() == (0, 0)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "null",
        "1",
        '"text"',
        "{}",
        json.dumps(event("EC2 Instance State-change Notification")),
        json.dumps(event() | {"detail": None}),
        json.dumps(event() | {"detail": []}),
        json.dumps(event() | {"detail": {}}),
        json.dumps(event(**{"instance-id": 7})),
        json.dumps(event(**{"instance-id": None})),
        json.dumps(event() | {"time": "yesterday"}),
        json.dumps(event() | {"time": 7}),
        json.dumps(event() | {"detail-type": ["EC2 Spot Instance Interruption Warning"]}),
        json.dumps(event() | {"detail-type": None}),
        "[" * 100_000,
    ],
)
def test_a_body_that_is_none_of_the_two(body: str) -> None:
    assert read_event("us-east-1", body) is None


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:00", "0001-01-01T00:00:00"])
def test_the_beginning_of_time_is_long_ago(time: str) -> None:
    notice = read_event("us-east-1", json.dumps(event() | {"time": time}))
    assert notice is not None
    assert notice.deadline_us is not None
    assert notice.deadline_us < 0


def test_an_event_without_an_offset_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    clock.tzset()
    local = read_event("us-east-1", json.dumps(event() | {"time": "2026-11-22T13:17:42"}))
    assert local is not None
    assert local.deadline_us == AT_US + 120_000_000
    monkeypatch.undo()
    clock.tzset()


def test_a_queue_that_is_not_there_says_what_to_do(rented: Rented) -> None:
    with pytest.raises(
        UnpreparedError, match="no queue 'none' for warnings: run `spotctl init aws"
    ):
        rented.cloud(regions=("us-east-1",), queue="none").notices()


def test_a_region_that_fails_takes_no_warning_of_another_along(
    rented: Rented, queue: Queue
) -> None:
    """Only one of the two regions has the queue."""
    cloud = rented.cloud(queue=QUEUE)
    queue.put(json.dumps(event()))
    assert [notice.instance_id for notice in cloud.notices()] == ["us-east-1/i-1"]
    with pytest.raises(UnpreparedError, match="us-west-2"):
        cloud.notices()


@pytest.mark.parametrize("what", ["http_500", "throttled"])
def test_the_queue_is_read_although_the_spot_requests_are_not_told(
    rented: Rented, queue: Queue, what: str
) -> None:
    cloud = rented.cloud(regions=("us-east-1",), queue=QUEUE)
    queue.put(json.dumps(event()))
    rented.aws.ec2.faults.arm(Fault(what, ("DescribeSpotInstanceRequests",)))
    assert [notice.instance_id for notice in cloud.notices()] == ["us-east-1/i-1"]


@pytest.mark.parametrize(("what", "kind"), [("http_500", UnknownOutcome), ("expired", AuthError)])
def test_a_cloud_that_fails_is_an_error(rented: Rented, what: str, kind: type[Exception]) -> None:
    rented.aws.ec2.faults.arm(Fault(what, ("DescribeSpotInstanceRequests",)))
    with pytest.raises(kind):
        rented.cloud().notices()


def test_an_old_mark_is_told_with_its_own_time(rented: Rented) -> None:
    cloud = rented.cloud()
    cloud.launch(rented.request("old"))
    long_ago = datetime.now(UTC) - timedelta(minutes=10)
    rented.aws.ec2.interrupt(cloud.list()[0].instance_id.partition("/")[2], long_ago)
    [notice] = cloud.notices()
    assert notice.deadline_us is not None
    assert notice.deadline_us < datetime.now(UTC).timestamp() * 1e6
