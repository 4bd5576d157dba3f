"""Routes of what holds the daemon back until a person says otherwise: the quarantine, in which no
machine is ended for being unknown to the database, and safe mode, in which a daemon that crashed
again and again launches nothing.

A reply's `reason` is why it is in force, or what it was for; "" when there was none.
"""

from __future__ import annotations

from typing import Any

from spotd.api.request.request import ApiRequest


def show_quarantine(call: ApiRequest) -> dict[str, Any]:
    """Whether there is one, and why."""
    return _shown("Quarantine", call.backing.store.quarantine())


def release_quarantine(call: ApiRequest) -> dict[str, Any]:
    """End it."""
    reason = call.backing.store.quarantine()
    call.backing.store.set_quarantine("", call.now_us)
    return _ended("Quarantine", reason)


def show_safe_mode(call: ApiRequest) -> dict[str, Any]:
    """Whether it is in force, and why."""
    return _shown("SafeMode", call.backing.safe_mode())


def leave_safe_mode(call: ApiRequest) -> dict[str, Any]:
    """End it."""
    reason = call.backing.safe_mode()
    call.backing.leave_safe_mode()
    return _ended("SafeMode", reason)


def _shown(kind: str, reason: str) -> dict[str, Any]:
    return {"kind": kind, "active": bool(reason), "reason": reason}


def _ended(kind: str, reason: str) -> dict[str, Any]:
    return {"kind": kind, "active": False, "reason": reason}
