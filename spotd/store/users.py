"""Disabled users, and the nodes that hold users' keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from spotd.domain.events import Event
from spotd.store import schema
from spotd.store.errors import DisabledUserError, NoSuccessorError
from spotd.store.rows import NOT_GONE
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction


@dataclass(frozen=True)
class DisabledUser:
    """A disabled user. `uid` is -1 if unknown; `successor` got the jobs."""

    name: str
    uid: int
    disabled_at_us: int
    disabled_by: str
    successor: str = ""


_jobs, _nodes = schema.jobs.c, schema.nodes.c
_users, _admissions = schema.disabled_users.c, schema.admissions.c


class UserRepository(Repository):
    """Disabled users, and the nodes that hold users' keys."""

    @read
    def disabled(self, conn: Connection) -> list[DisabledUser]:
        """All disabled users, by name."""
        return disabled_users(conn)

    @write
    def disable(self, tx: Transaction, row: DisabledUser) -> list[str]:
        """Disable a user, give the unfinished jobs to the successor and return their ids.

        Each of them gets an event. Raises NoSuccessorError, changing nothing, when there are such
        jobs and no successor is named.
        """
        mine = (_jobs.user_name == row.name) & _jobs.outcome.is_(None)
        # A job that is being submitted is stored before, and moves, or not at all. Jobs first and
        # in order, as everybody who goes on to lock the deployment.
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
        job_ids = sorted(moved.scalars())
        for job_id in job_ids:
            tx.event(job_id, transferred(row), row.disabled_at_us)
        return job_ids

    @write
    def enable(self, tx: Transaction, name: str) -> bool:
        """Enable a user again; False if the user was not disabled."""
        return enable_user(tx, name)

    @write
    def add_admission(self, tx: Transaction, node_id: str, user: str, at_us: int) -> None:
        """Record that a node is about to receive a key of the user."""
        table = schema.admissions
        where = (_admissions.node_id == node_id) & (_admissions.user_name == user)
        values = {"admitted_at_us": at_us, "dismissed_at_us": 0}
        if not tx.conn.execute(update(table).where(where).values(**values)).rowcount:
            tx.conn.execute(insert(table).values(node_id=node_id, user_name=user, **values))

    @read
    def admitted_though_disabled(self, conn: Connection) -> list[tuple[str, str]]:
        """(node id, user) pairs: nodes not gone that may still hold a key of a disabled user."""
        query = (
            select(_admissions.node_id, _admissions.user_name)
            .join_from(schema.admissions, schema.nodes, _nodes.id == _admissions.node_id)
            .join(schema.disabled_users, _users.name == _admissions.user_name)
            .where(_admissions.dismissed_at_us == 0, NOT_GONE)
            .order_by(_admissions.node_id, _admissions.user_name)
        )
        return [(row.node_id, row.user_name) for row in conn.execute(query)]

    @write
    def record_dismissed(self, tx: Transaction, node_id: str, user: str, at_us: int) -> None:
        """Record that the node no longer holds the keys of the user it was given until `at_us`."""
        where = (
            (_admissions.node_id == node_id)
            & (_admissions.user_name == user)
            & (_admissions.admitted_at_us <= at_us)
        )
        tx.conn.execute(update(schema.admissions).where(where).values(dismissed_at_us=at_us))


def disabled_users(conn: Connection) -> list[DisabledUser]:
    """All disabled users, by name."""
    names = DisabledUser.__dataclass_fields__
    rows = conn.execute(select(schema.disabled_users).order_by(_users.name)).mappings()
    return [DisabledUser(**{name: row[name] for name in names}) for row in rows]


def check_heirless(row: DisabledUser, job_ids: Sequence[str]) -> None:
    """Raises NoSuccessorError if there are jobs."""
    if job_ids:
        raise NoSuccessorError(f"{row.name} has {len(job_ids)} unfinished jobs")


def check_enabled(user: str, disabled: Iterable[DisabledUser]) -> None:
    """Raises DisabledUserError."""
    if any(row.name == user for row in disabled):
        raise DisabledUserError(f"{user} is disabled")


def transferred(row: DisabledUser) -> Event:
    """The event of a job that gets a new owner."""
    text = f"now {row.successor}'s: {row.name} was disabled by {row.disabled_by}"
    return Event("transferred", text)


def enable_user(tx: Transaction, name: str) -> bool:
    """Enable a user; False if the user was not disabled."""
    where = _users.name == name
    return tx.conn.execute(delete(schema.disabled_users).where(where)).rowcount > 0
