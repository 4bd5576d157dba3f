"""A job goes on from its checkpoints under another database: the one that knew it is lost.

HEAD says all that the new database has to know: its generation, so that the next one takes HEAD
away from whatever machine still trains, and its step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from providers.stores.base import NotFoundError, ObjectStore, StoreDeniedError
from providers.stores.base import StoreError as ObjectsError
from spotd import wire
from spotd.act.head_reader import read_head
from spotd.act.imports import is_imported
from spotd.api.request.request import ApiRequest, bad_input, conflict, not_found
from spotd.domain.events import Event
from spotd.domain.job import CheckpointSpec, HeadSnapshot, Job

NAMED = 10  # jobs in one line
LOOKED_AT = 10_000  # objects of a store, at most, to find them
LOOK_S = 5.0
_ID = re.compile(r"j[a-z0-9]{9}")


def head_of_lost(call: ApiRequest, job_id: str, kept: CheckpointSpec) -> HeadSnapshot:
    """HEAD of a job that no database here knows. Raises ApiError, which says what there is, and
    the store's errors where another try may help."""
    if kept.engine != "spotd":
        raise bad_input(
            f"checkpoint.engine is {kept.engine}: HEAD does not say where such a job goes on",
            "submit it as a new job: its program finds what it saved",
        )
    if not _ID.fullmatch(job_id):  # it becomes a key of the store
        raise bad_input(f"{job_id[:80]!r} is no job's id", "an id is j and nine characters")
    objects = call.backing.open_store(kept.store)
    try:
        head = read_head(objects, job_id, call.now_us)
    except NotFoundError:
        text = f"there is no HEAD of a job {job_id} in {kept.store}"
        raise not_found(text, _advice(call, objects)) from None
    except (wire.WireError, StoreDeniedError) as error:
        text = f"HEAD of job {job_id} in {kept.store} cannot be read: {error}"
        raise bad_input(text, "see that spotd may read there, or submit it as a new job") from None
    if head.final:
        raise conflict(
            f"job {job_id} has finished, at step {head.step}: nothing is left to go on with",
            "submit it as a new job, to train again from the beginning",
        )
    return head


def _advice(call: ApiRequest, objects: ObjectStore) -> str:
    """Which jobs could go on there: their HEADs are not final."""
    clock = call.backing.clock
    end_s = clock.monotonic_s() + LOOK_S
    found: list[str] = []
    try:
        for job_id in _jobs_in(objects):
            if len(found) == NAMED or clock.monotonic_s() > end_s:
                break
            try:
                head = read_head(objects, job_id, call.now_us)
            except (wire.WireError, NotFoundError):
                continue
            found += [] if head.final else [f"{job_id} (step {head.step})"]
    except ObjectsError:
        pass  # what was found until then is still true
    if not found:
        return "no job that could go on was seen there: name the checkpoint.store that it had"
    return f"one of those that can go on there: {', '.join(found)}"


def _jobs_in(objects: ObjectStore) -> Iterator[str]:
    """Those with a HEAD among the first objects of a store: a large one takes long to list."""
    for info in islice(objects.list("jobs/"), LOOKED_AT):
        job_id = info.key.split("/")[1]
        if info.key == wire.head_key(job_id):
            yield job_id


def put_on_record(call: ApiRequest, job: Job, head: HeadSnapshot) -> list[str]:
    """Its first event; and what the user has to know of machines that it still has."""
    where = f"in {job.spec.checkpoint.store}, as {call.actor or 'somebody'} asked"
    text = f"goes on from step {head.step}, which generation {head.generation} of a lost database "
    text += f"left {where}"
    if is_imported(head.manifest):
        text = f"begins with what was imported as step {head.step} {where}"
    call.backing.store.add_event(job.id, Event(kind="continued", text=text), call.now_us)
    held = [item.instance for item in call.backing.held()]
    ids = ", ".join(one.instance_id for one in held if one.tags.get("spotd-job") == job.id)
    text = f"old machines of this job are still paid for: {ids}; see `spotctl orphans`"
    return [text] if ids else []
