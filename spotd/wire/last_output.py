"""The output that a machine still has when its script ends, and where the rest of it is stored.

The machine is held until this output is fetched, within FETCHED_BYTES and FETCHED_S. The agent
uploads more than STORED_FROM_BYTES to the job's store as well, where it does not hold the machine
for long.
"""

from __future__ import annotations

FETCHED_BYTES = 4 << 20
FETCHED_S = 8.0  # within the daemon's margin after a notice's deadline and after a grace period
STORED_FROM_BYTES = 1 << 20  # a slow connection does not fetch more in FETCHED_S
STORED_S = 8.0


def last_output_key(job_id: str, *, generation: int, rank: int, stream: str) -> str:
    """Return the key of the rest of a stream's output in the job's store."""
    return f"jobs/{job_id}/logs/g{generation:08d}-r{rank:05d}-{stream}.log"
