"""Count the fates of machines: interruptions, notice times, and results of requests.

A rate comes with the machine-hours of its observation, a share with its cases, and each with its
interval (intervals.py). Hours and weekdays are UTC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from spotd.domain.states import LeaveReason
from spotd.domain.units import DAY_US, US_PER_H, S
from spotd.history.intervals import Interval, rate, share
from spotd.planner.core.checkpoint_interval import prior_of

SILENCE_US = 5 * S  # maximum time between messages of a living machine
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday
LOSS_REASONS = frozenset({LeaveReason.PREEMPTED, LeaveReason.LOST})


class GroupBy(str, Enum):
    """The key by which machines are grouped."""

    CLOUD = "cloud"
    REGION = "region"
    ZONE = "zone"
    POOL = "pool"
    HOUR = "hour"
    WEEKDAY = "weekday"


@dataclass(frozen=True)
class MachineLife:
    """One requested machine. A time is 0 if it did not happen.

    `ended_us` is the present for a living one, as far as known. `notice_us` is when the first
    standing notice was received, `deadline_us` its deadline (None if it had none). `heard_us` is
    its last message, and `returned` says that its program had released HEAD or ended by then.
    `resumed_us` is when it claimed the work of a job that had trained before (0 for all ranks but
    the first), `trained_us` its first step.
    """

    offer_key: str
    cloud: str
    requested_us: int
    launched_us: int = 0
    hello_us: int = 0
    ended_us: int = 0
    reason: LeaveReason | None = None
    refused: str = ""
    notice_us: int = 0
    deadline_us: int | None = None
    heard_us: int = 0
    returned: bool = False
    accelerator: str = ""
    accelerator_count: int = 0
    resumed_us: int = 0
    trained_us: int = 0
    anew: bool = False  # what it claimed had no checkpoint to resume from

    @property
    def interrupted(self) -> bool:
        """Return whether its cloud preempted it, or it was lost."""
        return bool(self.launched_us) and self.reason in LOSS_REASONS

    @property
    def failed_to_boot(self) -> bool:
        """Return whether the machine existed and left before its agent's hello."""
        failed = (LeaveReason.BOOT_TIMEOUT, LeaveReason.LOST, LeaveReason.FAILED)
        return bool(self.launched_us) and not self.hello_us and self.reason in failed

    @property
    def resume(self) -> bool | None:
        """Return whether it went on from a checkpoint; None if it had not to, or was cut short.

        Training that begins anew is no resume: the work before it is lost. Cut short means
        preempted, given back, cancelled, or still in progress.
        """
        if not self.resumed_us:
            return None
        if self.trained_us:
            return not self.anew
        return False if self.reason in (LeaveReason.FAILED, LeaveReason.LOST) else None

    def warning_s(self) -> float | None:
        """Return how long it lived after the notice, in seconds; None without a deadline.

        It is as announced unless it fell silent earlier with work in progress.
        """
        if not self.notice_us or self.deadline_us is None:
            return None
        until_us = self.deadline_us
        if self.cut_short:
            until_us = self.heard_us
        return max(0, until_us - self.notice_us) / S

    @property
    def cut_short(self) -> bool:
        """Return whether it fell silent before its deadline without having given its work back."""
        if not self.notice_us or self.deadline_us is None or self.returned:
            return False
        return self.interrupted and 0 < self.heard_us < self.deadline_us - SILENCE_US


@dataclass
class Row:
    """The counts of one group of machines.

    `warnings_s` are those of preempted machines, `expected` the number of preemptions by the prior
    of their cloud.
    """

    name: str
    machine_us: int = 0
    expected: float = 0.0
    preempted: int = 0
    lost: int = 0
    unannounced: int = 0
    cut_short: int = 0
    warnings_s: list[float] = field(default_factory=list)
    requested: int = 0
    launched: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    booted: int = 0
    failed_to_boot: int = 0
    hellos_s: list[float] = field(default_factory=list)
    resumes: int = 0
    trained: int = 0

    @property
    def interrupted(self) -> int:
        return self.preempted + self.lost

    @property
    def hazard(self) -> Interval | None:
        """Preemptions and losses per machine-hour; None without any hour."""
        return rate(self.interrupted, self.machine_us / US_PER_H)

    @property
    def ratio(self) -> Interval | None:
        """Return preemptions relative to the prior; 1 is as often.

        The interval covers the observation only, the prior is taken as it is.
        """
        return rate(self.interrupted, self.expected)

    @property
    def resumed(self) -> Interval | None:
        """Return the share of finished resumes that trained."""
        return share(self.trained, self.resumes)

    @property
    def without_notice(self) -> Interval | None:
        """Return the share of preemptions without notice."""
        return share(self.unannounced, self.interrupted)

    @property
    def refusals(self) -> Interval | None:
        """Return the share of answered requests that were refused."""
        answered = self.launched + sum(self.refused.values())
        return share(sum(self.refused.values()), answered)

    @property
    def boot_failures(self) -> Interval | None:
        """Return the share of machines whose agent never sent a hello."""
        return share(self.failed_to_boot, self.booted + self.failed_to_boot)


