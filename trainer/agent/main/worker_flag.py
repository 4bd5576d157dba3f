"""The control message ("flag") for training processes: stop, saves, notice time and failure
rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotd import wire
from trainer.agent.base import stop_timing
from trainer.agent.base.active_notices import ActiveNotice, ActiveNotices
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.stop_timing import StopTiming

_TRAINS_ON = "train"  # the action of a PLAN whose last save starts later


class WorkerFlag:
    """Builds the flag, and follows the program's own plan for a notice. Belongs to the agent's
    loop.

    `planned`: the program plans its last save itself, so the agent's plan is only the fallback.
    `mtbf_s` comes from the control box.
    """

    def __init__(self, active_notices: ActiveNotices, desired: DesiredState) -> None:
        self._active_notices, self._desired = active_notices, desired
        self._plans = False  # it plans after each step, so a new notice has no plan at first
        self.planned = False
        self.mtbf_s = 0.0

    def flag(self, now: float) -> dict[str, Any]:
        """Return the current flag for training processes."""
        deadline = self._active_notices.deadline
        remaining_s = None if deadline is None else max(deadline - stop_timing.FINAL_S - now, 0.0)
        return {**self._desired.flag(now), "notice_s": remaining_s, "mtbf_s": self.mtbf_s}

    def withdraw(self, notice_id: str) -> None:
        self._active_notices.withdraw(notice_id)
        self.planned = self._plans

    def note(self, kind: str, data: Mapping[str, Any]) -> str:
        """Process a message of the program; returns its action if it ends because of a notice, else
        "".

        The caller then treats it as asked to stop, so that its shell runs no further line.
        """
        if kind == wire.READY:
            self._plans = data.get("plans") is True
        if kind in {wire.READY, wire.CLAIMED}:
            self.planned = self._plans  # a new program, without a plan so far
        if (
            kind != wire.PLAN
            or data.get("status") != "planned"
            or self._active_notices.deadline is None
        ):
            return ""
        action = str(data.get("action"))
        self.planned = action == _TRAINS_ON
        return "" if self.planned else action


def describe_draining(
    notice: ActiveNotice, timing: StopTiming, now: float, *, snapshot: bool
) -> dict[str, Any]:
    """Return the DRAINING data for a notice: the agent's plan, if the program has none."""
    wait_s = notice.latest_stop(timing, now) - now
    plan = stop_timing.describe_notice_plan(timing.engine, wait_s, snapshot=snapshot)
    deadline_s = None if notice.deadline is None else round(notice.deadline - now, 3)
    return {"reason": notice.reason, "plan": plan, "deadline_s": deadline_s}
