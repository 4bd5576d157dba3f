"""Routes of the quarantine, in which no machine is ended for being unknown to the database."""

from __future__ import annotations

from typing import Any

from spotd.serve.call import Call


def show_quarantine(call: Call) -> dict[str, Any]:
    """Whether there is one, and why."""
    reason = call.backing.store.quarantine()
    return {"kind": "Quarantine", "active": bool(reason), "reason": reason}


def release_quarantine(call: Call) -> dict[str, Any]:
    """End it. `reason` says what it was for; "" when there was none."""
    reason = call.backing.store.quarantine()
    call.backing.store.set_quarantine("", call.now_us)
    return {"kind": "Quarantine", "active": False, "reason": reason}
