"""Users who are shut out, and the machines that let them in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, delete, insert, select, update

from spotd.domain.events import Event
from spotd.store import schema
from spotd.store.interface import DisabledUser, DisabledUserError, NoSuccessorError
from spotd.store.rows import NOT_GONE
from spotd.store.transaction import Transaction

_jobs, _nodes = schema.jobs.c, schema.nodes.c
_users, _admissions = schema.disabled_users.c, schema.admissions.c


def job_owners(conn: Connection) -> dict[str, str]:
    """See Store.job_owners."""
    query = select(_jobs.id, _jobs.user_name).where(_jobs.outcome.is_(None)).order_by(_jobs.id)
    return {row.id: row.user_name for row in conn.execute(query)}


def disabled_users(conn: Connection) -> list[DisabledUser]:
    """See Store.disabled_users."""
    names = DisabledUser.__dataclass_fields__
    rows = conn.execute(select(schema.disabled_users).order_by(_users.name)).mappings()
    return [DisabledUser(**{name: row[name] for name in names}) for row in rows]


def disable_user(tx: Transaction, row: DisabledUser) -> list[str]:
    """See Store.disable_user."""
    mine = (_jobs.user_name == row.name) & _jobs.outcome.is_(None)
    # A job that is being submitted is stored before, and moves, or not at all. Jobs first and in
    # order, as everybody who goes on to lock the deployment.
    tx.conn.execute(select(_jobs.id).where(mine).order_by(_jobs.id).with_for_update()).all()
    tx.conn.execute(select(schema.deployment.c.id).with_for_update()).all()
    if not row.successor:  # asked again: one may have been submitted while we waited
        check_heirless(row, tx.conn.execute(select(_jobs.id).where(mine)).scalars().all())
    enable_user(tx, row.name)
    values = {name: getattr(row, name) for name in DisabledUser.__dataclass_fields__}
    tx.conn.execute(insert(schema.disabled_users).values(**values))
    moved = tx.conn.execute(
        update(schema.jobs).where(mine).values(user_name=row.successor).returning(_jobs.id)
    )
    found = sorted(moved.scalars())
    for job_id in found:
        tx.event(job_id, transferred(row), row.disabled_at_us)
    return found


def check_heirless(row: DisabledUser, job_ids: Sequence[str]) -> None:
    """Raises NoSuccessorError where there are jobs."""
    if job_ids:
        raise NoSuccessorError(f"{row.name} has {len(job_ids)} unfinished jobs")


def check_enabled(user: str, disabled: Iterable[DisabledUser]) -> None:
    """Raises ShutOutError."""
    if any(row.name == user for row in disabled):
        raise DisabledUserError(f"{user} is disabled")


def transferred(row: DisabledUser) -> Event:
    """What a job tells of its new owner."""
    text = f"now {row.successor}'s: {row.name} was disabled by {row.disabled_by}"
    return Event("transferred", text)


def enable_user(tx: Transaction, name: str) -> bool:
    """See Store.enable_user."""
    where = _users.name == name
    return tx.conn.execute(delete(schema.disabled_users).where(where)).rowcount > 0


def add_admission(tx: Transaction, node_id: str, user: str, at_us: int) -> None:
    """See Store.add_admission."""
    table = schema.admissions
    where = (_admissions.node_id == node_id) & (_admissions.user_name == user)
    values = {"admitted_at_us": at_us, "dismissed_at_us": 0}
    if not tx.conn.execute(update(table).where(where).values(**values)).rowcount:
        tx.conn.execute(insert(table).values(node_id=node_id, user_name=user, **values))


def shut_out(conn: Connection) -> list[tuple[str, str]]:
    """See Store.shut_out."""
    query = (
        select(_admissions.node_id, _admissions.user_name)
        .join_from(schema.admissions, schema.nodes, _nodes.id == _admissions.node_id)
        .join(schema.disabled_users, _users.name == _admissions.user_name)
        .where(_admissions.dismissed_at_us == 0, NOT_GONE)
        .order_by(_admissions.node_id, _admissions.user_name)
    )
    return [(row.node_id, row.user_name) for row in conn.execute(query)]


def record_dismissed(tx: Transaction, node_id: str, user: str, at_us: int) -> None:
    """See Store.record_dismissed."""
    where = (
        (_admissions.node_id == node_id)
        & (_admissions.user_name == user)
        & (_admissions.admitted_at_us <= at_us)
    )
    tx.conn.execute(update(schema.admissions).where(where).values(dismissed_at_us=at_us))
