"""Drills: what a real interruption does, done on purpose, once for each drill."""

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


class Stopper(Protocol):
    """The agent's own ways to stop."""

    def stop(self, reason: str, deadline: float | None, *, gentle: bool = True) -> None: ...

    def on_notice(self, notice: Notice) -> None: ...


def strike(
    data: Mapping[str, Any], demands: DesiredState, training: Training, stopper: Stopper
) -> Reply:
    """In the agent's loop. On record before it is done, for the agent that comes after this one.
    Raises WireError."""
    drill, kind, notice_s = data.get("drill"), data.get("kind"), data.get("notice_s", 0)
    if not isinstance(drill, str) or not drill or not isinstance(notice_s, (int, float)):
        raise WireError("drill must be an id, notice_s a number")
    if kind not in ("sigterm", "notice", "kill", "agent"):
        raise WireError(f"unknown kind {str(kind)[:20]!r}: this agent may be older than the daemon")
    if drill in demands.struck:
        return Reply(True)
    if data.get("late") is True:
        return Reply(False, "it has not struck, and is not to any more")
    if training.phase is not Phase.RUNNING or demands.stopping is not None:
        return Reply(False, "no program runs here that is not stopping already")
    demands.struck.append(drill)
    if not demands.write():
        demands.struck.remove(drill)  # told again, the agent after this one would strike again
        return Reply(False, "that it strikes cannot be kept on this machine: its memory is full")
    if kind == "agent":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "kill":
        training.kill(saver=False)
    elif kind == "sigterm":
        stopper.stop("a drill", None, gentle=False)  # SIGTERM at once: that is what is tried
    else:
        deadline_us = time.time_ns() // 1000 + int(notice_s * 1e6)
        text = "played by a drill: its cloud did not give it"
        notice = Notice(f"drill-{drill}", NoticeKind.PREEMPT, deadline_us, DRILL_SOURCE, text=text)
        stopper.on_notice(notice)
    return Reply(True)
