"""Routes of the daemon itself: quarantine, safe mode, and reading its configuration again.

Quarantine and safe mode hold the daemon back until a person ends them. In quarantine no machine is
terminated for being unknown to the database. In safe mode a daemon that crashed repeatedly launches
nothing.

A reply's `reason` is the present reason, or the reason before it ended; "" for none.
"""

from __future__ import annotations

from typing import Any

from spotd.api.request.request import ApiError, ApiRequest
from spotd.base.errors import UserError


def show_quarantine(call: ApiRequest) -> dict[str, Any]:
    """Whether there is one, and why."""
    return _status_data("Quarantine", call.context.store.deployment.quarantine())


def release_quarantine(call: ApiRequest) -> dict[str, Any]:
    """End it."""
    reason = call.context.store.deployment.quarantine()
    call.context.store.deployment.set_quarantine("", call.now_us)
    return _ended_data("Quarantine", reason)


def show_safe_mode(call: ApiRequest) -> dict[str, Any]:
    """Whether it is in force, and why."""
    return _status_data("SafeMode", call.context.daemon.safe_mode())


def leave_safe_mode(call: ApiRequest) -> dict[str, Any]:
    """End it."""
    reason = call.context.daemon.safe_mode()
    call.context.daemon.leave_safe_mode()
    return _ended_data("SafeMode", reason)


def _status_data(kind: str, reason: str) -> dict[str, Any]:
    return {"kind": kind, "active": bool(reason), "reason": reason}


def _ended_data(kind: str, reason: str) -> dict[str, Any]:
    return {"kind": kind, "active": False, "reason": reason}


def reload_config(call: ApiRequest) -> dict[str, Any]:
    """Read the configuration file again: all of it takes effect, or nothing. Returns the keys that
    changed."""
    try:
        changed = call.context.daemon.reload()
    except UserError as error:
        raise _refused(f"{error.text}; {error.try_}") from None
    except Exception as error:  # noqa: BLE001 - an adapter may raise anything: we go on as before
        raise _refused(str(error) or type(error).__name__) from None
    return {"kind": "ConfigReload", "changed": changed}


def _refused(reason: str) -> ApiError:
    """Return the error; the audit keeps its message alone, as the reason may quote a secret."""
    message = "the configuration was not taken over; the one before stays in force"
    return ApiError(409, "refused", message, reason)
