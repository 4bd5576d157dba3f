"""Logging: for people on a terminal, as JSON lines under systemd, never with a secret."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_HIDDEN = "[hidden]"
_MIN_SECRET_CHARS = 6  # hiding "yes" or "1" would hide the log instead
_MAX_DEPTH = 8

# Known secrets are hidden first: what looks like one may have a part of it hidden by then.
_PATTERNS = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", None),
        (r"(https?://hooks\.slack(?:-gov)?\.com/)[^\s\"'<>]+", r"\1"),
        (r"\b((?:AKIA|ASIA)[A-Z0-9]{4})[A-Z0-9]{12}\b", r"\1"),
        (r"\b(bearer\s+)[A-Za-z0-9._~+/=\[\]-]{8,}", r"\1"),
        (r"(\b(?:sig|X-(?:Amz|Goog)-Signature|X-Amz-Security-Token)=)[^&\s\"']+", r"\1"),
        (r"(\b(?:Account|SharedAccess)Key=)[^;&\s\"']+", r"\1"),  # of Azure's connection strings
        (r"(\baws_(?:secret_access_key|session_token)\W{1,5})[A-Za-z0-9/+=\[\]]{16,}", r"\1"),
        # What AWS's session tokens begin with: base64 of "origin" and "aws" in their frames.
        (r"\b(IQoJb3JpZ2lu|F[QFw]oGZXIvYXdz)[A-Za-z0-9/+=%\[\]]{16,}", r"\1"),
        (r"(://[^/\s:@\"']+:)[^/\s@\"']+(?=@)", r"\1"),  # a password in a URL
        (r"\b(xox[abeoprs]-|gh[oprsu]_|github_pat_|hf_)[A-Za-z0-9_\[\]-]{8,}", r"\1"),
    )
)

# From which level on a library is heard.
_QUIET = {
    "paramiko": logging.WARNING,
    "paramiko.transport": logging.CRITICAL,  # what it says here comes to us as exceptions, too
    "uvicorn": logging.WARNING,
    "apscheduler": logging.WARNING,
    "apscheduler.scheduler": logging.ERROR,  # warns of every turn missed while a cloud hangs
    "urllib3": logging.WARNING,
    "botocore": logging.WARNING,
    "sqlalchemy": logging.WARNING,
    "alembic": logging.WARNING,
}


class Redactor:
    """Hides known secrets and text that looks like one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._secrets: tuple[str, ...] = ()

    def register(self, secret: str) -> None:
        """Hide this text wherever it occurs from now on, line by line if it has several."""
        secrets = {line.strip() for line in (secret, *secret.splitlines())}
        secrets = {line for line in secrets if len(line) >= _MIN_SECRET_CHARS}
        with self._lock:
            # Longest first: a secret that contains another must not leave its rest visible.
            self._secrets = tuple(sorted({*self._secrets, *secrets}, key=len, reverse=True))

    def clean(self, text: str) -> str:
        """`text` without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        for pattern, shown in _PATTERNS:
            text = pattern.sub(_HIDDEN if shown is None else shown + _HIDDEN, text)
        return text

    def clean_value(self, value: object, depth: int = 0) -> object:
        """The same for what a log call was given; what is not plain data becomes its text."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, bytes):
            return self.clean(value.decode(errors="backslashreplace"))
        if depth < _MAX_DEPTH:
            if isinstance(value, Mapping):
                return {
                    self.clean(str(key)): self.clean_value(item, depth + 1)
                    for key, item in value.items()
                }
            if isinstance(value, list | tuple | set | frozenset):
                return [self.clean_value(item, depth + 1) for item in value]
        return self.clean(str(value))

    def __call__(self, _logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
        """Redact an event as a structlog processor, after exceptions became text."""
        for key in list(event):
            if not key.startswith("_"):  # ProcessorFormatter's own entries
                event[key] = self.clean_value(event[key])
        return event


redactor = Redactor()

FLOOD_LINES = 50  # of one kind ...
FLOOD_S = 60.0  # ... in so many seconds
_MAX_KINDS = 1000
_NUMBERS = re.compile(r"\w*\d\w*")  # and ids


@dataclass
class _Kind:
    """One kind of message in its current window."""

    began_at: float
    lines: int = 0
    left_out: int = 0


class Sampler(logging.Handler):
    """Passes a limited number of messages of one kind per window to `handler`.

    The number left out is logged at the end of the window, or at the end. A kind is a logger, a
    level, and the message without its numbers and ids. An alert in the log is never left out: it is
    on record as sent, and the outbox limits it.
    """

    def __init__(
        self, handler: logging.Handler, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._handler = handler
        self._monotonic = monotonic
        self._kinds: dict[tuple[str, int, str], _Kind] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a record, under the handler's lock as in all handlers."""
        now = self._monotonic()
        self._tell(now - FLOOD_S)
        if isinstance(record.msg, dict) and "alert" in record.msg:
            self._handler.handle(record)
            return
        event = record.msg.get("event", "") if isinstance(record.msg, dict) else record.msg
        key = (record.name, record.levelno, _NUMBERS.sub("#", str(event)[:200]))
        kind = self._kinds.setdefault(key, _Kind(now))
        kind.lines += 1
        if kind.lines <= FLOOD_LINES:
            self._handler.handle(record)
        else:
            kind.left_out += 1

    def close(self) -> None:
        """Log the remaining counts."""
        self._tell(float("inf"))
        self._handler.close()
        super().close()

    def _tell(self, before: float) -> None:
        """Log the counts of windows that began before; of all if there are too many."""
        if len(self._kinds) >= _MAX_KINDS:
            before = float("inf")
        # Windows begin in the order of the dictionary.
        while self._kinds:
            key = next(iter(self._kinds))
            if self._kinds[key].began_at > before:
                return
            kind = self._kinds.pop(key)
            if kind.left_out:
                name, level, event = key
                text = f"{kind.left_out} more were left out of: {event}"
                self._handler.handle(
                    logging.LogRecord(name, level, __file__, 0, text, None, exc_info=None)
                )


def under_systemd(environ: Mapping[str, str]) -> bool:
    """Return whether the journal reads our output."""
    return "JOURNAL_STREAM" in environ or "INVOCATION_ID" in environ


def configure(
    *,
    level: str = "info",
    form: str = "auto",
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
    hide: Redactor = redactor,
) -> None:
    """Send structlog's and the standard library's records to `stream` (stderr), redacted.

    `form` is "human", "json" or "auto": JSON under systemd and if the stream is not a terminal.
    """
    out = stream or sys.stderr
    as_json = form == "json" or (form == "auto" and (under_systemd(environ) or not out.isatty()))
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # configure() may run after a module made its logger
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                hide,
                *_render(as_json, colors=out.isatty() and "NO_COLOR" not in environ),
            ],
        )
    )
    root = logging.getLogger()
    for before in root.handlers:
        if isinstance(before, Sampler):
            before.close()
    root.handlers[:] = [Sampler(handler)]
    root.setLevel(level.upper())
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))
    _reunite()
    logging.captureWarnings(True)


def _reunite() -> None:
    """Route libraries that log past the root (uvicorn's access log) through it.

    A message that is not seen here is not redacted either.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith(tuple(_QUIET)) and isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True


def _render(as_json: bool, *, colors: bool) -> list[Processor]:
    if as_json:
        return [structlog.processors.JSONRenderer(sort_keys=True)]
    return [_tame, structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0)]


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _tame(_logger: WrappedLogger, _name: str, event: MutableMapping[str, Any]) -> EventDict:
    """Text from a job or a cloud must not steer the terminal that shows it."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", value)
    return event
