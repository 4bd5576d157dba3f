"""The deployment: its id, its claim, its location and its quarantine.

In quarantine no machine is ended for being unknown to this database: one that was restored from a
backup does not know the machines launched since.
"""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from spotd.domain.events import Event, Severity
from spotd.store import schema
from spotd.store.columns import clean
from spotd.store.session import Repository, Session, read, read_one, write
from spotd.store.transaction import Transaction

_QUARANTINE = select(schema.deployment.c.quarantine)


def _set_quarantine(tx: Transaction, reason: str, at_us: int) -> None:
    current = str(tx.conn.execute(_QUARANTINE.with_for_update()).scalar_one())
    event = news(current, reason)
    if event is not None:
        tx.conn.execute(update(schema.deployment).values(quarantine=reason))
        tx.event("", event, at_us)


def news(current: str, reason: str) -> Event | None:
    """The event of a change of the quarantine's reason; None if nothing changes."""
    reason = clean(reason)
    if bool(current) == bool(reason):
        return None
    if not reason:
        return Event("quarantine_released", f"the quarantine is over; it was for: {current}")
    text = f"in quarantine, no unknown machine is ended: {reason}; see `spotctl quarantine status`"
    return Event("quarantine", text, severity=Severity.ERROR, alert=True, key="quarantine")


CONFIRMED, INTENDED = "claim", "claim_next"  # counters
HOME = "home"  # the counter of the database's last location
_counters = schema.counters.c


class DeploymentRepository(Repository):
    """The deployment's id, claim, location and quarantine."""

    def __init__(self, session: Session, deployment: str) -> None:
        super().__init__(session)
        self._id = deployment

    @read
    def claims(self, conn: Connection) -> tuple[int, int]:
        """The confirmed and the intended number of this database's claim to the deployment; 0 for
        none."""
        names = (CONFIRMED, INTENDED)
        query = select(_counters.name, _counters.value).where(_counters.name.in_(names))
        numbers = {row.name: int(row.value) for row in conn.execute(query)}
        return numbers.get(CONFIRMED, 0), numbers.get(INTENDED, 0)

    @write
    def record_claim(self, tx: Transaction, confirmed: int, intended: int) -> None:
        """Record the confirmed and the intended number."""
        conn = tx.conn
        for name, value in ((CONFIRMED, confirmed), (INTENDED, intended)):
            _put(conn, name, value)

    @write
    def record_home(self, tx: Transaction, home: int, moved: str, at_us: int) -> None:
        """Record the location of the database, as a number other than 0.

        A database that was elsewhere before goes into quarantine with the reason `moved`.
        """
        query = select(_counters.value).where(_counters.name == HOME)
        if tx.conn.execute(query).scalar_one_or_none() not in (None, home):
            _set_quarantine(tx, moved, at_us)
        _put(tx.conn, HOME, home)

    @write
    def set_quarantine(self, tx: Transaction, reason: str, at_us: int) -> None:
        """Start the quarantine, with an alert, or end it (""). Its first reason stays while it
        lasts."""
        _set_quarantine(tx, reason, at_us)

    def id(self) -> str:
        """The id that this database was created with; part of every token and tag."""
        return self._id

    @read_one
    def quarantine(self, conn: Connection) -> str:
        """Why no machine is ended for being unknown to this database; "" if machines may be."""
        return str(conn.execute(_QUARANTINE).scalar_one())


def _put(conn: Connection, name: str, value: int) -> None:
    where = _counters.name == name
    if not conn.execute(update(schema.counters).where(where).values(value=value)).rowcount:
        conn.execute(schema.counters.insert().values(name=name, value=value))
