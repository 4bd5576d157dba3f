"""What this database knows of its claim to the deployment; see act/claim.py for what it is for."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from spotd.store import schema

CONFIRMED, INTENDED = "claim", "claim_next"  # the counters that keep them

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
        where = _counters.name == name
        if not conn.execute(update(schema.counters).where(where).values(value=value)).rowcount:
            conn.execute(schema.counters.insert().values(name=name, value=value))
