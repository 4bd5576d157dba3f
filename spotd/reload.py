"""SIGHUP: the configuration is read anew, and taken over whole or not at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

import structlog

from spotd.config import Config, load_config
from spotd.errors import UserError
from spotd.model import Event, Severity
from spotd.sdnotify import notify, notify_reloading
from spotd.store.base import Store, StoreError

log = structlog.get_logger(__name__)


def has_terminal() -> bool:
    """Whether one may be closed under us, which is a SIGHUP too."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def reload(
    config: Config, take_over: Callable[[Config], Sequence[str]], store: Store, now_us: int
) -> None:
    """Read the file of `config` anew, for `take_over` to change what is different and return the
    keys of that; what it raises has changed nothing. systemd, the log and people are told."""
    notify_reloading()
    try:
        keys = take_over(load_config(config.path, config.environ, to_start=True))
        status = f"the configuration was read anew: {', '.join(keys) or 'nothing changed'}"
        log.info(status)
    except Exception as error:  # noqa: BLE001 - an adapter may raise anything: we go on as before
        status = _tell_refusal(error, store, now_us)
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
