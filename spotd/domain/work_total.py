"""The total number of a job's steps: as its file says, else as its program names it.

There is one total for decisions, forecasts and views. The file counts where it says how much there
is to do, because a person promised a deadline by it; a program that names another number is
reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spotd.domain.job import Job
from spotd.domain.node import Node


def named_total(nodes: Iterable[Node]) -> int:
    """Return the steps of the whole run, as the newest program of a job named them, or 0.

    A program with several trainings names only the least number.
    """
    return max(_named(nodes), 0)


def least_total(nodes: Iterable[Node]) -> int:
    """Return how many steps the run has at least, if its newest program named no more; else 0."""
    return max(-_named(nodes), 0)


def _named(nodes: Iterable[Node]) -> int:
    named = [node for node in nodes if node.training.total_steps]
    newest = max(named, key=lambda node: node.generation, default=None)
    return newest.training.total_steps if newest else 0


def total_steps(job: Job, named_steps: int) -> int:
    """Return the job's total number of steps, `named_steps` being its program's; 0: not known."""
    return job.spec.preferences.work_steps or named_steps


def with_total(job: Job, named_steps: int) -> Job:
    """Return the job as decisions see it: with its program's total where its file has no amount."""
    if job.spec.preferences.measurable or not named_steps:
        return job
    preferences = replace(job.spec.preferences, work_steps=named_steps)
    return replace(job, spec=replace(job.spec, preferences=preferences))


def differing_totals(job: Job, named_steps: int, least_steps: int = 0) -> str:
    """Return that the job file and the program name different totals; "": they do not.

    `least_steps`: the program named only the least number.
    """
    steps = job.spec.preferences.work_steps
    if not steps or not (named_steps not in (0, steps) or least_steps > steps):
        return ""
    says = f"{named_steps:,}" if named_steps else f"at least {least_steps:,}"
    return (
        f"the job file says that it has {steps:,} steps, its program says {says}; the job file's "
        "number counts, for its deadline, forecasts and progress"
    )
