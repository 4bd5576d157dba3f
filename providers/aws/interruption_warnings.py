"""Cloud-side interruption warnings of EC2: the status of spot requests, and EventBridge events in a
queue. Both arrive even when SSH to the machine fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from providers.aws.clients import Clients
from providers.aws.listing import qualified_name, tag_filter
from providers.base import Notice, NoticeKind, ProviderError, UnpreparedError, timestamp_us

NOTICE_US = 120_000_000  # between the warning and the end of the machine
MESSAGES_PER_RECEIVE = 10  # maximum of SQS
MAX_RECEIVES = 20  # per read: the queue has events of every machine in the account
_MARKED = ("marked-for-termination", "marked-for-stop")
_EVENTS = {
    "EC2 Spot Instance Interruption Warning": NoticeKind.PREEMPT,
    "EC2 Instance Rebalance Recommendation": NoticeKind.REBALANCE,
}


class InterruptionWarnings:
    """The warnings of one region.

    A spot request's status is reported as long as it lasts. An event is reported until the next
    call, which deletes it from the queue.
    """

    def __init__(self, clients: Clients, region: str, deployment: str, queue: str = "") -> None:
        self._clients = clients
        self._region = region
        self._deployment = deployment
        self._queue = queue
        self._url = ""
        self._lock = threading.Lock()
        self._receipts: list[str] = []

    def read(self) -> tuple[list[Notice], ProviderError | None]:
        """Return the notices, and the first error of the two sources: it does not invalidate the
        notices of the other source."""
        notices: list[Notice] = []
        first_error: ProviderError | None = None
        for read_source in (self._read_requests, self._read_events):
            try:
                notices.extend(read_source())
            except ProviderError as error:
                first_error = first_error or error
        return notices, first_error

    def _read_requests(self) -> Iterator[Notice]:
        rows = self._clients.pages(
            self._region,
            "describe_spot_instance_requests",
            "SpotInstanceRequests",
            Filters=[
                tag_filter(self._deployment),
                {"Name": "status-code", "Values": [*_MARKED]},
            ],
        )
        for row in rows:
            status = row.get("Status") or {}
            if row.get("InstanceId") and status.get("Code") in _MARKED:
                updated_us = timestamp_us(status.get("UpdateTime"))
                instance_id = qualified_name(self._region, row["InstanceId"])
                message = str(status.get("Message") or status["Code"])
                yield _warning(instance_id, NoticeKind.PREEMPT, updated_us, "spot request", message)

    def _read_events(self) -> Iterator[Notice]:
        if not self._queue:
            return
        with self._lock:
            self._delete_received()
            for _ in range(MAX_RECEIVES):
                answer = self._sqs(
                    "receive_message", MaxNumberOfMessages=MESSAGES_PER_RECEIVE, WaitTimeSeconds=0
                )
                messages = answer.get("Messages") or ()
                for message in messages:
                    self._receipts.append(message["ReceiptHandle"])
                    notice = read_event(self._region, message.get("Body", ""))
                    if notice is not None:
                        yield notice
                if len(messages) < MESSAGES_PER_RECEIVE:
                    return

    def _delete_received(self) -> None:
        """Delete the messages of the last call: a caller that calls again has stored their
        notices."""
        while self._receipts:
            batch, self._receipts = (
                self._receipts[:MESSAGES_PER_RECEIVE],
                self._receipts[MESSAGES_PER_RECEIVE:],
            )
            entries = [{"Id": str(n), "ReceiptHandle": receipt} for n, receipt in enumerate(batch)]
            self._sqs("delete_message_batch", Entries=entries)

    def _sqs(self, operation: str, **parameters: Any) -> dict[str, Any]:
        if not self._url:
            self._url = self._queue_url()
        return self._clients.call(
            self._region, operation, service="sqs", QueueUrl=self._url, **parameters
        )

    def _queue_url(self) -> str:
        try:
            answer = self._clients.call(
                self._region, "get_queue_url", service="sqs", QueueName=self._queue
            )
        except UnpreparedError as error:
            fix = f"run `spotctl init aws --region {self._region}`, or take `queue` out"
            text = f"{self._region} has no queue {self._queue!r} for warnings: {fix}"
            raise UnpreparedError(text, code=error.code) from None
        return str(answer["QueueUrl"])


def read_event(region: str, body: str) -> Notice | None:
    """Parse an EventBridge event; None when it contains no notice.

    It may be about any machine of the account: rules cannot be limited to a tag. Times are in UTC.
    """
    try:
        event = json.loads(body)
        kind = _EVENTS.get(event["detail-type"])
        instance = event["detail"]["instance-id"]
        time_ = datetime.fromisoformat(event["time"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if kind is None or not isinstance(instance, str):
        return None
    detail: Mapping[str, Any] = event["detail"]
    text = str(detail.get("instance-action") or event["detail-type"])
    at_us = timestamp_us(time_ if time_.tzinfo else time_.replace(tzinfo=UTC))
    return _warning(qualified_name(region, instance), kind, at_us, "EventBridge", text)


def _warning(
    instance_id: str, notice_kind: NoticeKind, at_us: int, source: str, text: str
) -> Notice:
    preempts = notice_kind is NoticeKind.PREEMPT
    return Notice(
        notice_id=f"aws-{notice_kind.value}-{at_us // 1_000_000}",
        kind=notice_kind,
        deadline_us=at_us + NOTICE_US if preempts else None,
        source=source,
        instance_id=instance_id,
        text=text,
    )
