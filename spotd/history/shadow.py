"""What spotd would have saved or lost on another scheduler's log.

On the same machines, at the same prices, with the same interruptions. Each figure is a range from
the worst to the best case for spotd; an end that the log cannot tell is None, "not known". Their
own saves count as free, their notices as unusable unless the log says how long they were, and
capacity as no easier to get than it was. What spotd takes is as measured (docs/measurements.md),
where that is known: `FIGURES` says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from spotd.domain.units import S
from spotd.money.units import US_PER_H


class StayEnd(str, Enum):
    """How a stay ended."""

    PREEMPTED = "preempted"
    LOST = "lost"
    STOPPED = "stopped"  # by the scheduler or a person: no interruption
    FAILED = "failed"  # the program's own fault
    DONE = "done"
    UNKNOWN = "unknown"


INTERRUPTIONS = frozenset({StayEnd.PREEMPTED, StayEnd.LOST})


@dataclass(frozen=True)
class Stay:
    """One job on its machines from start to end; times are None if the log lacks them.

    `requested_us` is when they were requested, `trains_us` the first new step, or when the program
    ran. `first_step` and `last_step` were made here. `usd_per_h` is for all machines together.
    `notice_s` is how long before the end the scheduler or the machine knew.
    """

    job: str
    start_us: int
    end_us: int | None = None
    end: StayEnd = StayEnd.UNKNOWN
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
        """Return the seconds per step of this stay."""
        hours = self.trained_h
        if self.first_step is None or self.last_step is None or not hours:
            return None
        steps = self.last_step - self.first_step + 1
        return hours * 3600 / steps if steps > 0 else None


@dataclass(frozen=True)
class Range:
    """A range; None is not known."""

    low: float | None
    high: float | None

    def __add__(self, other: Range) -> Range:
        return Range(_sum(self.low, other.low), _sum(self.high, other.high))

    def times(self, factor: float | None) -> Range:
        """Multiply by a factor that is not negative; an unknown factor makes the result unknown."""
        if factor is None:
            return Range(None, None)
        low, high = self.low, self.high
        return Range(None if low is None else low * factor, None if high is None else high * factor)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


ZERO = Range(0.0, 0.0)

# Seconds: from a death to spotd's request for the next machine, and without training where a notice
# let the next machine be ready first. docs/measurements.md, "Recoveries": the smaller and the
# larger figure of both tables; between machines that boot in no time, on two shared cores.
DEATH_S = Range(0.124, 9.212)  # connections reset (p95) .. silent, and listed as ended (p95)
FROZEN_S = 123.8  # frozen, and listed as running until we end it (p95)
HANDOVER_S = Range(0.167, 0.367)  # AWS notice (median) .. torchrun (p95)
# Seconds that a save takes from the loop for each GB, beside training and not: the same page.
SAVE_S_PER_GB = Range(0.392 / 1.66, 0.611 / 1.66)
CADENCE_S = 139.0  # between saves, at most, by the simulation there

FIGURES = """\
after a death spotd asks for the next machine within 0.1 to 9.2 s, or within 123.8 s where it \
still looks alive (measured: docs/measurements.md, Recoveries)
with a notice training stands for 0.2 to 0.4 s where the next machine is ready before the end \
(measured there, between machines that boot in no time)
a notice costs no step where a save fits into it, and counts only where the log says how long it was
a save takes 0.24 to 0.37 s of the loop for each GB (measured there, two cores, no GPU)
machines are got no sooner, and boot and start the program no faster, than in the log
their own saves are counted as free, and neither controller's cost is in it
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
    end: StayEnd
    where: str
    gap_s: float | None
    minutes: Range
    steps: Range
    usd: Range
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shadow:
    """A whole log. `saves` is what spotd's saves take of the hours that were trained, in the same
    units (below 0). Sums count each job's interruptions and its saves."""

    jobs: int
    hours: float
    interruptions: tuple[Interruption, ...]
    saves_minutes: Range
    saves_usd: Range
    open: tuple[str, ...] = ()

    @property
    def minutes(self) -> Range:
        return _total((one.minutes for one in self.interruptions), self.saves_minutes)

    @property
    def steps(self) -> Range:
        return _total((one.steps for one in self.interruptions), ZERO)

    @property
    def usd(self) -> Range:
        return _total((one.usd for one in self.interruptions), self.saves_usd)


def _total(parts: Iterable[Range], first: Range) -> Range:
    for part in parts:
        first = first + part
    return first