def count(
    lives: Iterable[MachineLife], by: GroupBy, capacity: str, since_us: int, until_us: int
) -> list[Row]:
    """Return the rows of one capacity type between `since_us` and `until_us`.

    Hours and weekdays in their order, others by name. Events and hours outside of the window do not
    count.
    """
    rows: dict[str, Row] = {}

    def row(name: str) -> Row:
        return rows.setdefault(name, Row(name))

    def inside(at_us: int) -> bool:
        return since_us <= at_us < until_us

    for life in lives:
        if life.offer_key.split("/")[4:5] != [capacity]:
            continue
        name = _namer(life, by)
        for part, us in _parts(life, by, since_us, until_us):
            row(part).machine_us += us
            row(part).expected += us / US_PER_H / prior_of(life.cloud, capacity)[0]
        if inside(life.requested_us):
            _note_request(row(name(life.requested_us)), life)
        if life.interrupted and inside(life.ended_us):
            _note_loss(row(name(life.ended_us)), life)
        if life.resume is not None and inside(life.resumed_us):
            row(name(life.resumed_us)).resumes += 1
            row(name(life.resumed_us)).trained += life.resume
    order = _ORDERS.get(by)
    return sorted(rows.values(), key=lambda item: order.index(item.name) if order else item.name)


class InterruptionRate(str, Enum):
    """How often machines were interrupted, compared with the prior."""

    MORE = "more"
    LESS = "less"
    OPEN = "open"  # the interval includes 1: not known


def compare_with_prior(ratio: Interval) -> InterruptionRate:
    if ratio.low > 1:
        return InterruptionRate.MORE
    return InterruptionRate.LESS if ratio.high < 1 else InterruptionRate.OPEN


def total(rows: Sequence[Row]) -> Row:
    """Return the sum of all rows."""
    combined = Row("all")
    for row in rows:
        for name, value in vars(row).items():
            if name != "name":
                setattr(combined, name, getattr(combined, name) + value)
    return combined


def _note_request(row: Row, life: MachineLife) -> None:
    row.requested += 1
    if life.refused and not life.launched_us:
        row.refused[life.refused] += 1
    if life.launched_us:
        row.launched += 1
        row.failed_to_boot += life.failed_to_boot
    if life.launched_us and life.hello_us:
        row.booted += 1
        row.hellos_s.append(max(0, life.hello_us - life.requested_us) / S)


def _note_loss(row: Row, life: MachineLife) -> None:
    row.preempted += life.reason is LeaveReason.PREEMPTED
    row.lost += life.reason is LeaveReason.LOST
    row.unannounced += not life.notice_us
    row.cut_short += life.cut_short
    warning_s = life.warning_s()
    if warning_s is not None:
        row.warnings_s.append(warning_s)


def hour_of(at_us: int) -> str:
    """Return the hour of the day in UTC, "00" to "23"."""
    return f"{at_us % DAY_US // US_PER_H:02}"


def weekday_of(at_us: int) -> str:
    return WEEKDAYS[(at_us // DAY_US + _EPOCH_WEEKDAY) % 7]


_STEPS_US = {GroupBy.HOUR: US_PER_H, GroupBy.WEEKDAY: DAY_US}
_ORDERS = {GroupBy.HOUR: tuple(f"{n:02}" for n in range(24)), GroupBy.WEEKDAY: WEEKDAYS}


def _namer(life: MachineLife, by: GroupBy) -> Callable[[int], str]:
    """Return a function from a time to the name of the machine's row."""
    if by is GroupBy.HOUR:
        return hour_of
    if by is GroupBy.WEEKDAY:
        return weekday_of
    provider, region, zone, *_ = life.offer_key.split("/")
    names = {
        GroupBy.CLOUD: life.cloud or provider,
        GroupBy.REGION: f"{provider}/{region}",
        GroupBy.ZONE: f"{provider}/{zone or region}",
        GroupBy.POOL: life.offer_key,
    }
    return lambda _at_us: names[by]


def _parts(
    life: MachineLife, by: GroupBy, since_us: int, until_us: int
) -> Iterator[tuple[str, int]]:
    """Yield (row name, microseconds) of the machine's life within those bounds."""
    start_us, end_us = max(life.launched_us, since_us), min(life.ended_us, until_us)
    if not life.launched_us or end_us <= start_us:
        return
    name = _namer(life, by)
    step_us = _STEPS_US.get(by)
    if by is GroupBy.HOUR and end_us - start_us > 2 * DAY_US:
        # Every hour of the day occurs equally often in full days.
        days = (end_us - start_us) // DAY_US - 1
        for hour in _ORDERS[GroupBy.HOUR]:
            yield hour, days * US_PER_H
        start_us += days * DAY_US
    while start_us < end_us:
        next_us = min(end_us, start_us - start_us % step_us + step_us) if step_us else end_us
        yield name(start_us), next_us - start_us
        start_us = next_us
