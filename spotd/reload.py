"""SIGHUP: the configuration is read anew, and taken over whole or not at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace

import structlog

from spotd.config import Config, load_config
from spotd.config.changes import changed_keys
from spotd.errors import UserError
from spotd.model import Event, Severity
from spotd.sdnotify import notify, notify_reloading
from spotd.store.base import AuditOutcome, AuditRow, Store, StoreError

log = structlog.get_logger(__name__)

_WHO = "root/systemd"  # nobody else may send us the signal, and it does not say who did


def has_terminal() -> bool:
    """Whether one may be closed under us, which is a SIGHUP too."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def reload(
    config: Config, take_over: Callable[[Config], None], store: Store, now_us: int, request: str
) -> None:
    """Read the file of `config` anew, for `take_over` to change what is different; what it raises
    has changed nothing. systemd, the log and people are told, and the audit has it as `request`:
    what cannot be put on record there is not taken over."""
    notify_reloading()
    target = f"{socket.gethostname()}:{config.path}"
    asked = AuditRow(now_us, -1, _WHO, "config reload", target, AuditOutcome.ASKED, "", request)
    try:
        found = load_config(config.path, config.environ, to_start=True)
        keys = ", ".join(changed_keys(config, found)) or "nothing changed"
        store.add_audit(replace(asked, text=keys))
        take_over(found)
        status, ended = f"the configuration was read anew: {keys}", AuditOutcome.DONE
        log.info(status)
    except Exception as error:  # noqa: BLE001 - an adapter may raise anything: we go on as before
        status, ended = _tell_refusal(error, store, now_us), AuditOutcome.REFUSED
        keys = "the one before stays in force"  # what is wrong with it may quote a secret
    try:
        store.add_audit(replace(asked, outcome=ended, text=keys))
    except StoreError as trouble:
        log.warning("the audit lacks an outcome", request=request, error=str(trouble))
    notify(f"READY=1\nSTATUS={status}")


def _tell_refusal(error: Exception, store: Store, now_us: int) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    text = f"the configuration was not read anew, the one before stays in force: {said}"
    log.error(text, exc_info=None if isinstance(error, UserError | StoreError) else error)
    key = f"config:{socket.gethostname()}"
    event = Event("config", text, severity=Severity.ERROR, alert=True, key=key)
    try:
        store.add_event("", event, now_us)
    except StoreError as trouble:
        log.warning("the store does not answer", error=str(trouble))
    return text
