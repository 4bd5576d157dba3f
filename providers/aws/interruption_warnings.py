"""What EC2 tells of interruptions to whoever asks the cloud and not the machine: the status of
spot requests, and EventBridge's events in a queue. Both reach us with the machine's SSH dead."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from providers.aws.clients import Clients
from providers.aws.listing import name_of, tag_filter, us_of
from providers.base import Notice, NoticeKind, ProviderError, UnpreparedError

NOTICE_US = 120_000_000  # between the warning and the end
A_RECEIPT = 10  # the most messages that SQS hands out at once
MOST_RECEIPTS = 20  # a round: every machine of the account is told of, not ours alone
_MARKED = ("marked-for-termination", "marked-for-stop")
_EVENTS = {
    "EC2 Spot Instance Interruption Warning": NoticeKind.PREEMPT,
    "EC2 Instance Rebalance Recommendation": NoticeKind.REBALANCE,
}


class Warnings:
    """Of one region. What a request's status says is told for as long as it says so; an event is
    told until the next call, which is when the queue may forget it."""

    def __init__(self, clients: Clients, region: str, deployment: str, queue: str = "") -> None:
        self._clients = clients
        self._region = region
        self._deployment = deployment
        self._queue = queue
        self._url = ""
        self._lock = threading.Lock()
        self._told: list[str] = []

    def read(self) -> tuple[list[Notice], ProviderError | None]:
        """What was heard, and what one of the two ways failed with: it makes the other one, and
        what came before it, no less true."""
        found: list[Notice] = []
        failed: ProviderError | None = None
        for ask in (self._requests, self._events):
            try:
                found.extend(ask())
            except ProviderError as error:
                failed = failed or error
        return found, failed

    def _requests(self) -> Iterator[Notice]:
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
                at_us = us_of(status.get("UpdateTime"))
                name = name_of(self._region, row["InstanceId"])
                text = str(status.get("Message") or status["Code"])
                yield _warning(name, NoticeKind.PREEMPT, at_us, "spot request", text)

    def _events(self) -> Iterator[Notice]:
        if not self._queue:
            return
        with self._lock:
            self._forget_told()
            for _ in range(MOST_RECEIPTS):
                answer = self._sqs(
                    "receive_message", MaxNumberOfMessages=A_RECEIPT, WaitTimeSeconds=0
                )
                messages = answer.get("Messages") or ()
                for message in messages:
                    self._told.append(message["ReceiptHandle"])
                    notice = read_event(self._region, message.get("Body", ""))
                    if notice is not None:
                        yield notice
                if len(messages) < A_RECEIPT:
                    return

    def _forget_told(self) -> None:
        """Whoever asks again has kept what it was told."""
        while self._told:
            some, self._told = self._told[:A_RECEIPT], self._told[A_RECEIPT:]
            entries = [{"Id": str(n), "ReceiptHandle": one} for n, one in enumerate(some)]
            self._sqs("delete_message_batch", Entries=entries)

    def _sqs(self, operation: str, **parameters: Any) -> dict[str, Any]:
        if not self._url:
            self._url = self._find()
        return self._clients.call(
            self._region, operation, service="sqs", QueueUrl=self._url, **parameters
        )

    def _find(self) -> str:
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
    """The notice in an EventBridge event; None for any other, and for what is none. It may be of
    anybody's machine: rules cannot be limited to a tag. Times are in UTC."""
    try:
        event = json.loads(body)
        kind = _EVENTS.get(event["detail-type"])
        instance = event["detail"]["instance-id"]
        at = datetime.fromisoformat(event["time"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if kind is None or not isinstance(instance, str):
        return None
    detail: Mapping[str, Any] = event["detail"]
    text = str(detail.get("instance-action") or event["detail-type"])
    at_us = us_of(at if at.tzinfo else at.replace(tzinfo=UTC))
    return _warning(name_of(region, instance), kind, at_us, "EventBridge", text)


def _warning(name: str, kind: NoticeKind, at_us: int, source: str, text: str) -> Notice:
    takes_away = kind is NoticeKind.PREEMPT
    return Notice(
        notice_id=f"aws-{kind.value}-{at_us // 1_000_000}",
        kind=kind,
        deadline_us=at_us + NOTICE_US if takes_away else None,
        source=source,
        instance_id=name,
        text=text,
    )