def shadow(stays: Sequence[Stay], habits: ShadowAssumptions) -> Shadow:
    """Return the result for stays in any order."""
    jobs: dict[str, list[Stay]] = {}
    for stay in sorted(stays, key=lambda one: one.start_us):
        jobs.setdefault(stay.job, []).append(stay)
    found: list[Interruption] = []
    ends_open = []
    for name, rows in sorted(jobs.items()):
        for stay, after in zip(rows, [*rows[1:], None], strict=True):
            if stay.end in INTERRUPTIONS and stay.end_us is not None:
                found.append(_interruption(stay, after, habits))
        if rows[-1].end_us is None or rows[-1].end in (*INTERRUPTIONS, StayEnd.UNKNOWN):
            ends_open.append(name)
    minutes, usd = _saves(stays, habits)
    hours = sum(stay.trained_h or 0.0 for stay in stays)
    return Shadow(len(jobs), hours, tuple(found), minutes, usd, tuple(ends_open))


def _interruption(stay: Stay, after: Stay | None, habits: ShadowAssumptions) -> Interruption:
    notes: list[str] = []
    at_us = stay.end_us or 0
    steps, again_h = _again(stay, after, habits, notes)
    gap_s, waited = None, Range(None, None)
    if after is None:
        notes.append("the job does not come back in the log")
    else:
        again_us = after.trains_us or after.start_us
        gap_s = max(0, again_us - at_us) / S
        waited = _waited(stay, after, gap_s, notes)
    rate = stay.usd_per_h if after is None or after.usd_per_h is None else after.usd_per_h
    if rate is None:
        notes.append("no price")
    # Waiting costs no dollars: only work that is done again does, and two machines at a time.
    both_h = Range(-min(stay.notice_s or 0.0, gap_s or 0.0) / 3600, 0.0)
    usd = (again_h + both_h).times(rate)
    minutes = waited.times(1 / 60) + again_h.times(60.0)
    found = (stay.job, at_us, stay.end, stay.where, gap_s)
    return Interruption(*found, minutes, steps, usd, tuple(notes))


def _waited(stay: Stay, after: Stay, gap_s: float, notes: list[str]) -> Range:
    """Seconds of the gap that spotd would not have needed. Theirs before the request is known where
    the log has that moment, and else anything up to the whole gap."""
    late = _late_s(stay)
    end_us, asked_us = stay.end_us or 0, after.requested_us
    if stay.notice_s:
        # The next machine is asked for at the notice: all but what it takes longer than that.
        most = max(0.0, gap_s - (HANDOVER_S.low or 0.0))
        if asked_us is None:
            notes.append("when the next machine was asked for is not in the log")
            return Range(-(HANDOVER_S.high or 0.0), most)
        machine_s = max(0.0, gap_s - max(0, asked_us - end_us) / S)
        gaps = [
            max(end or 0.0, machine_s - stay.notice_s) for end in (HANDOVER_S.low, HANDOVER_S.high)
        ]
        return Range(gap_s - gaps[1], gap_s - gaps[0])
    if asked_us is None:
        notes.append("when the next machine was asked for is not in the log")
        return Range(-(late.high or 0.0), max(gap_s - (late.low or 0.0), -(late.low or 0.0)))
    theirs_s = (asked_us - end_us) / S
    return Range(theirs_s - (late.high or 0.0), theirs_s - (late.low or 0.0))


def _late_s(stay: Stay) -> Range:
    """Return the time from the machine's end to our request: a lost one may look alive."""
    return Range(DEATH_S.low, FROZEN_S) if stay.end is StayEnd.LOST else DEATH_S


def _again(
    stay: Stay, after: Stay | None, habits: ShadowAssumptions, notes: list[str]
) -> tuple[Range, Range]:
    """Return the steps and hours of repeated work, less what spotd would have repeated.

    That is at most one checkpoint interval, and nothing after a notice in time.
    """
    ours_s, step_s = (0.0 if stay.notice_s else habits.every_s), stay.step_s
    if stay.last_step is None or after is None or after.first_step is None or step_s is None:
        notes.append("which steps were done again is not in the log")
        steps = None if step_s is None else -ours_s / step_s
        return Range(steps, None), Range(-ours_s / 3600, None)
    theirs = float(max(0, stay.last_step + 1 - after.first_step))
    steps_ = Range(theirs - ours_s / step_s, theirs)
    return steps_, steps_.times(step_s / 3600)


def _saves(stays: Sequence[Stay], habits: ShadowAssumptions) -> tuple[Range, Range]:
    """Return what spotd's saves would have taken in minutes and dollars, as negative numbers."""
    if habits.checkpoint_gb is None:
        return Range(None, 0.0), Range(None, 0.0)
    minutes, usd = ZERO, ZERO
    for stay in stays:
        saves = (stay.trained_h or 0.0) * 3600 / habits.every_s
        worst = -saves * habits.checkpoint_gb * (SAVE_S_PER_GB.high or 0.0)
        best = -saves * habits.checkpoint_gb * (SAVE_S_PER_GB.low or 0.0)
        took = Range(worst, best)
        minutes += took.times(1 / 60)
        usd += took.times(None if stay.usd_per_h is None else stay.usd_per_h / 3600)
    return minutes, usd
