"""From an interruption to the next step: the seconds of each part, and the repeated steps.

The clock starts when the old machine fell silent or had given its work back, so training through a
notice is not an outage. If the next machine was ready by then, its parts are 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spotd.domain.units import S

STAGES = ("detect", "capacity", "boot", "restore")


@dataclass(frozen=True)
class TrainedNode:
    """A machine of rank 0 that trained; times in microseconds, 0 for not yet.

    `ceased_us` is when it released its work, else its last message. `taken`: preempted or lost.
    `told`: it received a notice.
    """

    job_id: str
    generation: int
    provider: str
    launched_us: int
    hello_us: int
    first_step_us: int
    last_step: int
    ceased_us: int
    taken: bool
    noticed: bool


@dataclass(frozen=True)
class Recovery:
    """A finished recovery.

    `parts_s` are the seconds of STAGES and add up to the outage. `replayed` are the steps after the
    checkpoint that the next machine resumed from.
    """

    provider: str
    noticed: bool
    parts_s: tuple[float, ...]
    replayed: int


def recoveries(
    machines: Iterable[TrainedNode],
    first_request_us: Mapping[tuple[str, int], int],
    saved_step: Mapping[tuple[str, int], int],
) -> list[Recovery]:
    """Return the recoveries. `machines` are in order of job and generation.

    By (job, generation), `first_request_us` is when a machine was first requested, and `saved_step`
    the last saved step.
    """
    by_job: dict[str, list[TrainedNode]] = {}
    for machine in machines:
        by_job.setdefault(machine.job_id, []).append(machine)
    requests: dict[str, list[tuple[int, int]]] = {}
    for (job_id, generation), at_us in first_request_us.items():
        requests.setdefault(job_id, []).append((generation, at_us))
    saved: dict[str, list[tuple[int, int]]] = {}
    for (job_id, generation), step in saved_step.items():
        saved.setdefault(job_id, []).append((generation, step))
    result = []
    for job_id, job_machines in by_job.items():
        for old, new in itertools.pairwise(job_machines):
            if not old.taken:
                continue
            requested_us = min(
                (
                    at
                    for generation_, at in requests.get(job_id, ())
                    if generation_ > old.generation
                ),
                default=old.ceased_us,
            )
            stage_us = [
                old.ceased_us,
                requested_us,
                new.launched_us,
                new.hello_us,
                new.first_step_us,
            ]
            for at in range(1, len(stage_us)):
                stage_us[at] = max(stage_us[at], stage_us[at - 1])
            parts = tuple((b - a) / S for a, b in itertools.pairwise(stage_us))
            saved_steps = [
                step for generation_, step in saved.get(job_id, ()) if generation_ <= old.generation
            ]
            replayed = max(0, old.last_step - max(saved_steps, default=0))
            result.append(Recovery(old.provider, old.noticed, parts, replayed))
    return result
