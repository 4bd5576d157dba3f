"""Why a job failed, or fails at present: the one view that every page and command shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotd.api.views.resources import iso
from spotd.domain.failure import Failure, is_over, newest_failure
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.states import Outcome


def job_failure(job: Job, nodes: Sequence[Node]) -> dict[str, Any] | None:
    """Return the newest failure of a job as JSON; None if there was none.

    `over` says that the job has trained again since, or has not failed in the end.
    """
    failure = newest_failure(nodes)
    if failure is None:
        return None
    return {
        "part": failure.part,
        "text": failure.text,
        "cause": failure.cause,
        "recognised": failure.recognised,
        "label": failure.label,
        "summary": failure.summary,
        "lines": list(failure.lines),
        "at": iso(failure.at_us),
        "node_id": failure.node_id,
        "generation": failure.generation,
        "rank": failure.rank,
        "exit_code": failure.exit_code,
        "over": _is_over(job, nodes, failure),
    }


def _is_over(job: Job, nodes: Sequence[Node], failure: Failure) -> bool:
    ended_well = job.outcome is not None and job.outcome is not Outcome.FAILED
    return ended_well or is_over(failure, nodes)


def headline(job: Job, nodes: Sequence[Node], reason: str) -> str:
    """Return the first line of `spotctl why`: the failure, if it still matters, and the decision.

    `reason` is the planner's sentence; for a failed job it is the outcome, which names the failure.
    """
    failure = newest_failure(nodes)
    if failure is None or _is_over(job, nodes, failure):
        return reason
    if reason.startswith(failure.text) or failure.summary in reason:
        known = not failure.cause or failure.cause in reason
        return reason if known else f"{reason}: {failure.label}"
    return f"{failure.summary}; {reason}"
