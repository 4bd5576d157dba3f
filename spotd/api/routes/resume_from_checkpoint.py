"""Resume a job from its checkpoints under another database, after its own database was lost.

HEAD has everything that the new database needs: its generation, so that the next generation takes
HEAD away from any machine that still trains, and its step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from providers.stores.base import NotFoundError, ObjectStore, StoreDeniedError
from providers.stores.base import StoreError as ObjectsError
from spotd import wire
from spotd.act.checkpoints import read_head
from spotd.act.imports import is_imported
from spotd.api.request.request import ApiRequest, bad_input, conflict, not_found
from spotd.domain.events import Event
from spotd.domain.job import CheckpointSpec, HeadSnapshot, Job

NAMED = 10  # jobs in one line
LOOKED_AT = 10_000  # most objects of a store to list when searching for them
LOOK_S = 5.0
_ID = re.compile(r"j[a-z0-9]{9}")


def head_of_lost_job(call: ApiRequest, job_id: str, checkpoint: CheckpointSpec) -> HeadSnapshot:
    """Return HEAD of a job that no database here knows.

    Raises ApiError, which names the jobs that exist there, and the store's errors where another try
    may help.
    """
    if checkpoint.engine != "spotd":
        raise bad_input(
            f"checkpoint.engine is {checkpoint.engine}: HEAD has no resume point of such a job",
            "submit it as a new job: its program finds its own saves",
        )
    if not _ID.fullmatch(job_id):  # the id becomes part of a key of the store
        raise bad_input(f"{job_id[:80]!r} is not a job's id", "an id is j and nine characters")
    objects = call.context.storage.open_store(checkpoint.store)
    try:
        head = read_head(objects, job_id, call.now_us)
    except NotFoundError:
        message = f"there is no HEAD of a job {job_id} in {checkpoint.store}"
        raise not_found(message, _advice(call, objects)) from None
    except (wire.WireError, StoreDeniedError) as error:
        message = f"HEAD of job {job_id} in {checkpoint.store} cannot be read: {error}"
        raise bad_input(
            message, "give spotd read access there, or submit it as a new job"
        ) from None
    if head.final:
        raise conflict(
            f"job {job_id} has finished at step {head.step}: nothing is left to train",
            "submit it as a new job, to train again from the beginning",
        )
    return head


def _advice(call: ApiRequest, objects: ObjectStore) -> str:
    """Return the jobs that could resume there, as text: those whose HEAD is not final."""
    clock = call.context.clock
    deadline_s = clock.monotonic_s() + LOOK_S
    resumable: list[str] = []
    try:
        for job_id in _jobs_in(objects):
            if len(resumable) == NAMED or clock.monotonic_s() > deadline_s:
                break
            try:
                head = read_head(objects, job_id, call.now_us)
            except (wire.WireError, NotFoundError):
                continue
            resumable += [] if head.final else [f"{job_id} (step {head.step})"]
    except ObjectsError:
        pass  # the jobs listed until then are still valid
    if not resumable:
        return "no job that could resume was found there: name its checkpoint.store"
    return f"one of those that can be resumed there: {', '.join(resumable)}"


def _jobs_in(objects: ObjectStore) -> Iterator[str]:
    """Yield the jobs with a HEAD among the first objects of a store.

    A limit is needed because a large store takes long to list.
    """
    for info in islice(objects.list("jobs/"), LOOKED_AT):
        job_id = info.key.split("/")[1]
        if info.key == wire.head_key(job_id):
            yield job_id


def record_continuation(call: ApiRequest, job: Job, head: HeadSnapshot) -> list[str]:
    """Add the job's first event, and return warnings about machines that it still has."""
    place = f"in {job.spec.checkpoint.store}, requested by {call.actor or 'a user'}"
    message = (
        f"resumes from step {head.step}, which generation {head.generation} of a lost database "
    )
    message += f"left {place}"
    if is_imported(head.manifest):
        message = f"starts from the import at step {head.step} {place}"
    call.context.store.events.add(job.id, Event(kind="continued", text=message), call.now_us)
    instances = [item.instance for item in call.context.clouds.held()]
    ids = ", ".join(item.instance_id for item in instances if item.tags.get("spotd-job") == job.id)
    message = f"old machines of this job are still paid for: {ids}; see `spotctl orphans`"
    return [message] if ids else []
