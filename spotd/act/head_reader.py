"""Read HEAD of a job's checkpoints."""

from __future__ import annotations

from providers.stores.base import ObjectStore
from spotd import wire
from spotd.domain.job import HeadSnapshot, Job
from spotd.store.interface import Store


def read_head(objects: ObjectStore, job_id: str, at_us: int) -> HeadSnapshot:
    """Return HEAD. Raises NotFoundError, other store errors, and WireError."""
    head = wire.parse_head(objects.get(wire.head_key(job_id))[0])
    current = head.current
    return HeadSnapshot(
        generation=head.generation,
        step=current.step if current else 0,
        manifest=current.manifest if current else "",
        released=head.released,
        final=head.final,
        seen_at_us=at_us,
        read_at_us=at_us,
    )


def record_head(store: Store, job: Job, seen: HeadSnapshot) -> None:
    """Record HEAD, and alert if it is ahead of the record.

    A generation is recorded before anything is done for it, so a HEAD that is ahead means that the
    record is older than the running machines.
    """
    store.jobs.record_head(job.id, seen)
    now = store.jobs.find(job.id)
    if now is not None and seen.generation > now.generation:
        text = (
            f"HEAD of {job.name} is of generation {seen.generation}, and the record of the job "
            f"ends at {now.generation}: the database is older than the fleet"
        )
        store.deployment.set_quarantine(text, seen.read_at_us)
