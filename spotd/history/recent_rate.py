"""Measure how fast a job gets on, its losses and waits included, and when it would end at that.

The rate is of steps that the job still has, over all the time that passed: steps that were lost,
hand-overs and waits for a machine make it slower. Nothing is assumed: without a total, or without
steps in the window, the end is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotd.domain.job import Desired, Job
from spotd.domain.units import S
from spotd.domain.work_total import total_steps

WINDOW_S = 86_400.0

ENDED = "it has ended"
PAUSED = "it is paused"
NO_TOTAL = "the total number of steps is not known"
NO_RATE = "too few steps were reported in the last 24 h"
NO_GAIN = "it has lost as many steps as it made in the last 24 h"
FARTHEST_S = 10 * 365 * 86_400.0  # a later end is no prediction
TOO_FAR = "more than ten years away at its recent rate"
MORE_MAY_FOLLOW = "its program may train on after the steps that it named"
MORE_ADVICE = "write spotd.total_steps: the steps of all its trainings"
TOTAL_ADVICE = "write spotd.total_steps, or use run.steps(N)"


@dataclass(frozen=True)
class StepWindow:
    """The step at the beginning of a window, on the daemon's clock, and its number of reports."""

    from_step: int
    begin_us: int
    reports: int


@dataclass(frozen=True)
class Progress:
    """A job's place among its steps. `total_steps` 0: not known.

    `steps_per_s` is the recent rate, and `eta_us` when the job ends at that; 0 where it is not
    known, for the reason in `unknown`. `by_program`: the total is not of the job file.
    `least_steps`: the job has at least so many, by its program, which may train on after them; 0 if
    that is not so.
    """

    step: int
    total_steps: int
    by_program: bool = False
    steps_per_s: float = 0.0
    eta_us: int = 0
    unknown: str = ""
    advice: str = ""
    least_steps: int = 0

    @property
    def share(self) -> float | None:
        """Return the share of all steps that are done, at most 1; None without a total."""
        return min(1.0, self.step / self.total_steps) if self.total_steps else None


def progress_of(
    job: Job,
    step: int,
    reported_total: int,
    window: StepWindow | None,
    now_us: int,
    *,
    least_total: int = 0,
) -> Progress:
    """Return the progress of a job at `step`.

    `reported_total` is what its program named, or `least_total` if that is only the least; or 0. A
    program that runs on after all steps that it named may train again.
    """
    if reported_total and job.outcome is None and step >= reported_total:
        reported_total, least_total = 0, reported_total
    total = total_steps(job, reported_total)
    by_program = not job.spec.preferences.work_steps and bool(reported_total)
    least = 0 if total else max(least_total, step if least_total else 0)
    rate = _rate(step, window, now_us)
    unknown, advice = _obstacle(job, total, rate, window)
    if unknown == NO_TOTAL and least:
        unknown, advice = MORE_MAY_FOLLOW, MORE_ADVICE
    if unknown:
        shown = max(rate, 0.0) if job.outcome is None else 0.0
        return Progress(step, total, by_program, shown, 0, unknown, advice, least)
    left_s = max(0, total - step) / rate
    if left_s > FARTHEST_S:
        return Progress(step, total, by_program, rate, unknown=TOO_FAR, advice="")
    return Progress(step, total, by_program, rate, now_us + round(left_s * S))


def _rate(step: int, window: StepWindow | None, now_us: int) -> float:
    """Return steps per second; 0.0 where too little was reported."""
    if window is None or window.reports < 2 or now_us <= window.begin_us:
        return 0.0
    return (step - window.from_step) * S / (now_us - window.begin_us)


def _obstacle(job: Job, total: int, rate: float, window: StepWindow | None) -> tuple[str, str]:
    """Return why no end is known, and what would help."""
    if job.outcome is not None:
        return ENDED, ""
    if job.desired is not Desired.RUN:
        command = "budget approve" if job.approval.approval_asked_by else "resume"
        return PAUSED, f"spotctl {command} {job.name}"
    if not total:
        return NO_TOTAL, TOTAL_ADVICE
    if window is None or window.reports < 2:
        return NO_RATE, ""
    return ("", "") if rate > 0 else (NO_GAIN, "")
