"""What lies ahead of the training program, as far as this machine has heard: shown to the program,
which plans by it, and told in the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotd import wire
from trainer.agent.base import stop_timing
from trainer.agent.base.active_notices import ActiveNotice, ActiveNotices
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.stop_timing import StopTiming

_TRAINS_ON = "train"  # in a PLAN: the last save begins later


class WorkerFlag:
    """Belongs to the agent's loop. `planned`: the program has said when its last save begins, or
    that it will, so that ours is only for a program that does not keep to it. `mtbf_s` is the
    control box's."""

    def __init__(self, dangers: ActiveNotices, demands: DesiredState) -> None:
        self._dangers, self._demands = dangers, demands
        self._plans = False  # it does after each step: of a short notice none is there at first
        self.planned = False
        self.mtbf_s = 0.0

    def flag(self, now: float) -> dict[str, Any]:
        """The level that training processes are shown."""
        deadline = self._dangers.deadline
        left_s = None if deadline is None else max(deadline - stop_timing.FINAL_S - now, 0.0)
        return {**self._demands.flag(now), "notice_s": left_s, "mtbf_s": self.mtbf_s}

    def withdraw(self, notice_id: str) -> None:
        self._dangers.withdraw(notice_id)
        self.planned = self._plans

    def note(self, kind: str, data: Mapping[str, Any]) -> str:
        """What the program has said. If that was that it leaves, because of a notice: in what way.
        It is then held to it as if it had been asked, so that its shell begins nothing after it."""
        if kind == wire.READY:
            self._plans = data.get("plans") is True
        if kind in {wire.READY, wire.CLAIMED}:
            self.planned = self._plans  # it is another program, which has planned nothing yet
        if kind != wire.PLAN or data.get("status") != "planned" or self._dangers.deadline is None:
            return ""
        action = str(data.get("action"))
        self.planned = action == _TRAINS_ON
        return "" if self.planned else action


def describe(
    danger: ActiveNotice, policy: StopTiming, now: float, *, snapshot: bool
) -> dict[str, Any]:
    """DRAINING at a notice: what is to be done about it, where the program has no plan."""
    wait_s = danger.latest_stop(policy, now) - now
    plan = stop_timing.plan_until(policy.engine, wait_s, snapshot=snapshot)
    deadline_s = None if danger.deadline is None else round(danger.deadline - now, 3)
    return {"reason": danger.reason, "plan": plan, "deadline_s": deadline_s}
