"""Fault drills: a fault injected into a running job on purpose, and how the job recovers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NOTICE_S = 120.0  # that a notice gives which no cloud gave; most clouds give less, AWS as much
WITHIN_S = 900.0  # to train again
SLACK_S = 120.0  # after that, for the machine to be gone and for losses to judge by


class DrillKind(str, Enum):
    """The kind of fault."""

    SIGTERM = "sigterm"  # the program is stopped as by a notice that leaves no time to wait
    NOTICE = "notice"  # the agent gets a preemption notice
    KILL = "kill"  # kill -9 of the program
    AGENT = "agent"  # kill -9 of the agent; the program is to train on
    MACHINE = "machine"  # the machine is ended without a word


SAYS = {
    DrillKind.SIGTERM: "its program gets SIGTERM, saves and ends; another machine continues",
    DrillKind.NOTICE: f"its agent hears of a preemption in {NOTICE_S:.0f} s that is none; another "
    "machine takes over",
    DrillKind.KILL: (
        "its program is killed (-9); another machine continues from the last checkpoint"
    ),
    DrillKind.AGENT: "its agent is killed (-9) and started again; the program keeps training",
    DrillKind.MACHINE: "its machine is ended without a notice; another one continues from the last "
    "checkpoint",
}
SAVES = frozenset({DrillKind.SIGTERM, DrillKind.NOTICE})  # nothing may be lost


class DrillEnd(str, Enum):
    """The result. As far as known, a cancelled drill injected nothing."""

    PASSED = "passed"
    FAILED = "failed"
    CALLED_OFF = "called_off"


@dataclass(frozen=True)
class Findings:
    """Measurements; None if unknown.

    Steps are training's own. `first_step_s` are the seconds from the fault to the next step,
    `sigmas` how far later losses are from the earlier trend in standard deviations, `cost_microusd`
    the cost of the job's machines from the fault until it trained on one alone.
    """

    reached_step: int | None = None
    resumed_step: int | None = None
    lost_steps: int | None = None
    first_step_s: float | None = None
    sigmas: float | None = None
    cost_microusd: int = 0


@dataclass(frozen=True)
class FaultDrill:
    """One drill. Times are microseconds since the epoch, 0 if that has not happened.

    The node that it will hit is recorded (`aimed_at_us`) before the fault is injected
    (`struck_at_us`).
    """

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
        """Return whether its node survives: nothing was injected, or only the agent was hit."""
        return not self.struck_at_us or self.kind is DrillKind.AGENT
