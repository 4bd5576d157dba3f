"""HEAD of a job's checkpoints, as the daemon reads it."""

from __future__ import annotations

from providers.stores.base import ObjectStore
from spotd import wire
from spotd.model import HeadSeen, Job
from spotd.store.base import Store


def read_head(objects: ObjectStore, job_id: str, at_us: int) -> HeadSeen:
    """What it says. Raises NotFoundError, the store's other errors, and WireError."""
    head = wire.parse_head(objects.get(wire.head_key(job_id))[0])
    current = head.current
    return HeadSeen(
        generation=head.generation,
        step=current.step if current else 0,
        manifest=current.manifest if current else "",
        released=head.released,
        final=head.final,
        seen_at_us=at_us,
        read_at_us=at_us,
    )


def record_head(store: Store, job: Job, seen: HeadSeen) -> None:
    """A generation is on record before anything is done for it: HEAD that is ahead of the record,
    as it is after HEAD was read, tells that the record is older than what goes on."""
    store.record_head(job.id, seen)
    now = store.find_job(job.id)
    if now is not None and seen.generation > now.generation:
        text = (
            f"HEAD of {job.name} is of generation {seen.generation}, and the record of the job "
            f"ends at {now.generation}: the database is older than the fleet"
        )
        store.set_quarantine(text, seen.read_at_us)
