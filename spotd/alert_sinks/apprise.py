"""Alerts by the library apprise: email, Teams, Discord, PagerDuty, a webhook and many others.

Its URLs hold secrets, and appear in no log, error or event. The library is the extra `alerts`, and
is imported where such a route is configured only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from spotd.alert_sinks.base import Alert, AlertRoute, AlertSink, AlertSinkError
from spotd.alert_sinks.slack_blocks import (
    by_urgency,
    command_of,
    error_line,
    kind_of,
    words_of,
    worst_of,
)
from spotd.base.log import redactor
from spotd.base.secret_refs import read_secret
from spotd.domain.events import Severity

_SECRET_CHARS = 8  # shorter parts of a URL, such as "mail", are no secrets and are common words
_TYPES = {Severity.WARNING: "warning", Severity.ERROR: "failure"}
_EXAMPLE = "mailtos://user:password@example.org"


class AppriseRoute(AlertRoute):
    """Services that the apprise library can send to: one URL per line."""

    kind: Literal["apprise"]
    urls_file: Path | None = None
    urls_env: str | None = None
    urls_credential: str | None = None

    def build(self, environ: Mapping[str, str]) -> AlertSink:
        urls = read_secret("urls", self.model_dump(), environ).split()
        if not urls:
            raise ValueError("has no URLs; set urls_file, urls_env or urls_credential")
        for url in urls:
            for secret in _secrets(url):
                redactor.register(secret)
        for number, url in enumerate(urls, start=1):
            if _library().Apprise.instantiate(url) is None:
                raise ValueError(
                    f"URL {number} is none that apprise knows; write it like {_EXAMPLE}, as on "
                    "https://appriseit.com"
                )
        return AppriseSink(tuple(urls), self.min_severity)


@dataclass(frozen=True)
class AppriseSink:
    """Sends each message to every URL, and again only to those that did not take it."""

    urls: tuple[str, ...] = field(repr=False)
    min_severity: Severity = Severity.INFO
    paced: bool = True
    # URL -> (number, repeats) of the alerts that it took while another one did not
    _taken: dict[str, set[tuple[int, int]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def send(self, alerts: Sequence[Alert]) -> None:
        """Send one message to each URL. Raises AlertSinkError."""
        failed = []
        for number, url in enumerate(self.urls, start=1):
            taken = self._taken.setdefault(url, set())
            wanted = [alert for alert in alerts if (alert.id, alert.repeats) not in taken]
            if not wanted:
                continue
            severity = max((alert.event.severity for alert in wanted), key=list(Severity).index)
            if _notify(url, title_of(wanted), text_of(wanted), _TYPES.get(severity, "info")):
                taken.update((alert.id, alert.repeats) for alert in wanted)
            else:
                failed.append(number)
        self._raise(failed)
        self._taken.clear()

    def send_text(self, text: str) -> None:
        """Send a plain text to each URL. Raises AlertSinkError."""
        numbered = enumerate(self.urls, start=1)
        self._raise([n for n, url in numbered if not _notify(url, "spot-reaper", text, "failure")])

    def reach(self) -> str:
        """See AlertSink.reach: a service is not known to answer until it gets a message."""
        return ""

    def _raise(self, failed: Sequence[int]) -> None:
        if failed:
            numbers = ", ".join(str(number) for number in failed)
            raise AlertSinkError(
                f"URL {numbers} of {len(self.urls)} failed; see the log of apprise for the reason"
            )


def _library() -> Any:
    """Return the library. Raises ValueError ("what; fix") without it."""
    try:
        return import_module("apprise")
    except ImportError:
        raise ValueError(
            "needs the library apprise; install it where spotd runs: pip install 'apprise>=2.3,<3'"
        ) from None


def _notify(url: str, title: str, text: str, kind: str) -> bool:
    """Return whether a service took a message. A redirect is not followed: it would get the
    secret."""
    apprise = _library()
    asset = apprise.AppriseAsset()
    asset.http_redirects = False
    service = apprise.Apprise(asset=asset)
    service.add(url)
    for one in service:
        one.overflow_mode = "split"  # a service refuses text that is longer than it takes
    # Words of a job must mention nobody.
    title, text = (words.replace("@", "@\N{ZERO WIDTH SPACE}") for words in (title, text))
    taken = service.notify(body=text, title=title, notify_type=kind, body_format="text")
    return bool(taken)


def _secrets(url: str) -> Iterator[str]:
    """Yield the URL, and each of its parts that may be a secret."""
    yield url
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    # Some services have their token where others have a host, such as discord://ID/TOKEN.
    host = "" if "." in parts.netloc else parts.netloc
    for part in (host, parts.password, parts.username, *parts.path.split("/"), parts.query):
        if part and len(part) >= _SECRET_CHARS:
            yield part
            yield unquote(part)


LINES = 10


def title_of(alerts: Sequence[Alert]) -> str:
    """Return the severity and what happened, on one line."""
    word = worst_of(alerts).value.capitalize()
    if len(alerts) == 1:
        name = alerts[0].job_name or alerts[0].job_id or "spotd"
        return f"{word}: {name}: {kind_of(alerts[0].event).replace('_', ' ')}"
    return f"{word}: {sum(alert.repeats for alert in alerts)} alerts of spotd"


def text_of(alerts: Sequence[Alert]) -> str:
    """Return the alerts, the most urgent first; those beyond LINES are counted."""
    ordered = by_urgency(alerts)
    parts = [_text(alert) for alert in ordered[:LINES]]
    if len(ordered) > LINES:
        parts.append(f"… and {len(ordered) - LINES} more: spotctl events")
    return "\n\n".join(parts)


def _text(alert: Alert) -> str:
    name = alert.job_name or alert.job_id or "spotd"
    times = f", {alert.repeats} times" if alert.repeats > 1 else ""
    must = words_of(alert.event)[1].replace("{job}", alert.job_name or alert.job_id)
    lines = [
        f"{name}: {alert.event.text} (alert {alert.id}{times})",
        error_line(alert.event),
        f"To do: {must.replace('`', '')}",
        f"More: {command_of(alert)}",
        alert.link,
    ]
    return "\n".join(line for line in lines if line)
