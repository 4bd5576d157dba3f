"""Decide when this run saves and how it ends after a notice, and report the plans to the agent.

It feeds one rank's measurements into deadline.py. PLAN entries have the status `planned` at a
notice and whenever the action changes (action, step, left_s, start_in_s, end_in_s, margin_s,
save_s, flight_s: the prediction), and `ended` (action; step and manifest that were released;
predicted_s and took_s from the decision to the release; margin_s: notice time left then; kept:
whether the planned save was committed).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import cadence, deadline
from .checkpointer import Checkpointer
from .constants import PLAN
from .deadline import Action, DeadlineSituation, StopPlan
from .job import Job
from .stop import StopRequests

STEP_WINDOW = 20  # the expected step time is the longest of these
AGENT_WAIT_S = 1.0  # for the agent to learn that we end


class SavePlanner:
    """The planner of one rank.

    Only a rank with a checkpointer has something to save; one rank of each machine `reports` to its
    agent.
    """

    def __init__(
        self,
        job: Job,
        checkpointer: Checkpointer | None,
        stop: StopRequests,
        send: Callable[[str, Mapping[str, Any]], None],
        *,
        reports: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._job, self._checkpointer, self._stop = job, checkpointer, stop
        self._send, self._reports, self._monotonic = send, reports, monotonic
        self._pause = pause
        self._steps_s: deque[float] = deque(maxlen=STEP_WINDOW)
        self._reported_action: Action | None = None
        self._decided_at = 0.0
        self.plan: StopPlan | None = None

    def is_due(self, steps: int, seconds: float) -> bool:
        """Return whether to save this long after the last save."""
        checkpointer = self._checkpointer
        if checkpointer is None:
            return False
        if self.plan is not None and not self.plan.allows_save:
            return False
        return seconds >= self.every_s() if self._job.auto else self._job.is_due(steps, seconds)

    def every_s(self) -> float:
        """Return the adaptive interval between saves from the measurements so far."""
        checkpointer, terms = self._checkpointer, self._job.terms
        if checkpointer is None or not checkpointer.rates.measured:
            return cadence.FIRST_SAVE_S
        size, rates = checkpointer.size, checkpointer.rates
        mtbf_s = self._stop.mtbf_s or terms.mtbf_s
        costs_s = terms.save_costs_s(size, checkpointer.puts)
        return cadence.interval_s(rates.stall_s(size), rates.upload_s(size), mtbf_s, costs_s)

    def rank_values(self, rank: int, size: int, busy_s: float | None = None) -> list[int]:
        """Return this rank's summand for the exchange; `busy_s` is how long a step has taken."""
        if busy_s is not None:
            self._steps_s.append(busy_s)
        remaining_s = self._stop.notice_remaining_s
        now = self._situation(remaining_s)
        values = deadline.encode_situation(
            remaining_s, now.step_s, now.save_s, now.in_flight_s, guessed=now.guessed
        )
        return deadline.rank_slots(rank, size, values)

    def plan_for(self, summed: Sequence[float], step: int) -> StopPlan | None:
        """Make the plan from the sum over all ranks; None without a notice."""
        now = deadline.combine_situations(summed)
        self.plan = None if now is None else deadline.plan(now)
        if self.plan is not None:
            self._report_plan(self.plan, step)
        return self.plan

    def plan_exit(self, grace_s: float, step: int) -> StopPlan:
        """Return the plan for the end of training.

        It is the agreed plan, or, if a stop was requested before that, whatever fits now.
        """
        if self.plan is not None and self.plan.ends_training:
            return self.plan
        remaining_s = self.known_remaining_s()
        now = self._situation(self.remaining_s(grace_s))
        # Save at once: whoever requested the stop waits for it. No further step fits then.
        plan = deadline.plan(replace(now, step_s=float("inf")))
        if remaining_s is not None:
            self._report_plan(plan, step)
        return plan

    def report_outcome(self, plan: StopPlan, *, step: int, manifest: str, succeeded: bool) -> None:
        """Report the result of the plan."""
        if self._reported_action is None:
            return
        remaining_s = self.known_remaining_s()
        self._send(
            PLAN,
            {
                "status": "ended",
                "action": plan.action.value,
                "step": step,
                "manifest": manifest,
                "predicted_s": round(plan.end_in_s, 3),
                "took_s": round(self._monotonic() - self._decided_at, 3),
                "margin_s": None if remaining_s is None else round(remaining_s, 3),
                "kept": succeeded,
            },
        )

    def wait_for_agent(self) -> None:
        """Wait until the agent knows that we end by our own plan.

        It then holds the script's shells, so that they start no further command. Everything is
        saved by now, so no time of the notice is lost.
        """
        if self.plan is None or not self.plan.ends_training:
            return
        until_s = self._monotonic() + AGENT_WAIT_S
        while not self._stop.stopping and self._monotonic() < until_s:
            self._pause(0.01)

    def remaining_s(self, grace_s: float) -> float:
        """Return the seconds until the machine ends or we are killed; `grace_s` if unknown."""
        remaining = self.known_remaining_s()
        return grace_s if remaining is None else remaining

    def last_save_s(self) -> float:
        """Return the seconds that a last save takes from now on, with a margin."""
        now = self._situation(None)
        flight_s = now.in_flight_s or 0.0
        return deadline.SAFETY_FACTOR * now.save_s + flight_s + deadline.RESERVE_S + 1.0

    def known_remaining_s(self) -> float | None:
        """Return the seconds until the machine ends or we are killed; None if unknown."""
        remaining = [
            s for s in (self._stop.notice_remaining_s, self._stop.remaining_s) if s is not None
        ]
        return min(remaining) if remaining else None

    def _situation(self, remaining_s: float | None) -> DeadlineSituation:
        checkpointer = self._checkpointer
        step_s = max(self._steps_s, default=0.0)
        if checkpointer is None:
            return DeadlineSituation(remaining_s or 0.0, step_s, 0.0)
        save_s, in_flight_s = checkpointer.save_s(), checkpointer.in_flight_s()
        guessed = not checkpointer.rates.measured
        return DeadlineSituation(remaining_s or 0.0, step_s, save_s, in_flight_s, guessed)

    def _report_plan(self, plan: StopPlan, step: int) -> None:
        if plan.action is self._reported_action or not self._reports:
            return
        self._reported_action, self._decided_at = plan.action, self._monotonic()
        now = plan.situation
        self._send(
            PLAN,
            {
                "status": "planned",
                "action": plan.action.value,
                "step": step,
                "left_s": round(now.remaining_s, 3),
                "start_in_s": round(plan.start_in_s, 3),
                "end_in_s": round(plan.end_in_s, 3),
                "margin_s": round(plan.margin_s, 3),
                "save_s": round(now.save_s, 3),
                "flight_s": None if now.in_flight_s is None else round(now.in_flight_s, 3),
            },
        )
