"""Inject the fault of a drill, which acts like a real interruption, once per drill."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any, Protocol

from providers.base import Notice, NoticeKind
from spotd.wire import DRILL_SOURCE, Reply, WireError
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.phase import Phase
from trainer.agent.run.training import Training


class StopActions(Protocol):
    """The agent's methods that stop training."""

    def stop(self, reason: str, deadline: float | None, *, gentle: bool = True) -> None: ...

    def on_notice(self, notice: Notice) -> None: ...


def inject_fault(
    data: Mapping[str, Any], desired: DesiredState, *, training: Training, agent: StopActions
) -> Reply:
    """Inject the fault of a drill. Runs in the agent's loop. Raises WireError.

    The drill is recorded before it is done, for an agent that restarts after it.
    """
    drill, kind, notice_s = data.get("drill"), data.get("kind"), data.get("notice_s", 0)
    if not isinstance(drill, str) or not drill or not isinstance(notice_s, (int, float)):
        raise WireError("drill must be an id, notice_s a number")
    if kind not in ("sigterm", "notice", "kill", "agent"):
        raise WireError(f"unknown kind {str(kind)[:20]!r}: this agent may be older than the daemon")
    if drill in desired.injected_drills:
        return Reply(True)
    if data.get("late") is True:
        return Reply(False, "the fault was not injected in time, and will not be any more")
    if training.phase is not Phase.RUNNING or desired.stopping is not None:
        return Reply(False, "no program is running here, or it is already stopping")
    desired.injected_drills.append(drill)
    if not desired.write():
        # The drill may be sent again, and the next agent would not know that it was done.
        desired.injected_drills.remove(drill)
        return Reply(False, "the drill cannot be recorded on this machine: its memory is full")
    if kind == "agent":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "kill":
        training.kill(saver=False)
    elif kind == "sigterm":
        agent.stop("a drill", None, gentle=False)  # SIGTERM at once is what this drill tests
    else:
        deadline_us = time.time_ns() // 1000 + int(notice_s * 1e6)
        text = "simulated by a drill, not sent by the cloud"
        notice = Notice(
            notice_id=f"drill-{drill}",
            kind=NoticeKind.PREEMPT,
            deadline_us=deadline_us,
            source=DRILL_SOURCE,
            text=text,
        )
        agent.on_notice(notice)
    return Reply(True)
