"""Hold a job until its predecessor has succeeded."""

from __future__ import annotations

from spotd.domain.events import Severity
from spotd.domain.job import Desired
from spotd.domain.states import Outcome
from spotd.domain.units import S
from spotd.planner.core.plan_builder import PlanBuilder

LOOK_US = 30 * S  # how often it is looked whether the one before is done


def begins_us(d: PlanBuilder) -> int | None:
    """Since when it may have machines; None while it may not yet."""
    before, job = d.view.before, d.job
    if not job.spec.queue.after or job.generation:
        return max(job.created_at_us, before.finished_at_us if before else 0)
    if before is None or before.outcome is not Outcome.SUCCEEDED:
        return None
    return max(job.created_at_us, before.finished_at_us)


def follow(d: PlanBuilder) -> None:
    """Wait for the predecessor; fail the job if the predecessor failed or was cancelled."""
    before = d.view.before
    if d.ended or d.job.desired is Desired.CANCEL or begins_us(d) is not None:
        return  # its user cancels it, and gets that message rather than a failure
    if before is None:
        text = f"the job before it ({d.job.spec.queue.after}) is no longer on record"
    elif before.outcome is None:
        d.add_reason(f"waits until {before.name} has succeeded")
        d.wake_at(d.now_us + LOOK_US)
        return
    else:
        text = f"the job before it, {before.name}, {_ended(before.outcome)}"
    d.set_job(outcome=Outcome.FAILED, outcome_text=text, finished_at_us=d.now_us)
    d.event("failed", f"{d.job.name} did not start: {text}", severity=Severity.ERROR, alert=True)


def _ended(outcome: Outcome) -> str:
    return "was cancelled" if outcome is Outcome.CANCELLED else "failed"
