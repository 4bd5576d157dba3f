"""What this database knows of its claim to the deployment, and of where it lies itself; see
act/claim.py and beginning.py for what it is for."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from spotd.store import schema
from spotd.store.quarantine import set_quarantine
from spotd.store.transaction import Transaction

CONFIRMED, INTENDED = "claim", "claim_next"  # the counters that keep them
HOME = "home"  # and the one that says where the database lay last

_counters = schema.counters.c


def claims(conn: Connection) -> tuple[int, int]:
    """See LeakRecords.claims."""
    names = (CONFIRMED, INTENDED)
    query = select(_counters.name, _counters.value).where(_counters.name.in_(names))
    found = {row.name: int(row.value) for row in conn.execute(query)}
    return found.get(CONFIRMED, 0), found.get(INTENDED, 0)


def record(conn: Connection, confirmed: int, intended: int) -> None:
    """See LeakRecords.record_claim."""
    for name, value in ((CONFIRMED, confirmed), (INTENDED, intended)):
        _put(conn, name, value)


def record_home(tx: Transaction, home: int, moved: str, at_us: int) -> None:
    """See LeakRecords.record_home."""
    query = select(_counters.value).where(_counters.name == HOME)
    if tx.conn.execute(query).scalar_one_or_none() not in (None, home):
        set_quarantine(tx, moved, at_us)
    _put(tx.conn, HOME, home)


def _put(conn: Connection, name: str, value: int) -> None:
    where = _counters.name == name
    if not conn.execute(update(schema.counters).where(where).values(value=value)).rowcount:
        conn.execute(schema.counters.insert().values(name=name, value=value))
