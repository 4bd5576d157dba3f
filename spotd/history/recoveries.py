"""From an interruption to the next step: the seconds of each part, and the repeated steps.

The clock starts when the old machine fell silent or had given its work back, so training through a
notice is no outage. If the next machine was ready by then, its parts are 0.
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

    `ceased_us` is when it gave its work back, else its last message. `taken`: preempted or lost.
    `told`: with a notice.
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
    told: bool


@dataclass(frozen=True)
class Recovery:
    """A finished recovery.

    `parts_s` are the seconds of STAGES and add up to the outage. `replayed` are the steps after the
    checkpoint that the next machine resumed from.
    """

    provider: str
    told: bool
    parts_s: tuple[float, ...]
    replayed: int


def recoveries(
    machines: Iterable[TrainedNode],
    asked_us: Mapping[tuple[str, int], int],
    saved_step: Mapping[tuple[str, int], int],
) -> list[Recovery]:
    """Return the recoveries. `machines` are in order of job and generation.

    By (job, generation), `asked_us` is when a machine was first requested, `saved_step` the last
    saved step.
    """
    by_job: dict[str, list[TrainedNode]] = {}
    for one in machines:
        by_job.setdefault(one.job_id, []).append(one)
    asked: dict[str, list[tuple[int, int]]] = {}
    for (job_id, generation), at_us in asked_us.items():
        asked.setdefault(job_id, []).append((generation, at_us))
    saved: dict[str, list[tuple[int, int]]] = {}
    for (job_id, generation), step in saved_step.items():
        saved.setdefault(job_id, []).append((generation, step))
    found = []
    for job_id, mine in by_job.items():
        for old, new in itertools.pairwise(mine):
            if not old.taken:
                continue
            asked_at_us = min(
                (at for number, at in asked.get(job_id, ()) if number > old.generation),
                default=old.ceased_us,
            )
            marks = [old.ceased_us, asked_at_us, new.launched_us, new.hello_us, new.first_step_us]
            for at in range(1, len(marks)):
                marks[at] = max(marks[at], marks[at - 1])
            parts = tuple((b - a) / S for a, b in itertools.pairwise(marks))
            kept = [step for number, step in saved.get(job_id, ()) if number <= old.generation]
            replayed = max(0, old.last_step - max(kept, default=0))
            found.append(Recovery(old.provider, old.told, parts, replayed))
    return found
