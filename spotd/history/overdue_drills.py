"""Find jobs whose recovery nobody has tested for long.

Jobs of the same name are of one kind: what one of them has shown holds for the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotd.domain.fault_drill import DrillEnd, DrillKind, FaultDrill
from spotd.domain.job import Desired, Job
from spotd.domain.phase import keeps
from spotd.domain.units import DAY_US


@dataclass(frozen=True)
class OverdueDrill:
    """An overdue job. `since_us` is its kind's last passed drill, or its first step."""

    job: Job
    since_us: int
    text: str


def overdue(
    jobs: Sequence[Job], drills: Iterable[FaultDrill], days: float, now_us: int
) -> list[OverdueDrill]:
    """Return the overdue ones among the unfinished jobs that save, by name.

    `jobs` are all jobs ever. A drill of the agent alone does not test recovery.
    """
    names = {job.id: job.name for job in jobs}
    passed: dict[str, int] = {}
    for drill in drills:
        tried = drill.end is DrillEnd.PASSED and drill.kind is not DrillKind.AGENT
        if tried and drill.job_id in names:
            name = names[drill.job_id]
            passed[name] = max(passed.get(name, 0), drill.ended_at_us)
    first: dict[str, int] = {}
    for job in jobs:
        if job.progress.first_step_at_us:
            first_us = job.progress.first_step_at_us
            first[job.name] = min(first.get(job.name, first_us), first_us)
    result = []
    for job in sorted(jobs, key=lambda job: job.name):
        active = job.outcome is None and job.desired is Desired.RUN
        drillable = active and job.progress.first_step_at_us
        since_us = passed.get(job.name, first.get(job.name, now_us))
        if not drillable or not keeps(job.spec.checkpoint) or now_us - since_us <= days * DAY_US:
            continue
        age = (now_us - since_us) / DAY_US
        how = "last passed a drill" if job.name in passed else "has run without one for"
        tail = f"{age:.0f} days ago" if job.name in passed else f"{age:.0f} days"
        result.append(OverdueDrill(job, since_us, f"{job.name} {how} {tail}"))
    return result
