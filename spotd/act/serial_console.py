"""Read the console of a machine that did not start, before it is terminated.

Most clouds forget the console with the machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import structlog

from providers.base import Provider, SerialConsole
from spotd import wire
from spotd.domain.events import Event, Severity
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason

log = structlog.get_logger(__name__)

LINES, BYTES = 30, 4096  # of its end, that are retained
MASKED_FROM = 4  # characters: to mask shorter secrets would mask half of it, as on the machine
MASK = "***"
# Colours and cursor movements, and what else a terminal would obey.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\\\-_])|[^\n\t -~\u00a0-\uffff]")
_KEYS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL)


def wanted(node: Node) -> bool:
    """Return whether to read it: once, for a machine that was given up before it trained."""
    unfit = node.training.exit_code == wire.EXIT_UNFIT and not node.training.first_step_at_us
    given_up = (
        node.departure.leave_reason is LeaveReason.BOOT_TIMEOUT and not node.startup.ready_at_us
    )
    return bool(node.instance_id) and not node.machine.terminated_at_us and (given_up or unfit)


def ask(node: Node, provider: Provider, secrets: Callable[[], Iterable[str]]) -> Event | None:
    """Return an event with the console's last lines; None if the cloud has none.

    If they cannot be read, or shown without the job's `secrets`, only the log says so: nothing may
    delay the machine's end.
    """
    if not isinstance(provider, SerialConsole):
        return None
    try:
        lines = tidy(provider.read_serial_console(node.instance_id), secrets())
    except Exception as error:  # noqa: BLE001 - a bug as little as a cloud that does not answer
        log.warning("no console", node=node.id, error=f"{type(error).__name__}: {error}")
        return None
    if not lines:
        return None
    text = f"the console of {node.id} ended with: {lines[-1][:200]}"
    return Event("console", text, node.id, Severity.WARNING, data={"lines": lines})


def tidy(text: str, secrets: Iterable[str]) -> list[str]:
    """Return the last meaningful lines, without secrets, keys and terminal control codes."""
    text = _KEYS.sub(MASK, text.replace("\r\n", "\n").replace("\r", "\n"))
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= MASKED_FROM:
            text = text.replace(secret, MASK)
    lines = [line.rstrip() for line in _ESCAPES.sub("", text).split("\n") if line.strip()]
    end = "\n".join(lines[-LINES:]).encode()[-BYTES:].decode(errors="ignore")
    return end.split("\n") if end else []
