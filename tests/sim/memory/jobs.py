"""Jobs: submitted and steered by users, claimed by the loop."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from spotd.domain.events import Event
from spotd.domain.job import Desired, HeadSnapshot, Job, JobApproval
from spotd.store.codec import decode_spec, encode
from spotd.store.columns import clean
from spotd.store.jobs import (
    JobPage,
    Submission,
    duplicate_id,
    duplicate_name,
    is_settled,
    newer_head,
    unknown_job,
)
from spotd.store.secrets import check_epoch
from spotd.store.users import check_enabled
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction


def claim(tx: Transaction, now_us: int, limit: int, lease_us: int) -> list[str]:
    """See Store.jobs.claim."""
    tables = tx.tables
    due = sorted(
        (at_us, job_id)
        for job_id, at_us in tables.due.items()
        if at_us <= now_us and tables.claims.get(job_id, 0) <= now_us
    )
    taken = [job_id for _, job_id in due[:limit]]
    for job_id in taken:
        tx.put(tables.claims, job_id, now_us + lease_us)
    return taken


def next_wake_us(tables: Tables) -> int | None:
    """See Store.jobs.next_wake_us. A claimed job is due again when its claim has run out."""
    moments = (max(at_us, tables.claims.get(job, 0)) for job, at_us in tables.due.items())
    return min(moments, default=None)


def submit(tx: Transaction, submission: Submission, at_us: int) -> Job:
    """See Store.jobs.submit."""
    tables, job_id = tx.tables, submission.job_id
    if submission.request_id in tables.requests:
        return tables.jobs[tables.requests[submission.request_id]]
    if job_id in tables.jobs:
        raise duplicate_id(job_id)
    spec = decode_spec(encode(submission.spec))  # as a database gives it back
    other = tables.unfinished.get(spec.name)
    if other is not None:
        raise duplicate_name(spec.name, other)
    check_epoch(submission.key_epoch, tables.key.epoch)
    check_enabled(submission.user, tables.disabled.values())
    head = submission.head and replace(submission.head, manifest=clean(submission.head.manifest))
    asked_by = submission.approval_asked_by
    job = Job(
        id=job_id,
        name=spec.name,
        spec=spec,
        desired=Desired.PAUSE if asked_by else Desired.RUN,
        version=0,
        created_at_us=at_us,
        head=head,
        approval=JobApproval(approval_asked_by=asked_by, approval_text=submission.approval_text),
    )
    tx.put(tables.jobs, job_id, job)
    kept = replace(submission, secrets=dict(sorted(submission.secrets.items())))
    tx.put(tables.submissions, job_id, kept)
    tx.put(tables.unfinished, spec.name, job_id)
    if submission.request_id:
        tx.put(tables.requests, submission.request_id, job_id)
    tx.touch({job_id: at_us})
    return tables.jobs[job_id]


def set_desired(tx: Transaction, job_id: str, desired: Desired, at_us: int) -> Job:
    """See Store.jobs.set_desired."""
    tx.touch({job_id: at_us})
    job = known(tx.tables, job_id)
    if not is_settled(job, desired):
        approved = {"approval_asked_by": "", "approval_text": ""}
        tx.change_job(job, desired=desired, **(approved if desired is Desired.RUN else {}))
    return tx.tables.jobs[job_id]


def pause(tx: Transaction, job_id: str, said: Event, at_us: int) -> bool:
    """See Store.jobs.pause."""
    tx.touch({job_id: at_us})
    if is_settled(known(tx.tables, job_id), Desired.PAUSE):
        return False
    set_desired(tx, job_id, Desired.PAUSE, at_us)
    tx.event(job_id, said, at_us)
    return True


def ask_approval(tx: Transaction, job_id: str, asked_by: str, text: str, at_us: int) -> Job:
    """See Store.jobs.ask_approval."""
    tx.touch({job_id: at_us})
    job = known(tx.tables, job_id)
    if job.desired is Desired.PAUSE:
        tx.change_job(job, approval_asked_by=asked_by, approval_text=text)
    return tx.tables.jobs[job_id]


def record_head(tx: Transaction, job_id: str, head: HeadSnapshot) -> None:
    """See Store.jobs.record_head."""
    tx.touch({job_id: head.read_at_us or head.seen_at_us})
    job = tx.tables.jobs.get(job_id)
    if job is not None:
        merged = newer_head(job.head, head)
        tx.change_job(job, head=replace(merged, manifest=clean(merged.manifest)))


def jobs(tables: Tables, finished: bool) -> list[Job]:
    """Oldest first."""
    found = [job for job in tables.jobs.values() if finished or job.outcome is None]
    return sorted(found, key=lambda job: (job.created_at_us, job.id))


def newest_jobs(tables: Tables, limit: int, finished: bool) -> tuple[list[Job], int]:
    """See Store.jobs.newest."""
    found = jobs(tables, finished)
    return found[::-1][:limit], len(found)


def ended_jobs(tables: Tables, limit: int) -> tuple[list[Job], int]:
    """See Store.jobs.ended."""
    found = [job for job in tables.jobs.values() if job.outcome is not None]
    found.sort(key=lambda job: (job.end.finished_at_us, job.id), reverse=True)
    return found[:limit], len(found)


def page(tables: Tables, wanted: JobPage) -> tuple[list[Job], int]:
    """See Store.jobs.page."""
    found = [job for job in tables.jobs.values() if _is_in(job, wanted)]
    found.sort(key=lambda job: job.id, reverse=True)
    found.sort(key=lambda job: job.created_at_us, reverse=wanted.sort != "oldest")
    if wanted.sort == "name":
        found.sort(key=lambda job: job.name)
    elif wanted.sort == "ended":
        found.sort(key=lambda job: job.end.finished_at_us, reverse=True)
    return found[wanted.offset :][: wanted.limit], len(found)


def _is_in(job: Job, wanted: JobPage) -> bool:
    state = job.outcome.value if job.outcome else "unfinished"
    is_wanted = wanted.state in ("", state) or (wanted.state == "ended" and job.outcome is not None)
    return is_wanted and wanted.name in job.name


def job_of_request(tables: Tables, request_id: str) -> Job | None:
    """See Store.jobs.find_by_request."""
    job_id = tables.requests.get(request_id) if request_id else None
    return tables.jobs[job_id] if job_id else None


def find_job(tables: Tables, name_or_id: str) -> Job | None:
    """See Store.jobs.find."""
    if name_or_id in tables.jobs:
        return tables.jobs[name_or_id]
    named = [job for job in tables.jobs.values() if job.name == name_or_id]
    return max(named, key=lambda job: (job.created_at_us, job.id), default=None)


def job_names(tables: Tables, job_ids: Collection[str]) -> dict[str, str]:
    """See Store.jobs.names."""
    return {job_id: tables.jobs[job_id].name for job_id in job_ids if job_id in tables.jobs}


def known(tables: Tables, job_id: str) -> Job:
    """Raises StoreError for a job that does not exist."""
    job = tables.jobs.get(job_id)
    if job is None:
        raise unknown_job(job_id)
    return job


def submission_of(tables: Tables, job_id: str) -> Submission:
    """Raises StoreError for a job that does not exist."""
    known(tables, job_id)
    return tables.submissions[job_id]


def secrets(tables: Tables, job_id: str) -> dict[str, bytes]:
    """Name -> ciphertext."""
    submission = tables.submissions.get(job_id)
    return {} if submission is None else dict(submission.secrets)
