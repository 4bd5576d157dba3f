"""Jobs: submitted and steered by users, claimed by the loop."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    bindparam,
    case,
    func,
    or_,
    select,
    true,
    update,
)

from spotd.domain.events import Event
from spotd.domain.job import Desired, HeadSnapshot, Job
from spotd.store import schema, sealed_values
from spotd.store.codec import encode
from spotd.store.interface import DuplicateIdError, DuplicateNameError, StoreError, Submission
from spotd.store.rows import JOB_COLUMNS, ZERO, head_columns, head_of, job_of
from spotd.store.transaction import Transaction
from spotd.store.users import check_enabled, disabled_users

_jobs = schema.jobs.c
_NOW, _UNTIL = bindparam("now", type_=BigInteger), bindparam("until", type_=BigInteger)
# SKIP LOCKED (SQLite ignores it) lets several daemons take side by side.
_DUE = (
    select(_jobs.id)
    .where(_jobs.due_at_us > ZERO, _jobs.due_at_us <= _NOW, _jobs.claim_until_us <= _NOW)
    .order_by(_jobs.due_at_us, _jobs.id)
    .limit(bindparam("most", type_=Integer))
    .with_for_update(skip_locked=True)
)
_CLAIM = (
    update(schema.jobs)
    .where(_jobs.id.in_(_DUE))
    .values(claim_owner=bindparam("owner"), claim_until_us=_UNTIL)
    .returning(_jobs.due_at_us, _jobs.id)
)
_WAKE_US = case(
    (_jobs.claim_until_us > _jobs.due_at_us, _jobs.claim_until_us), else_=_jobs.due_at_us
)
_NEXT_WAKE = select(func.min(_WAKE_US)).where(_jobs.due_at_us > ZERO)
_ALL = select(*JOB_COLUMNS).order_by(_jobs.created_at_us, _jobs.id)
_UNFINISHED = _ALL.where(_jobs.outcome.is_(None))
_BY_ID = _jobs.id == bindparam("wanted")
_FOUND = (
    select(*JOB_COLUMNS)
    .where(or_(_BY_ID, _jobs.name == bindparam("wanted")))
    .order_by(case((_BY_ID, 0), else_=1), _jobs.created_at_us.desc(), _jobs.id.desc())
    .limit(1)
)
_NAMES = select(_jobs.id, _jobs.name).where(_jobs.id.in_(bindparam("jobs", expanding=True)))


def claim(conn: Connection, now_us: int, owner: str, limit: int, lease_us: int) -> list[str]:
    """See Store.claim."""
    said = {"now": now_us, "until": now_us + lease_us, "owner": owner, "most": limit}
    taken = conn.execute(_CLAIM, said)
    return [job_id for _, job_id in sorted((row.due_at_us, row.id) for row in taken)]


def next_wake_us(conn: Connection) -> int | None:
    """See Store.next_wake_us. A claimed job is due again when its claim has run out."""
    found = conn.execute(_NEXT_WAKE).scalar_one()
    return None if found is None else int(found)


def submit(tx: Transaction, submission: Submission, at_us: int) -> Job:
    """See Store.submit."""
    conn, spec = tx.conn, submission.spec
    first = job_of_request(conn, submission.request_id)
    if first is not None:
        return first
    if _one(conn, _jobs.id == submission.job_id) is not None:
        raise duplicate_id(submission.job_id)
    unfinished = (_jobs.name == spec.name) & _jobs.outcome.is_(None)
    other = conn.execute(select(_jobs.id).where(unfinished)).scalar_one_or_none()
    if other is not None:
        raise duplicate_name(spec.name, other)
    # Whoever disables a user waits for us here, or we for that: no job is left to one shut out.
    sealed_values.hold_epoch(conn, submission.key_epoch)
    check_enabled(submission.user, disabled_users(conn))
    conn.execute(
        schema.jobs.insert().values(
            id=submission.job_id,
            name=spec.name,
            spec=encode(spec),
            spec_yaml=submission.spec_yaml,
            user_name=submission.user,
            request_id=submission.request_id or None,
            job_key=submission.job_key,
            created_at_us=at_us,
            desired=Desired.RUN.value,
            **(head_columns(submission.head) if submission.head else {}),
        )
    )
    if submission.secrets:
        rows = [
            {"job_id": submission.job_id, "name": name, "value": value}
            for name, value in submission.secrets.items()
        ]
        conn.execute(schema.secrets.insert(), rows)
    tx.touch({submission.job_id: at_us})
    return _known(conn, submission.job_id)


def duplicate_id(job_id: str) -> DuplicateIdError:
    """The job is on record, whatever has become of it."""
    return DuplicateIdError(f"job {job_id} is on record already: see `spotctl show {job_id}`")


def duplicate_name(name: str, other: str) -> DuplicateNameError:
    """The job `other` has that name, and goes on."""
    text = (
        f"job {name!r} is not finished yet ({other}): cancel it with "
        f"`spotctl cancel {name}`, or submit under another name"
    )
    return DuplicateNameError(text, other)


def unknown_job(job_id: str) -> StoreError:
    """There is no such job."""
    return StoreError(f"there is no job {job_id!r}: see `spotctl ps --all`")


def is_settled(job: Job, desired: Desired) -> bool:
    """`desired` changes nothing: a finished job stays as it is, and a cancel is not taken back."""
    return job.outcome is not None or job.desired in (desired, Desired.CANCEL)


def set_desired(tx: Transaction, job_id: str, desired: Desired, at_us: int) -> Job:
    """See Store.set_desired."""
    tx.touch({job_id: at_us})
    job = _known(tx.conn, job_id)
    if is_settled(job, desired):
        return job
    where = _jobs.id == job_id
    tx.conn.execute(update(schema.jobs).where(where).values(desired=desired.value))
    return _known(tx.conn, job_id)


def pause(tx: Transaction, job_id: str, said: Event, at_us: int) -> bool:
    """See LifeRecords.pause_job."""
    tx.touch({job_id: at_us})
    if is_settled(_known(tx.conn, job_id), Desired.PAUSE):
        return False
    set_desired(tx, job_id, Desired.PAUSE, at_us)
    tx.event(job_id, said, at_us)
    return True


def record_head(tx: Transaction, job_id: str, head: HeadSnapshot) -> None:
    """What the daemon read itself. An older reading than what is known changes nothing."""
    tx.touch({job_id: head.read_at_us or head.seen_at_us})
    row = tx.conn.execute(select(*JOB_COLUMNS).where(_jobs.id == job_id)).one_or_none()
    if row is None:
        return
    merged = newer_head(head_of(row), head)
    tx.conn.execute(update(schema.jobs).where(_jobs.id == job_id).values(head_columns(merged)))


def newer_head(known: HeadSnapshot | None, said: HeadSnapshot) -> HeadSnapshot:
    """What is known of HEAD after `said`. `seen_at_us` stays the moment when it was first seen
    where it is: a reading that finds nothing new is no sign of life."""
    if known is None:
        return said
    read_at_us = max(known.read_at_us, said.read_at_us)
    ours = said.generation == known.generation
    released = known.released or (ours and said.released)
    if (said.generation, said.step) < (known.generation, known.step):
        return replace(known, read_at_us=read_at_us, released=released)
    if ours and said.step == known.step and said.manifest in ("", known.manifest):
        final = known.final or said.final
        return replace(known, read_at_us=read_at_us, released=released, final=final)
    return replace(said, read_at_us=read_at_us)


def jobs(conn: Connection, finished: bool) -> list[Job]:
    """Oldest first."""
    return [job_of(row) for row in conn.execute(_ALL if finished else _UNFINISHED)]


def newest_jobs(conn: Connection, limit: int, finished: bool) -> tuple[list[Job], int]:
    """See Store.newest_jobs."""
    which = true() if finished else _jobs.outcome.is_(None)
    return _newest(conn, limit, which, _jobs.created_at_us)


def ended_jobs(conn: Connection, limit: int) -> tuple[list[Job], int]:
    """See LifeRecords.ended_jobs."""
    return _newest(conn, limit, _jobs.outcome.is_not(None), _jobs.finished_at_us)


def _newest(
    conn: Connection, limit: int, which: ColumnElement[bool], at_us: ColumnElement[int]
) -> tuple[list[Job], int]:
    newest = select(*JOB_COLUMNS).where(which).order_by(at_us.desc(), _jobs.id.desc()).limit(limit)
    count = select(func.count(_jobs.id)).where(which)
    return [job_of(row) for row in conn.execute(newest)], conn.execute(count).scalar_one()


def find_job(conn: Connection, name_or_id: str) -> Job | None:
    """See Store.find_job."""
    row = conn.execute(_FOUND, {"wanted": name_or_id}).one_or_none()
    return None if row is None else job_of(row)


def job_of_request(conn: Connection, request_id: str) -> Job | None:
    """See Store.job_of_request."""
    return _one(conn, _jobs.request_id == request_id) if request_id else None


def job_names(conn: Connection, job_ids: Collection[str]) -> dict[str, str]:
    """See Store.job_names."""
    rows = conn.execute(_NAMES, {"jobs": sorted(job_ids)}) if job_ids else ()
    return {row.id: row.name for row in rows}


def column(conn: Connection, job_id: str, name: str) -> Any:
    """One column of a job that exists."""
    query = select(_jobs[name]).where(_jobs.id == job_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise unknown_job(job_id)
    return row[0]


def secrets(conn: Connection, job_id: str) -> dict[str, bytes]:
    """Name -> ciphertext."""
    table = schema.secrets
    rows = conn.execute(select(table).where(table.c.job_id == job_id).order_by(table.c.name))
    return {row.name: row.value for row in rows}


def _one(conn: Connection, condition: Any) -> Job | None:
    row = conn.execute(select(*JOB_COLUMNS).where(condition)).one_or_none()
    return None if row is None else job_of(row)


def _known(conn: Connection, job_id: str) -> Job:
    job = _one(conn, _jobs.id == job_id)
    if job is None:
        raise unknown_job(job_id)
    return job
