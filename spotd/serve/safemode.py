"""Routes of safe mode, in which a daemon that crashed again and again launches nothing."""

from __future__ import annotations

from typing import Any

from spotd.serve.call import Call


def show_safe_mode(call: Call) -> dict[str, Any]:
    """Whether it is in force, and why."""
    reason = call.backing.safe_mode()
    return {"kind": "SafeMode", "active": bool(reason), "reason": reason}


def leave_safe_mode(call: Call) -> dict[str, Any]:
    """End it. `reason` says what it was for; "" when there was none."""
    reason = call.backing.safe_mode()
    call.backing.leave_safe_mode()
    return {"kind": "SafeMode", "active": False, "reason": reason}
