"""When to stop training, and how hard: arithmetic on one monotonic clock, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from spotd.wire import StartDocument, WireError

ENGINE_NONE = "none"  # any script, of which we know nothing
SAVE_GUESS_S = 5.0  # before any save was measured
SAVE_FACTOR = 1.3
MARGIN_S = 2.0
FINAL_S = 1.0  # kept of a deadline for the release and the last journal lines


class StopStep(Enum):
    """What to do about a program that was asked to stop."""

    WAIT = "wait"
    TERM = "term"
    KILL = "kill"


@dataclass(frozen=True)
class StopTiming:
    """How long stopping takes: the job's grace, or for our engine what was measured, in seconds.

    `save_s` is the longest recent save, `step_s` the longest recent step.
    """

    engine: str
    grace_s: float
    save_s: float = SAVE_GUESS_S
    step_s: float = 0.0
    planned: bool = False  # the program plans its last save itself: ours is in case it does not
    sync_s: float = 0.0  # until what a script saves at its end is in the store

    def kill_by(self, now: float, deadline: float) -> float:
        """When the program has to be gone. Of a short notice, no more than half goes to what is
        done after that."""
        return deadline - max(FINAL_S, min(FINAL_S + self.sync_s, (deadline - now) / 2))

    @property
    def wanted_s(self) -> float:
        """What a stop may take: the step under way, a save already in flight, the last save."""
        if self.engine == ENGINE_NONE:
            return self.grace_s + self.sync_s + FINAL_S
        if self.planned:
            return self.save_s + MARGIN_S
        return self.step_s + self.save_s + SAVE_FACTOR * self.save_s + MARGIN_S

    def latest_stop(self, now: float, deadline: float) -> float:
        """The latest safe moment to ask for the stop; `now` when that is already past.

        A script of its own gets its grace, but not more than half of the time that is left, so
        that a short notice is not spent on waiting alone.
        """
        wanted_s = self.wanted_s
        if self.engine == ENGINE_NONE:
            wanted_s = min(wanted_s, (deadline - now) / 2)
        return max(now, deadline - wanted_s)

    def fits_snapshot(self, now: float, deadline: float) -> bool:
        """Whether a save at once leaves time for another one at the end."""
        if self.engine == ENGINE_NONE:
            return False
        return deadline - now >= 2 * (self.step_s + SAVE_FACTOR * self.save_s) + MARGIN_S

    def patience_s(self) -> float:
        """How long a stop may take, however far the deadline, before the program is killed."""
        if self.engine == ENGINE_NONE:
            return self.grace_s
        return max(self.grace_s, self.step_s + 4 * SAVE_FACTOR * self.save_s + MARGIN_S)


def policy_of(
    start: StartDocument, save_s: float, step_s: float, *, planned: bool = False
) -> StopTiming:
    sync_s = SAVE_FACTOR * save_s if start.directory else 0.0
    return StopTiming(start.engine, start.stop_grace_s, save_s, step_s, planned, sync_s)


def asked_of(data: Mapping[str, Any], now: float) -> tuple[str, float | None]:
    """Why a `drain` command stops training, and by when. Raises WireError."""
    left_s = data.get("deadline_s")
    if left_s is not None and not isinstance(left_s, (int, float)):
        raise WireError(f"deadline_s is {left_s!r}")
    return str(data.get("reason") or "drain"), None if left_s is None else now + left_s


def plan_of(engine: str) -> str:
    """What a stop is, in words; a script of its own may save when it is asked to, or not."""
    return "SIGTERM, release" if engine == ENGINE_NONE else "finish the step, save, release"


def plan_until(engine: str, wait_s: float, *, snapshot: bool) -> str:
    """What a notice comes to, in words."""
    first = "save now, " if snapshot else ""
    wait = f"train on until the replacement is ready, for {wait_s:.1f} s at most"
    return f"{first}{wait}, then {plan_of(engine)}"


def kill_at_of(policy: StopTiming, now: float, *deadlines: float | None) -> float:
    """When a program that is asked to stop now is killed at the latest."""
    # A maintenance may be days ahead: no program gets longer than one without a deadline.
    patient_until = now + policy.patience_s()
    ends = [at for at in deadlines if at is not None]
    end = min(ends, default=now)
    kill_at = min(policy.kill_by(now, end), patient_until)
    # No deadline, or one that has passed and yet we live: then nobody knows it.
    return kill_at if kill_at > now else patient_until


@dataclass
class Stopping:
    """A stop under way. `gentle` says that the program was asked by the link, which it reads."""

    reason: str
    asked_at: float
    kill_at: float
    gentle: bool
    termed: bool = False

    @property
    def term_at(self) -> float:
        """A program that listens gets half of the time to end by itself, and SIGTERM then."""
        return self.asked_at + (self.kill_at - self.asked_at) / 2 if self.gentle else self.asked_at

    def advance(self, deadline: float) -> None:
        """There is less time than thought."""
        self.kill_at = max(self.asked_at, min(self.kill_at, deadline))

    def next_step(self, now: float) -> StopStep:
        if now >= self.kill_at:
            return StopStep.KILL
        if now >= self.term_at and not self.termed:
            return StopStep.TERM
        return StopStep.WAIT

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def parse_stopping(data: Mapping[str, Any]) -> Stopping:
    """What `to_data` wrote."""
    return Stopping(**data)
