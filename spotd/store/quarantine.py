"""The quarantine: while it lasts, no machine is ended for being unknown to this database.

A database that was restored from a backup knows less than the clouds do: to it, machines that
were launched since are nobody's.
"""

from __future__ import annotations

from sqlalchemy import select, update

from spotd.domain.events import Event, Severity
from spotd.store import schema
from spotd.store.columns import clean
from spotd.store.transaction import Transaction

_REASON = schema.deployment.c.quarantine
REASON = select(_REASON)


def set_quarantine(tx: Transaction, reason: str, at_us: int) -> None:
    """See Store.set_quarantine."""
    found = str(tx.conn.execute(REASON.with_for_update()).scalar_one())
    event = news(found, reason)
    if event is not None:
        tx.conn.execute(update(schema.deployment).values(quarantine=reason))
        tx.event("", event, at_us)


def news(found: str, reason: str) -> Event | None:
    """What setting `reason` where there was `found` tells; None when it changes nothing."""
    reason = clean(reason)
    if bool(found) == bool(reason):
        return None
    if not reason:
        return Event("quarantine_released", f"the quarantine is over; it was for: {found}")
    text = f"in quarantine, no unknown machine is ended: {reason}; see `spotctl quarantine status`"
    return Event("quarantine", text, severity=Severity.ERROR, alert=True, key="quarantine")
