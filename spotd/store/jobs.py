"""Jobs: submitted and steered by users, claimed by the loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
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
from spotd.domain.job import Desired, HeadSnapshot, Job, JobSpec
from spotd.domain.states import Outcome
from spotd.store import schema, secrets
from spotd.store.codec import encode
from spotd.store.engine import BrokenRuleError
from spotd.store.errors import DuplicateIdError, DuplicateNameError, StoreError
from spotd.store.rows import JOB_COLUMNS, ZERO, head_columns, head_of, job_of
from spotd.store.session import Repository, read, read_one, write, write_unfenced_urgent
from spotd.store.transaction import Transaction
from spotd.store.users import check_enabled, disabled_users


@dataclass(frozen=True)
class Submission:
    """A job to be stored in one transaction, with everything that later effects need.

    `secrets` and `job_key` are ciphertexts, sealed with the master key of `key_epoch`. `request_id`
    makes a repeated request return the first job. `head` is the current HEAD of a job that
    continues from the checkpoints of its id. With `approval_asked_by` the job is stored paused: it
    runs once another person approves that it exceeds a budget.
    """

    job_id: str
    spec: JobSpec
    spec_yaml: str
    user: str
    request_id: str
    job_key: bytes
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    key_epoch: int = 0
    head: HeadSnapshot | None = None
    approval_asked_by: str = ""
    approval_text: str = ""


@dataclass(frozen=True)
class JobPage:
    """A page of jobs: `state` is of JOB_STATES, `sort` of JOB_SORTS, `name` a part of names."""

    limit: int
    offset: int = 0
    state: str = ""
    name: str = ""
    sort: str = "newest"


_jobs = schema.jobs.c
_STATES: Mapping[str, ColumnElement[bool]] = {
    "": true(),
    "unfinished": _jobs.outcome.is_(None),
    "ended": _jobs.outcome.is_not(None),
    **{outcome.value: _jobs.outcome == outcome.value for outcome in Outcome},
}
_ORDERS: Mapping[str, tuple[ColumnElement[Any], ...]] = {
    "newest": (_jobs.created_at_us.desc(),),
    "oldest": (_jobs.created_at_us.asc(),),
    "name": (_jobs.name.asc(), _jobs.created_at_us.desc()),
    "ended": (_jobs.finished_at_us.desc(), _jobs.created_at_us.desc()),
}
JOB_STATES, JOB_SORTS = tuple(_STATES), tuple(_ORDERS)
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


def _submit(tx: Transaction, submission: Submission, at_us: int) -> Job:
    """Store a new job; see JobRepository.submit."""
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
    secrets.hold_epoch(conn, submission.key_epoch)
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
            desired=(Desired.PAUSE if submission.approval_asked_by else Desired.RUN).value,
            approval_asked_by=submission.approval_asked_by,
            approval_text=submission.approval_text,
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
    """The error: the job id is on record."""
    return DuplicateIdError(f"job {job_id} is on record already: see `spotctl show {job_id}`")


def duplicate_name(name: str, other: str) -> DuplicateNameError:
    """The error: the unfinished job `other` has that name."""
    text = (
        f"job {name!r} is not finished yet ({other}): cancel it with "
        f"`spotctl cancel {name}`, or submit under another name"
    )
    return DuplicateNameError(text, other)


def unknown_job(job_id: str) -> StoreError:
    """The error: there is no such job."""
    return StoreError(f"there is no job {job_id!r}: see `spotctl ps --all`")


def is_settled(job: Job, desired: Desired) -> bool:
    """Whether `desired` changes nothing: a finished job stays as it is, and a cancel is final."""
    return job.outcome is not None or job.desired in (desired, Desired.CANCEL)


def _set_desired(tx: Transaction, job_id: str, desired: Desired, at_us: int) -> Job:
    """Record the job's desired state."""
    tx.touch({job_id: at_us})
    job = _known(tx.conn, job_id)
    if is_settled(job, desired):
        return job
    where = _jobs.id == job_id
    values = {"desired": desired.value}
    if desired is Desired.RUN:
        values |= {"approval_asked_by": "", "approval_text": ""}
    tx.conn.execute(update(schema.jobs).where(where).values(values))
    return _known(tx.conn, job_id)


