"""When this run saves, and how it leaves: the measured figures of one rank brought before the plans
of spotd_hook, and what comes of those told to the agent.

PLAN entries: `planned` at a notice and whenever the action changes (action, step, left_s,
start_in_s, end_in_s, margin_s, save_s, flight_s: what is predicted), and `ended` (action, step and
manifest that were released, predicted_s and took_s from the decision to the release, margin_s: what
was left of the notice then, kept: whether what was begun came to be).
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

STEPS = 20  # the longest of so many is what a step may take
HEARD_S = 1.0  # for the agent to hear that we leave, so that nothing is begun after us


class SavePlanner:
    """One rank's. Only the one with a checkpointer has anything to save; one of each machine
    `speaks` to its agent."""

    def __init__(
        self,
        job: Job,
        checkpointer: Checkpointer | None,
        stop: StopRequests,
        send: Callable[[str, Mapping[str, Any]], None],
        *,
        speaks: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._job, self._checkpointer, self._stop = job, checkpointer, stop
        self._send, self._speaks, self._monotonic = send, speaks, monotonic
        self._pause = pause
        self._steps_s: deque[float] = deque(maxlen=STEPS)
        self._told: Action | None = None
        self._decided_at = 0.0
        self.plan: StopPlan | None = None

    def is_due(self, steps: int, seconds: float) -> bool:
        """Whether to save so long after the last save."""
        checkpointer = self._checkpointer
        if checkpointer is None:
            return False
        if self.plan is not None and not self.plan.admits_save:
            return False
        return seconds >= self.every_s() if self._job.auto else self._job.is_due(steps, seconds)

    def every_s(self) -> float:
        """The adaptive pause between saves, by what was measured up to now."""
        checkpointer, terms = self._checkpointer, self._job.terms
        if checkpointer is None or not checkpointer.rates.measured:
            return cadence.FIRST_S
        size, rates = checkpointer.size, checkpointer.rates
        mtbf_s = self._stop.mtbf_s or terms.mtbf_s
        costs_s = terms.save_costs_s(size, checkpointer.puts)
        return cadence.interval_s(rates.stall_s(size), rates.upload_s(size), mtbf_s, costs_s)

    def words(self, rank: int, size: int, busy_s: float) -> list[int]:
        """What this rank adds to the sum over the ranks, after a step that took `busy_s`."""
        self._steps_s.append(busy_s)
        left_s = self._stop.notice_s
        now = self._look(left_s)
        said = deadline.words_of(left_s, now.step_s, now.save_s, now.flight_s, guessed=now.guessed)
        return deadline.slots(rank, size, said)

    def agree(self, summed: Sequence[float], step: int) -> StopPlan | None:
        """What all ranks make of all ranks' words; None without a notice."""
        now = deadline.situation_of(summed)
        self.plan = None if now is None else deadline.plan(now)
        if self.plan is not None:
            self._tell(self.plan, step)
        return self.plan

    def leave(self, grace_s: float, step: int) -> StopPlan:
        """What to do now that training is over: as agreed, or, when we were told to leave before
        that, whatever fits."""
        if self.plan is not None and self.plan.leaves:
            return self.plan
        left_s = self._known_s()
        now = self._look(self.left_s(grace_s))
        # Nothing is gained by waiting: who told us to leave waits for us.
        begun = replace(now, step_s=float("inf"))
        found = deadline.plan(begun)
        if left_s is not None:
            self._tell(found, step)
        return found

    def ended(self, plan: StopPlan, *, step: int, manifest: str, kept: bool) -> None:
        """It is over: beside what was predicted, what came to be."""
        if self._told is None:
            return
        left_s = self._known_s()
        self._send(
            PLAN,
            {
                "status": "ended",
                "action": plan.action.value,
                "step": step,
                "manifest": manifest,
                "predicted_s": round(plan.end_in_s, 3),
                "took_s": round(self._monotonic() - self._decided_at, 3),
                "margin_s": None if left_s is None else round(left_s, 3),
                "kept": kept,
            },
        )

    def await_agent(self) -> None:
        """When we leave by our own plan, and before we end: the agent holds the shells that wait
        for us, so that no line of theirs begins after us. What is saved is saved by now: nothing of
        the notice is spent on this."""
        if self.plan is None or not self.plan.leaves:
            return
        until = self._monotonic() + HEARD_S
        while not self._stop.stopping and self._monotonic() < until:
            self._pause(0.01)

    def left_s(self, grace_s: float) -> float:
        """Until the machine goes, or we are killed; `grace_s` when nobody has said."""
        known = self._known_s()
        return grace_s if known is None else known

    def _known_s(self) -> float | None:
        known = [s for s in (self._stop.notice_s, self._stop.left_s) if s is not None]
        return min(known) if known else None

    def _look(self, left_s: float | None) -> DeadlineSituation:
        checkpointer = self._checkpointer
        step_s = max(self._steps_s, default=0.0)
        if checkpointer is None:
            return DeadlineSituation(left_s or 0.0, step_s, 0.0)
        save_s, flight_s = checkpointer.save_s(), checkpointer.flight_s()
        guessed = not checkpointer.rates.measured
        return DeadlineSituation(left_s or 0.0, step_s, save_s, flight_s, guessed)

    def _tell(self, plan: StopPlan, step: int) -> None:
        if plan.action is self._told or not self._speaks:
            return
        self._told, self._decided_at = plan.action, self._monotonic()
        now = plan.situation
        self._send(
            PLAN,
            {
                "status": "planned",
                "action": plan.action.value,
                "step": step,
                "left_s": round(now.left_s, 3),
                "start_in_s": round(plan.start_in_s, 3),
                "end_in_s": round(plan.end_in_s, 3),
                "margin_s": round(plan.margin_s, 3),
                "save_s": round(now.save_s, 3),
                "flight_s": None if now.flight_s is None else round(now.flight_s, 3),
            },
        )
