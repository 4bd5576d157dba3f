"""A drill: a running job is struck on purpose, and judged by how it comes back. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NOTICE_S = 120.0  # that a notice gives which no cloud gave; most clouds give less, AWS as much
WITHIN_S = 900.0  # to train again
OVERDUE_DAYS = 31.0
SLACK_S = 120.0  # after that, for the machine to be gone and for losses to judge by


class DrillKind(str, Enum):
    """What is done to the job."""

    SIGTERM = "sigterm"  # the program is stopped as by a notice that leaves no time to wait
    NOTICE = "notice"  # the agent is told that the cloud takes the machine
    KILL = "kill"  # kill -9 of the program
    AGENT = "agent"  # kill -9 of the agent; the program is to train on
    MACHINE = "machine"  # the machine is ended without a word


SAYS = {
    DrillKind.SIGTERM: "its program gets SIGTERM, saves and ends; another machine goes on",
    DrillKind.NOTICE: f"its agent hears of a preemption in {NOTICE_S:.0f} s that is none; another "
    "machine takes over",
    DrillKind.KILL: "its program is killed (-9); another machine goes on from the last checkpoint",
    DrillKind.AGENT: "its agent is killed (-9) and started again; the program trains on",
    DrillKind.MACHINE: "its machine is ended without a word; another one goes on from the last "
    "checkpoint",
}
SAVES = frozenset({DrillKind.SIGTERM, DrillKind.NOTICE})  # nothing may be lost


class DrillEnd(str, Enum):
    """What became of it. One that was called off struck nothing, as far as is known."""

    PASSED = "passed"
    FAILED = "failed"
    CALLED_OFF = "called_off"


@dataclass(frozen=True)
class Findings:
    """What was measured; None where it is not known. Steps are training's own, `first_step_s` the
    seconds from the strike to the first step after it, `sigmas` how far the losses after it are
    from the trend before, in standard deviations, `cost_microusd` what was paid for the job's
    machines from the strike until it trained on one alone."""

    reached_step: int | None = None
    resumed_step: int | None = None
    lost_steps: int | None = None
    first_step_s: float | None = None
    sigmas: float | None = None
    cost_microusd: int = 0


@dataclass(frozen=True)
class Drill:
    """One drill. Times in microseconds since the epoch, 0 where that has not been: it is aimed when
    the node is on record that it will strike, and only then it strikes."""

    id: str
    job_id: str
    kind: DrillKind
    actor: str
    asked_at_us: int
    within_s: float = WITHIN_S
    node_id: str = ""
    aimed_at_us: int = 0
    struck_at_us: int = 0
    ended_at_us: int = 0
    end: DrillEnd | None = None
    text: str = ""  # why it did not pass
    found: Findings = Findings()

    @property
    def spares(self) -> bool:
        """Its node goes on: it struck nothing, or the agent alone. Any other ends, if not yet."""
        return not self.struck_at_us or self.kind is DrillKind.AGENT