def newer_head(known: HeadSnapshot | None, reading: HeadSnapshot) -> HeadSnapshot:
    """Merge another reading of HEAD into the known one.

    `seen_at_us` stays the time when HEAD was first seen at its place: a reading without news is no
    sign of life.
    """
    if known is None:
        return reading
    read_at_us = max(known.read_at_us, reading.read_at_us)
    ours = reading.generation == known.generation
    released = known.released or (ours and reading.released)
    if (reading.generation, reading.step) < (known.generation, known.step):
        return replace(known, read_at_us=read_at_us, released=released)
    if ours and reading.step == known.step and reading.manifest in ("", known.manifest):
        final = known.final or reading.final
        return replace(known, read_at_us=read_at_us, released=released, final=final)
    return replace(reading, read_at_us=read_at_us)


def _newest(
    conn: Connection, limit: int, which: ColumnElement[bool], at_us: ColumnElement[int]
) -> tuple[list[Job], int]:
    newest = select(*JOB_COLUMNS).where(which).order_by(at_us.desc(), _jobs.id.desc()).limit(limit)
    count = select(func.count(_jobs.id)).where(which)
    return [job_of(row) for row in conn.execute(newest)], conn.execute(count).scalar_one()


def job_of_request(conn: Connection, request_id: str) -> Job | None:
    """The job that this API request created."""
    return _one(conn, _jobs.request_id == request_id) if request_id else None


