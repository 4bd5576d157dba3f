"""The interface of a way to send alerts, and of its section in a configuration file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from providers.section import Section
from spotd.domain.events import Event, Severity


class AlertSinkError(Exception):
    """A message was not taken. `gone`: the address will never take one again. `partly`: some of
    the sink's addresses took it, so that other messages need not wait for the rest."""

    def __init__(
        self, text: str, retry_after_s: float = 0.0, *, gone: bool = False, partly: bool = False
    ) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        self.gone = gone
        self.partly = partly


@dataclass(frozen=True)
class Alert:
    """An event to send. `repeats` counts coalesced ones (1: just itself), `spent_microusd` is the
    job's cost so far (0 if unknown), `link` the dashboard's page about it ("" if there is none).
    `rows` are the rows of the outbox that it stands for; none if it is sent past the outbox.
    """

    id: int
    at_us: int
    job_id: str
    job_name: str
    event: Event
    repeats: int = 1
    spent_microusd: int = 0
    link: str = ""
    rows: tuple[int, ...] = ()


class AlertSink(Protocol):
    """Where alerts go. `paced` sinks get few messages with many alerts each."""

    @property
    def min_severity(self) -> Severity: ...

    @property
    def paced(self) -> bool: ...

    def send(self, alerts: Sequence[Alert]) -> None:
        """Send one message. Raises AlertSinkError, whose text contains no secret."""
        ...

    def send_text(self, text: str) -> None:
        """Send a plain text, as spot-reaper does. Raises AlertSinkError."""
        ...

    def reach(self) -> str:
        """Return what prevents a message, as far as known without sending one, or "". No
        secrets."""
        ...


class AlertRoute(Section):
    """The table of one sink in a configuration file; each kind has a `kind` of its own."""

    min_severity: Severity = Severity.INFO

    @abstractmethod
    def build(self, environ: Mapping[str, str]) -> AlertSink:
        """Return the sink. Raises ValueError ("what; fix") for a secret that cannot be used."""
