"""Post to a Slack incoming webhook. Its URL is a secret and appears in no log, error or event."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from spotd.act.alerts import Alert, AlertSinkError
from spotd.act.slack_blocks import payload
from spotd.base.log import redactor
from spotd.base.webhook import WebhookError, post, reach
from spotd.domain.events import Severity

RETRY_AFTER_CAP_S = 3600.0
_SAID_CHARS = 120


@dataclass(frozen=True)
class SlackSink:
    """Posts to `url`, which the configuration has checked."""

    url: str = field(repr=False)
    min_severity: Severity = Severity.INFO
    paced: bool = True

    def __post_init__(self) -> None:
        redactor.register(self.url)
        redactor.register(urlsplit(self.url).path)

    def reach(self) -> str:
        """See AlertSink.reach: the address answers and proves its identity."""
        try:
            reach(self.url)
        except WebhookError as error:
            return redactor.clean(str(error))
        return ""

    def send(self, alerts: Sequence[Alert]) -> None:
        """Post one message. Raises AlertSinkError."""
        body = payload(alerts)
        status, headers, reply = self._post(body)
        if status == 400:
            # Better plain than never: whatever it is in the blocks that Slack does not like.
            status, headers, reply = self._post({"text": body["text"]})
        if status == 200 and reply == "ok":
            return
        if status == 429:
            raise AlertSinkError("Slack asks us to wait (429)", _retry_after_s(headers))
        raise AlertSinkError(f"Slack answered {status}: {reply}", gone=status in (403, 404, 410))

    def _post(self, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], str]:
        """(status, headers, the first words of the answer). Raises RouteError."""
        try:
            answer = post(self.url, body)
        except WebhookError as error:
            raise AlertSinkError(str(error)) from None
        reply = redactor.clean(answer.text)
        return answer.status, answer.headers, " ".join(reply.split())[:_SAID_CHARS]


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return 0.0
    if math.isnan(seconds):
        return 0.0
    return min(max(seconds, 1.0), RETRY_AFTER_CAP_S)