def _column(conn: Connection, job_id: str, name: str) -> Any:
    """One column of a job that exists."""
    query = select(_jobs[name]).where(_jobs.id == job_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise unknown_job(job_id)
    return row[0]


def _one(conn: Connection, condition: Any) -> Job | None:
    row = conn.execute(select(*JOB_COLUMNS).where(condition)).one_or_none()
    return None if row is None else job_of(row)


def _known(conn: Connection, job_id: str) -> Job:
    job = _one(conn, _jobs.id == job_id)
    if job is None:
        raise unknown_job(job_id)
    return job


_USERS = select(_jobs.id, _jobs.user_name).where(_jobs.id.in_(bindparam("jobs", expanding=True)))
_MANY = 500  # ids in one statement


class JobRepository(Repository):
    """Jobs, and their desired states."""

    @read
    def owners(self, conn: Connection) -> dict[str, str]:
        """The user of each unfinished job, by job id."""
        query = select(_jobs.id, _jobs.user_name).where(_jobs.outcome.is_(None)).order_by(_jobs.id)
        return {row.id: row.user_name for row in conn.execute(query)}

    @read
    def ended(self, conn: Connection, limit: int) -> tuple[list[Job], int]:
        """The newest `limit` ended jobs, newest first, and the number of all."""
        return _newest(conn, limit, _jobs.outcome.is_not(None), _jobs.finished_at_us)

    @write
    def pause(self, tx: Transaction, job_id: str, event: Event, at_us: int) -> bool:
        """Pause a job as its user would, with an event that says why.

        False, recording nothing, if it is paused, cancelled or finished already.
        """
        tx.touch({job_id: at_us})
        if is_settled(_known(tx.conn, job_id), Desired.PAUSE):
            return False
        _set_desired(tx, job_id, Desired.PAUSE, at_us)
        tx.event(job_id, event, at_us)
        return True

    @read_one
    def next_wake_us(self, conn: Connection) -> int | None:
        """The earliest time at which a job becomes due; None if none waits.

        A claimed job is due again when its claim has run out.
        """
        wake_us = conn.execute(_NEXT_WAKE).scalar_one()
        return None if wake_us is None else int(wake_us)

    @read_one
    def rows(self, conn: Connection, finished: bool = True) -> list[Job]:
        """All jobs, or only unfinished ones, oldest first."""
        return [job_of(row) for row in conn.execute(_ALL if finished else _UNFINISHED)]

    @read
    def newest(self, conn: Connection, limit: int, finished: bool = True) -> tuple[list[Job], int]:
        """The newest `limit` jobs, newest first, and the number of all."""
        which = true() if finished else _jobs.outcome.is_(None)
        return _newest(conn, limit, which, _jobs.created_at_us)

    @read
    def page(self, conn: Connection, wanted: JobPage) -> tuple[list[Job], int]:
        """One page of the jobs that match, and the number of all that do."""
        which = [_STATES[wanted.state]]
        if wanted.name:
            which.append(_jobs.name.contains(wanted.name, autoescape=True))
        order = _ORDERS[wanted.sort]
        query = select(*JOB_COLUMNS).where(*which).order_by(*order, _jobs.id.desc())
        rows = conn.execute(query.limit(wanted.limit).offset(wanted.offset))
        count = conn.execute(select(func.count(_jobs.id)).where(*which)).scalar_one()
        return [job_of(row) for row in rows], count

    @read_one
    def find(self, conn: Connection, name_or_id: str) -> Job | None:
        """Return the job of that id, otherwise the newest of that name."""
        row = conn.execute(_FOUND, {"wanted": name_or_id}).one_or_none()
        return None if row is None else job_of(row)

    @read
    def find_by_request(self, conn: Connection, request_id: str) -> Job | None:
        """The job that this API request created."""
        return job_of_request(conn, request_id)

    @read
    def names(self, conn: Connection, job_ids: Collection[str]) -> dict[str, str]:
        """Names by job id, of those that exist."""
        rows = conn.execute(_NAMES, {"jobs": sorted(job_ids)}) if job_ids else ()
        return {row.id: row.name for row in rows}

    @read
    def users(self, conn: Connection, job_ids: Collection[str]) -> dict[str, str]:
        """Users by job id, of those that exist, finished or not."""
        ids, users = sorted(job_ids), dict[str, str]()
        for at in range(0, len(ids), _MANY):
            rows = conn.execute(_USERS, {"jobs": ids[at : at + _MANY]})
            users |= {row.id: row.user_name for row in rows}
        return users

    @read
    def secrets(self, conn: Connection, job_id: str) -> dict[str, bytes]:
        """The job's sealed secrets, by name."""
        table = schema.secrets
        rows = conn.execute(select(table).where(table.c.job_id == job_id).order_by(table.c.name))
        return {row.name: row.value for row in rows}

    @write
    def record_head(self, tx: Transaction, job_id: str, head: HeadSnapshot) -> None:
        """Record HEAD as the daemon read it. An older reading than the known one changes
        nothing."""
        tx.touch({job_id: head.read_at_us or head.seen_at_us})
        row = tx.conn.execute(select(*JOB_COLUMNS).where(_jobs.id == job_id)).one_or_none()
        if row is None:
            return
        merged = newer_head(head_of(row), head)
        tx.conn.execute(update(schema.jobs).where(_jobs.id == job_id).values(head_columns(merged)))

    @write_unfenced_urgent
    def claim(
        self, conn: Connection, now_us: int, owner: str, limit: int, lease_us: int
    ) -> list[str]:
        """Claim up to `limit` due jobs that no daemon has claimed, oldest due first.

        A job is due when notes > notes_seen or 0 < wake_at_us <= now. A claim ends with the commit,
        or after `lease_us`.
        """
        values = {"now": now_us, "until": now_us + lease_us, "owner": owner, "most": limit}
        claimed = conn.execute(_CLAIM, values)
        return [job_id for _, job_id in sorted((row.due_at_us, row.id) for row in claimed)]

    def submit(self, submission: Submission, at_us: int) -> Job:
        """Store a new job. The same `request_id` again returns the first job.

        Raises DuplicateIdError, DuplicateNameError, DisabledUserError, StaleKeyError.
        """
        try:
            return self.session.write(lambda tx: _submit(tx, submission, at_us))
        except BrokenRuleError:
            # Another client submitted the same name or request at the same moment; now it is seen.
            return self.session.write(lambda tx: _submit(tx, submission, at_us))

    @write
    def set_desired(self, tx: Transaction, job_id: str, desired: Desired, at_us: int) -> Job:
        """Record the job's desired state. A finished job stays as it is; a cancel is final."""
        return _set_desired(tx, job_id, desired, at_us)

    @write
    def ask_approval(
        self, tx: Transaction, job_id: str, asked_by: str, text: str, at_us: int
    ) -> Job:
        """Record that a paused job runs once another person than `asked_by` approves it.

        `text` names the budget that it would exceed.
        """
        tx.touch({job_id: at_us})
        if _known(tx.conn, job_id).desired is Desired.PAUSE:
            values = {"approval_asked_by": asked_by, "approval_text": text}
            tx.conn.execute(update(schema.jobs).where(_jobs.id == job_id).values(values))
        return _known(tx.conn, job_id)

    @write
    def mark_due(self, tx: Transaction, job_ids: Collection[str]) -> None:
        """Make jobs due: something changed with time that only a decision can judge."""
        tx.touch(dict.fromkeys(job_ids, 0))

    @read
    def spec_yaml(self, conn: Connection, job_id: str) -> str:
        """The job file as it was submitted."""
        return str(_column(conn, job_id, "spec_yaml"))

    @read
    def key(self, conn: Connection, job_id: str) -> bytes:
        """The job's sealed key."""
        return bytes(_column(conn, job_id, "job_key"))
