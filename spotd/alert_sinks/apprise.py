"""Alerts by the library apprise: email, Teams, Discord, PagerDuty, a webhook and many others.

Its URLs hold secrets, and appear in no log, error or event. The library is the extra `alerts`, and
is imported where such a route is configured only.
"""

from __future__ import annotations

import threading
import time
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
PAUSE_S, PAUSE_CAP_S = 30.0, 300.0  # before a URL that failed gets a new message
LIMIT_S = 20.0  # for the answers to one message
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


@dataclass
class _Address:
    """One URL with its own retry state, which is lost with the process."""

    url: str = field(repr=False)
    number: int
    taken: set[int] = field(default_factory=set)  # rows of the outbox that another one did not take
    failures: int = 0
    not_before_s: float = 0.0
    busy: threading.Lock = field(default_factory=threading.Lock)

    def wanted(self, alerts: Sequence[Alert]) -> list[Alert]:
        """Return the alerts with a row that it has not taken, and those that are no rows."""
        return [
            alert for alert in alerts if not alert.rows or not self.taken.issuperset(alert.rows)
        ]

    def send(self, alerts: Sequence[Alert]) -> bool:
        """Return whether it took a message. None is sent while another is on its way."""
        if not self.busy.acquire(blocking=False):
            return False
        try:
            severity = max((alert.event.severity for alert in alerts), key=list(Severity).index)
            kind = _TYPES.get(severity, "info")
            taken = _notify(self.url, title_of(alerts), text_of(alerts), kind)
            self._note(alerts, taken=taken)
            return taken
        finally:
            self.busy.release()

    def _note(self, alerts: Sequence[Alert], *, taken: bool) -> None:
        if taken:
            self.taken.update(row for alert in alerts for row in alert.rows)
            self.failures, self.not_before_s = 0, 0.0
            return
        pause_s = min(PAUSE_S * (1 << min(self.failures, 10)), PAUSE_CAP_S)
        self.failures, self.not_before_s = self.failures + 1, time.monotonic() + pause_s


class _Attempt(threading.Thread):
    """One message to one URL: a service that hangs holds up no other one."""

    def __init__(self, address: _Address, alerts: Sequence[Alert]) -> None:
        super().__init__(name="apprise", daemon=True)
        self.taken = False
        self._address, self._alerts = address, alerts
        self.start()

    def run(self) -> None:
        self.taken = self._address.send(self._alerts)


@dataclass(frozen=True)
class AppriseSink:
    """Sends each message to every URL, and again only to those that did not take it.

    A URL that fails delays no other one: it is left out of new messages for a while, and what it
    missed comes in a message of its own.
    """

    urls: tuple[str, ...] = field(repr=False)
    min_severity: Severity = Severity.INFO
    paced: bool = True
    _addresses: list[_Address] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._addresses.extend(_Address(url, n) for n, url in enumerate(self.urls, start=1))

    def send(self, alerts: Sequence[Alert]) -> None:
        """Send one message to each URL. Raises AlertSinkError."""
        rows = [row for alert in alerts for row in alert.rows]
        wanted = {address.number: address.wanted(alerts) for address in self._addresses}
        wanting = [address for address in self._addresses if wanted[address.number]]
        now_s = time.monotonic()
        ready = [address for address in wanting if not rows or address.not_before_s <= now_s]
        attempts = {
            address.number: _Attempt(address, wanted[address.number])
            for address in ready or wanting
        }
        for attempt in attempts.values():
            attempt.join(max(0.0, now_s + LIMIT_S - time.monotonic()))
        numbers = [address.number for address in wanting]
        self._raise([n for n in numbers if n not in attempts or not attempts[n].taken])
        for address in self._addresses:
            address.taken.difference_update(rows)

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
                f"URL {numbers} of {len(self.urls)} failed; see the log of apprise for the reason",
                partly=len(failed) < len(self.urls),
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
