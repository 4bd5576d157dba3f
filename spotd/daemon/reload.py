"""Reload the configuration at SIGHUP or through the API, completely or not at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace

import structlog

from spotd.base.errors import UserError
from spotd.config.changes import changed_keys
from spotd.config.config import Config
from spotd.config.load import load_config
from spotd.daemon.sdnotify import notify, notify_reloading
from spotd.domain.events import AuditOutcome, Event, Severity
from spotd.store.audit import AuditRow
from spotd.store.errors import StoreError
from spotd.store.interface import Store

log = structlog.get_logger(__name__)

_WHO = "root/systemd"  # nobody else may send us the signal, and it does not say who did


def has_terminal() -> bool:
    """Return whether this process has a terminal, whose closing also sends SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def reload_for_user(
    config: Config, take_over: Callable[[Config], None], store: Store, now_us: int
) -> list[str]:
    """Reload the configuration for the API, which has the audit, and return the changed keys.

    Raises the errors of `take_over` and of the file's reader; then nothing has changed. systemd,
    the log and an alert report the outcome.
    """
    notify_reloading()
    status = ""
    try:
        fresh = load_config(config.path, config.environ, to_start=True)
        keys = changed_keys(config, fresh)
        take_over(fresh)
        status = _describe(keys)
        log.info(status)
    except Exception as error:
        status = _tell_refusal(error, store, now_us)
        raise
    finally:
        notify(f"READY=1\nSTATUS={status}")
    return keys


def _describe(keys: list[str]) -> str:
    return f"the configuration was read again: {', '.join(keys) or 'nothing changed'}"


def reload(
    config: Config, take_over: Callable[[Config], None], store: Store, now_us: int, request: str
) -> None:
    """Read the configuration file again and let `take_over` apply the differences.

    If `take_over` raises, nothing has changed. systemd, the log and an alert say the outcome, and
    the audit records it under `request`. Without a record in the audit nothing is applied.
    """
    notify_reloading()
    target = f"{socket.gethostname()}:{config.path}"
    asked = AuditRow(now_us, -1, _WHO, "config reload", target, AuditOutcome.ASKED, "", request)
    try:
        fresh = load_config(config.path, config.environ, to_start=True)
        changed = changed_keys(config, fresh)
        keys = ", ".join(changed) or "nothing changed"
        store.audit.add(replace(asked, text=keys))
        take_over(fresh)
        status, ended = _describe(changed), AuditOutcome.DONE
        log.info(status)
    except Exception as error:  # noqa: BLE001 - an adapter may raise anything: we go on as before
        status, ended = _tell_refusal(error, store, now_us), AuditOutcome.REFUSED
        keys = "the one before stays in force"  # what is wrong with it may quote a secret
    try:
        store.audit.add(replace(asked, outcome=ended, text=keys))
    except StoreError as trouble:
        log.warning("the audit lacks an outcome", request=request, error=str(trouble))
    notify(f"READY=1\nSTATUS={status}")


def _tell_refusal(error: Exception, store: Store, now_us: int) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    message = f"the configuration was not applied, the one before stays in force: {reason}"
    log.error(message, exc_info=None if isinstance(error, UserError | StoreError) else error)
    key = f"config:{socket.gethostname()}"
    event = Event("config", message, severity=Severity.ERROR, alert=True, key=key)
    try:
        store.events.add("", event, now_us)
    except StoreError as trouble:
        log.warning("the store does not answer", error=str(trouble))
    return message
