"""Post to a Slack incoming webhook. Its URL is a secret and appears in no log, error or event."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from spotd.alert_sinks.base import Alert, AlertRoute, AlertSink, AlertSinkError
from spotd.alert_sinks.slack_blocks import ESCAPES, payload
from spotd.alert_sinks.webhook import SLACK_HOSTS, WebhookError, is_webhook, post, reach
from spotd.base.log import redactor
from spotd.base.secret_refs import read_secret
from spotd.domain.events import Severity

RETRY_AFTER_CAP_S = 3600.0
_REPLY_CHARS = 120
_EVERYBODY = ("here", "channel", "everyone")
_USER, _GROUP = re.compile(r"[UW][A-Z0-9]{2,20}"), re.compile(r"S[A-Z0-9]{2,20}")


def _checked_mention(text: str) -> str:
    """Return a mention as Slack reads it, also of one that is written without its brackets."""
    name = text.strip().removeprefix("<").removesuffix(">").lstrip("!@").removeprefix("subteam^")
    if name in _EVERYBODY:
        return f"<!{name}>"
    if _USER.fullmatch(name):
        return f"<@{name}>"
    if _GROUP.fullmatch(name):
        return f"<!subteam^{name}>"
    raise ValueError(
        f"{text[:60]!r} cannot be mentioned in Slack; write here, channel, everyone, a member "
        'ID like "U024BE7LH" or the ID of a user group like "S0614TZR7"'
    )


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Mentions = Annotated[
    list[Annotated[str, AfterValidator(_checked_mention)]], BeforeValidator(_as_list)
]


class SlackRoute(AlertRoute):
    """A Slack incoming webhook."""

    kind: Literal["slack"]
    url_file: Path | None = None
    url_env: str | None = None
    url_credential: str | None = None
    allow_hosts: list[str] = Field(
        default=[], description="Besides Slack's own; a loopback host may use http"
    )
    mention: dict[Severity, Mentions] = Field(
        default={}, description="Who is notified of alerts of a severity, as here or U024BE7LH"
    )

    def build(self, environ: Mapping[str, str]) -> AlertSink:
        url = read_secret("url", self.model_dump(), environ)
        if not url:
            raise ValueError("has no address; set url_file, url_env or url_credential")
        if is_webhook(url, self.allow_hosts):
            return SlackSink(url, self.min_severity, mentions=self.mention)
        raise ValueError(
            f"the secret is not an https address at {SLACK_HOSTS[0]}; "
            "copy the webhook's URL from Slack, or name its host in allow_hosts "
            "(in [page] of reaper.toml: slack_hosts)"
        )


@dataclass(frozen=True)
class SlackSink:
    """Posts to `url`, which the configuration has checked."""

    url: str = field(repr=False)
    min_severity: Severity = Severity.INFO
    paced: bool = True
    mentions: Mapping[Severity, Sequence[str]] = field(default_factory=dict)

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
        body = payload(alerts, self.mentions)
        status, headers, reply = self._post(body)
        if status == 400:
            # Better plain than never: whatever it is in the blocks that Slack does not like.
            status, headers, reply = self._post({"text": body["text"]})
        _check(status, headers, reply)

    def send_text(self, text: str) -> None:
        """Post a plain text. Raises AlertSinkError."""
        escaped = text.translate({ord(letter): code for letter, code in ESCAPES.items()})
        _check(*self._post({"text": escaped}))

    def _post(self, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], str]:
        """(status, headers, the first words of the answer). Raises AlertSinkError."""
        try:
            answer = post(self.url, body)
        except WebhookError as error:
            raise AlertSinkError(str(error)) from None
        reply = redactor.clean(answer.text)
        return answer.status, answer.headers, " ".join(reply.split())[:_REPLY_CHARS]


def _check(status: int, headers: Mapping[str, str], reply: str) -> None:
    """Raise AlertSinkError unless Slack took the message."""
    if status == 200 and reply == "ok":
        return
    if status == 429:
        raise AlertSinkError("Slack asks spotd to wait (429)", _retry_after_s(headers))
    raise AlertSinkError(f"Slack answered {status}: {reply}", gone=status in (403, 404, 410))


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return 0.0
    if math.isnan(seconds):
        return 0.0
    return min(max(seconds, 1.0), RETRY_AFTER_CAP_S)
