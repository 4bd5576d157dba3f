"""Decide when and how hard to stop training: arithmetic in seconds on one monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from spotd.wire import StartDocument, WireError

ENGINE_NONE = "none"  # a script that does not use our checkpoint engine
DEFAULT_SAVE_S = 5.0  # assumed before the first measured save
SAVE_FACTOR = 1.3
MARGIN_S = 2.0
FINAL_S = 1.0  # reserved before a deadline for the release and the last journal lines


class StopStep(Enum):
    """The next action against a program that was asked to stop."""

    WAIT = "wait"
    TERM = "term"
    KILL = "kill"


@dataclass(frozen=True)
class StopTiming:
    """How long a stop takes, in seconds.

    For a script it is the job's grace, for spotd's engine it is measured: `save_s` is the longest
    recent save, `step_s` the longest recent step.
    """

    engine: str
    grace_s: float
    save_s: float = DEFAULT_SAVE_S
    step_s: float = 0.0
    planned: bool = False  # the program plans its last save itself; ours is the fallback
    sync_s: float = 0.0  # to upload what a script saves at its end

    def kill_by(self, now: float, deadline: float) -> float:
        """When the program must be gone. Work after that gets at most half of a short notice."""
        return deadline - max(FINAL_S, min(FINAL_S + self.sync_s, (deadline - now) / 2))

    @property
    def stop_duration_s(self) -> float:
        """Duration of a stop: the step in progress, a save already running, and the last save."""
        if self.engine == ENGINE_NONE:
            return self.grace_s + self.sync_s + FINAL_S
        if self.planned:
            return self.save_s + MARGIN_S
        return self.step_s + self.save_s + SAVE_FACTOR * self.save_s + MARGIN_S

    def latest_stop(self, now: float, deadline: float) -> float:
        """The latest safe moment to request the stop; `now` if that has passed.

        A script gets its grace, but at most half of the remaining time, so that a short notice is
        not spent on waiting alone.
        """
        stop_duration_s = self.stop_duration_s
        if self.engine == ENGINE_NONE:
            stop_duration_s = min(stop_duration_s, (deadline - now) / 2)
        return max(now, deadline - stop_duration_s)

    def allows_snapshot(self, now: float, deadline: float) -> bool:
        """Whether an immediate save leaves time for another one at the end."""
        if self.engine == ENGINE_NONE:
            return False
        return deadline - now >= 2 * (self.step_s + SAVE_FACTOR * self.save_s) + MARGIN_S

    def max_stop_s(self) -> float:
        """How long a stop may take before the program is killed, however far the deadline is."""
        if self.engine == ENGINE_NONE:
            return self.grace_s
        return max(self.grace_s, self.step_s + 4 * SAVE_FACTOR * self.save_s + MARGIN_S)


def stop_timing_of(
    start: StartDocument, save_s: float, step_s: float, *, planned: bool = False
) -> StopTiming:
    """Build the timing of a job from its start document and the measured times."""
    sync_s = SAVE_FACTOR * save_s if start.checkpoint.directory else 0.0
    return StopTiming(
        engine=start.checkpoint.engine,
        grace_s=start.program.stop_grace_s,
        save_s=save_s,
        step_s=step_s,
        planned=planned,
        sync_s=sync_s,
    )


@dataclass(frozen=True)
class StopOrder:
    """A `drain` command: its reason, and when the stop and the upload of outputs must be over.

    Without a time of their own, outputs have the time of the stop.
    """

    reason: str
    deadline: float | None
    outputs_until: float | None


def parse_drain(data: Mapping[str, Any], now: float) -> StopOrder:
    """Parse the data of a `drain` command. Raises WireError."""
    ends: list[float | None] = []
    for name in ("deadline_s", "outputs_s"):
        remaining_s = data.get(name)
        if remaining_s is not None and not isinstance(remaining_s, (int, float)):
            raise WireError(f"{name} is {remaining_s!r}")
        ends.append(None if remaining_s is None else now + remaining_s)
    return StopOrder(str(data.get("reason") or "drain"), *ends)


def describe_stop(engine: str) -> str:
    """Describe a stop. A script may save when it is asked to stop, or not."""
    return "SIGTERM, release" if engine == ENGINE_NONE else "finish the step, save, release"


def describe_notice_plan(engine: str, wait_s: float, *, snapshot: bool) -> str:
    """Describe the reaction to a notice."""
    first = "save now, " if snapshot else ""
    wait = f"keep training until the replacement is ready, for {wait_s:.1f} s at most"
    return f"{first}{wait}, then {describe_stop(engine)}"


def kill_deadline(timing: StopTiming, now: float, *deadlines: float | None) -> float:
    """Return when a program that is asked to stop now is killed at the latest."""
    # Maintenance may be days ahead: no program gets longer than it would without a deadline.
    patient_until = now + timing.max_stop_s()
    ends = [at for at in deadlines if at is not None]
    end = min(ends, default=now)
    kill_at = min(timing.kill_by(now, end), patient_until)
    # No deadline, or one that has passed although the machine is still up: it is unknown.
    return kill_at if kill_at > now else patient_until


@dataclass
class Stopping:
    """A stop in progress. `gentle`: the program was asked through its connection to the agent.

    `outputs_until` is when the upload of outputs must end, if that is not `kill_at`.
    """

    reason: str
    asked_at: float
    kill_at: float
    gentle: bool
    termed: bool = False
    outputs_until: float | None = None

    @property
    def skips_outputs(self) -> bool:
        """Whether outputs have no time at all: their user does not want them."""
        return self.outputs_until is not None and self.outputs_until <= self.asked_at

    @property
    def term_at(self) -> float:
        """When to send SIGTERM: a program that reads the connection gets half of the time to end by
        itself."""
        return self.asked_at + (self.kill_at - self.asked_at) / 2 if self.gentle else self.asked_at

    def advance(self, deadline: float) -> None:
        """Shorten the time to `deadline`."""
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
    """Parse the result of `Stopping.to_data`."""
    return Stopping(**data)
