"""HEAD of a job's checkpoints, as the daemon reads it."""

from __future__ import annotations

from providers.stores.base import ObjectStore
from spotd import wire
from spotd.model import HeadSeen


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
