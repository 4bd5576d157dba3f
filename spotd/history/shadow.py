"""Compute what spotd would have saved or lost on another scheduler's log.

On the same machines, at the same prices, with the same interruptions. Each figure is a range from
the worst to the best case for spotd; an end that does not follow from the log is None. The other
scheduler's saves count as free, its notices as unusable unless the log has their length, and
capacity as no easier to get than it was. spotd's own times are measured (docs/measurements.md),
as listed in `FIGURES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from spotd.domain.units import US_PER_H, S


class AttemptEnd(str, Enum):
    """How an attempt ended."""

    PREEMPTED = "preempted"
    LOST = "lost"
    STOPPED = "stopped"  # by the scheduler or a person: no interruption
    FAILED = "failed"  # the program's own fault
    DONE = "done"
    UNKNOWN = "unknown"


INTERRUPTIONS = frozenset({AttemptEnd.PREEMPTED, AttemptEnd.LOST})


@dataclass(frozen=True)
class Attempt:
    """One job on its machines from start to end; times are None if the log lacks them.

    `requested_us` is when they were requested, `trains_us` the first new step, or when the program
    ran. `first_step` and `last_step` were made here. `usd_per_h` is for all machines together.
    `notice_s` is how long before the end the scheduler or the machine knew.
    """

    job: str
    start_us: int
    end_us: int | None = None
    end: AttemptEnd = AttemptEnd.UNKNOWN
    requested_us: int | None = None
    trains_us: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    usd_per_h: float | None = None
    notice_s: float | None = None
    where: str = ""

    @property
    def trained_h(self) -> float | None:
        if self.end_us is None:
            return None
        return max(0, self.end_us - (self.trains_us or self.start_us)) / US_PER_H

    @property
    def step_s(self) -> float | None:
        """Return the seconds per step of this attempt."""
        hours = self.trained_h
        if self.first_step is None or self.last_step is None or not hours:
            return None
        steps = self.last_step - self.first_step + 1
        return hours * 3600 / steps if steps > 0 else None


@dataclass(frozen=True)
class Bounds:
    """A range; None means not known."""

    low: float | None
    high: float | None

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(_sum(self.low, other.low), _sum(self.high, other.high))

    def times(self, factor: float | None) -> Bounds:
        """Multiply by a factor that is not negative; an unknown factor makes the result unknown."""
        if factor is None:
            return Bounds(None, None)
        low, high = self.low, self.high
        return Bounds(
            None if low is None else low * factor, None if high is None else high * factor
        )


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


ZERO = Bounds(0.0, 0.0)

# Seconds from a death to spotd's request for the next machine, and seconds without training if a
# notice let the next machine be ready first. From docs/measurements.md, "Recoveries": the smaller
# and the larger figure of both tables, for machines that boot in no time, on two shared cores.
DEATH_S = Bounds(0.124, 9.212)  # connections reset (p95) .. silent, and listed as ended (p95)
FROZEN_S = 123.8  # frozen, and listed as running until we end it (p95)
HANDOVER_S = Bounds(0.167, 0.367)  # AWS notice (median) .. torchrun (p95)
# Seconds that a save takes from the training loop per GB: the same page.
SAVE_S_PER_GB = Bounds(0.392 / 1.66, 0.611 / 1.66)
CADENCE_S = 139.0  # longest checkpoint interval in the simulation there

FIGURES = """\
after a death spotd requests the next machine within 0.1 to 9.2 s, or within 123.8 s if it \
still looks alive (measured: docs/measurements.md, Recoveries)
after a notice training pauses for 0.2 to 0.4 s if the next machine is ready before the end \
(measured there, between machines that boot at once)
after a notice no step is lost if a save fits into it; only notices with a known length count
a save takes 0.24 to 0.37 s of the loop for each GB (measured there, two cores, no GPU)
machines are granted no sooner, and boot and start the program no faster, than in the log
the other scheduler's saves count as free, and the cost of neither controller is included
""".splitlines()


@dataclass(frozen=True)
class ShadowAssumptions:
    """The job under spotd: a save every `every_s`, of `checkpoint_gb` (None if unknown)."""

    every_s: float = CADENCE_S
    checkpoint_gb: float | None = None


@dataclass(frozen=True)
class Interruption:
    """One interruption.

    `gap_s` is the time until the job trained again (None: never, or the log ends). `minutes`,
    `steps` and `usd` would have been saved by spotd (negative: lost). `notes` say what was not
    known.
    """

    job: str
    at_us: int
    end: AttemptEnd
    where: str
    gap_s: float | None
    minutes: Bounds
    steps: Bounds
    usd: Bounds
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shadow:
    """The result for a log.

    `saves_minutes` and `saves_usd` are the cost of spotd's own saves (negative). Totals include the
    interruptions and the saves.
    """

    jobs: int
    hours: float
    interruptions: tuple[Interruption, ...]
    saves_minutes: Bounds
    saves_usd: Bounds
    open: tuple[str, ...] = ()

    @property
    def minutes(self) -> Bounds:
        return _total(
            (interruption.minutes for interruption in self.interruptions), self.saves_minutes
        )

    @property
    def steps(self) -> Bounds:
        return _total((interruption.steps for interruption in self.interruptions), ZERO)

    @property
    def usd(self) -> Bounds:
        return _total((interruption.usd for interruption in self.interruptions), self.saves_usd)


def _total(parts: Iterable[Bounds], first: Bounds) -> Bounds:
    for part in parts:
        first = first + part
    return first


def shadow(attempts: Sequence[Attempt], assumptions: ShadowAssumptions) -> Shadow:
    """Return the result for attempts in any order."""
    jobs: dict[str, list[Attempt]] = {}
    for attempt in sorted(attempts, key=lambda attempt: attempt.start_us):
        jobs.setdefault(attempt.job, []).append(attempt)
    interruptions: list[Interruption] = []
    open_jobs = []
    for name, rows in sorted(jobs.items()):
        for attempt, next_attempt in zip(rows, [*rows[1:], None], strict=True):
            if attempt.end in INTERRUPTIONS and attempt.end_us is not None:
                interruptions.append(_interruption(attempt, next_attempt, assumptions))
        if rows[-1].end_us is None or rows[-1].end in (*INTERRUPTIONS, AttemptEnd.UNKNOWN):
            open_jobs.append(name)
    minutes, usd = _saves(attempts, assumptions)
    hours = sum(attempt.trained_h or 0.0 for attempt in attempts)
    return Shadow(len(jobs), hours, tuple(interruptions), minutes, usd, tuple(open_jobs))


def _interruption(
    attempt: Attempt, next_attempt: Attempt | None, assumptions: ShadowAssumptions
) -> Interruption:
    notes: list[str] = []
    at_us = attempt.end_us or 0
    steps, again_h = _repeated_work(attempt, next_attempt, assumptions, notes)
    gap_s, waited = None, Bounds(None, None)
    if next_attempt is None:
        notes.append("the job does not come back in the log")
    else:
        again_us = next_attempt.trains_us or next_attempt.start_us
        gap_s = max(0, again_us - at_us) / S
        waited = _saved_wait(attempt, next_attempt, gap_s, notes)
    rate = (
        attempt.usd_per_h
        if next_attempt is None or next_attempt.usd_per_h is None
        else next_attempt.usd_per_h
    )
    if rate is None:
        notes.append("no price")
    # Waiting costs nothing; repeated work does, and two machines at the same time.
    overlap_h = Bounds(-min(attempt.notice_s or 0.0, gap_s or 0.0) / 3600, 0.0)
    usd = (again_h + overlap_h).times(rate)
    minutes = waited.times(1 / 60) + again_h.times(60.0)
    return Interruption(
        job=attempt.job,
        at_us=at_us,
        end=attempt.end,
        where=attempt.where,
        gap_s=gap_s,
        minutes=minutes,
        steps=steps,
        usd=usd,
        notes=tuple(notes),
    )


def _saved_wait(attempt: Attempt, next_attempt: Attempt, gap_s: float, notes: list[str]) -> Bounds:
    """Return the seconds of the gap that spotd would not have needed.

    The other scheduler's time until its request is known only if the log has the request; otherwise
    it may be anything up to the whole gap.
    """
    detection = _detection_s(attempt)
    end_us, requested_us = attempt.end_us or 0, next_attempt.requested_us
    if attempt.notice_s:
        # spotd requests the next machine at the notice, so the gap is at most its remaining boot.
        maximum_s = max(0.0, gap_s - (HANDOVER_S.low or 0.0))
        if requested_us is None:
            notes.append("the request for the next machine is not in the log")
            return Bounds(-(HANDOVER_S.high or 0.0), maximum_s)
        machine_s = max(0.0, gap_s - max(0, requested_us - end_us) / S)
        gaps = [
            max(end or 0.0, machine_s - attempt.notice_s)
            for end in (HANDOVER_S.low, HANDOVER_S.high)
        ]
        return Bounds(gap_s - gaps[1], gap_s - gaps[0])
    if requested_us is None:
        notes.append("the request for the next machine is not in the log")
        return Bounds(
            -(detection.high or 0.0), max(gap_s - (detection.low or 0.0), -(detection.low or 0.0))
        )
    request_delay_s = (requested_us - end_us) / S
    return Bounds(
        request_delay_s - (detection.high or 0.0), request_delay_s - (detection.low or 0.0)
    )


def _detection_s(attempt: Attempt) -> Bounds:
    """Return the time from the machine's end to spotd's request: a lost one may look alive."""
    return Bounds(DEATH_S.low, FROZEN_S) if attempt.end is AttemptEnd.LOST else DEATH_S


def _repeated_work(
    attempt: Attempt, next_attempt: Attempt | None, assumptions: ShadowAssumptions, notes: list[str]
) -> tuple[Bounds, Bounds]:
    """Return the steps and hours of repeated work, less what spotd would have repeated.

    That is at most one checkpoint interval, and nothing after a notice in time.
    """
    repeated_s, step_s = (0.0 if attempt.notice_s else assumptions.every_s), attempt.step_s
    if (
        attempt.last_step is None
        or next_attempt is None
        or next_attempt.first_step is None
        or step_s is None
    ):
        notes.append("which steps were done again is not in the log")
        steps = None if step_s is None else -repeated_s / step_s
        return Bounds(steps, None), Bounds(-repeated_s / 3600, None)
    repeated_steps = float(max(0, attempt.last_step + 1 - next_attempt.first_step))
    steps_ = Bounds(repeated_steps - repeated_s / step_s, repeated_steps)
    return steps_, steps_.times(step_s / 3600)


def _saves(attempts: Sequence[Attempt], assumptions: ShadowAssumptions) -> tuple[Bounds, Bounds]:
    """Return what spotd's saves would have taken in minutes and dollars, as negative numbers."""
    if assumptions.checkpoint_gb is None:
        return Bounds(None, 0.0), Bounds(None, 0.0)
    minutes, usd = ZERO, ZERO
    for attempt in attempts:
        saves = (attempt.trained_h or 0.0) * 3600 / assumptions.every_s
        worst = -saves * assumptions.checkpoint_gb * (SAVE_S_PER_GB.high or 0.0)
        best = -saves * assumptions.checkpoint_gb * (SAVE_S_PER_GB.low or 0.0)
        took = Bounds(worst, best)
        minutes += took.times(1 / 60)
        usd += took.times(None if attempt.usd_per_h is None else attempt.usd_per_h / 3600)
    return minutes, usd
