"""What became of machines, counted: how often they were taken away, with how much notice, and what
became of the requests for them.

A rate is never without the machine-hours that it was seen in, nor a share without its cases, and
each has its interval (intervals.py). Hours and weekdays are UTC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from spotd.decide.cadence import prior_of
from spotd.history.intervals import Interval, rate, share
from spotd.model import LeaveReason, S
from spotd.money.units import US_PER_H

DAY_US = 24 * US_PER_H
SILENCE_US = 5 * S  # between two words of a machine that lives: it may live so much longer
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday
TAKEN = frozenset({LeaveReason.PREEMPTED, LeaveReason.LOST})


class By(str, Enum):
    """What machines are sorted by."""

    CLOUD = "cloud"
    REGION = "region"
    ZONE = "zone"
    POOL = "pool"
    HOUR = "hour"
    WEEKDAY = "weekday"


@dataclass(frozen=True)
class MachineLife:
    """One machine that was asked for. Times are 0 where there was none; `ended_us` is the present,
    as far as it is known, of one that lives. `notice_us` is when the first notice in force was
    heard, `deadline_us` what it said (None: nothing); `heard_us` is the machine's last word, and
    `returned`: its program had released HEAD, or had ended, by then. `resumed_us` is when it
    claimed the work of a job that had trained before (0 of all ranks but the first), `trained_us`
    when it made its first step."""

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

    @property
    def taken(self) -> bool:
        """Whether its cloud took it back, or it was lost."""
        return bool(self.launched_us) and self.reason in TAKEN

    @property
    def failed_to_boot(self) -> bool:
        """Whether there was a machine, and it left without a word of its agent."""
        failed = (LeaveReason.BOOT_TIMEOUT, LeaveReason.LOST, LeaveReason.FAILED)
        return bool(self.launched_us) and not self.hello_us and self.reason in failed

    @property
    def resume(self) -> bool | None:
        """Whether it trained where it was to go on; None where it was not, or where that was cut
        short from without: taken away, given back, cancelled, or still under way."""
        if not self.resumed_us:
            return None
        if self.trained_us:
            return True
        return False if self.reason in (LeaveReason.FAILED, LeaveReason.LOST) else None

    def warning_s(self) -> float | None:
        """For how long it lived on after the notice: as announced, unless it fell silent before
        that with work under way. None without a notice that had a deadline."""
        if not self.notice_us or self.deadline_us is None:
            return None
        until_us = self.deadline_us
        if self.cut_short:
            until_us = self.heard_us
        return max(0, until_us - self.notice_us) / S

    @property
    def cut_short(self) -> bool:
        """Whether it fell silent before its deadline, and had not given back what it had."""
        if not self.notice_us or self.deadline_us is None or self.returned:
            return False
        return self.taken and 0 < self.heard_us < self.deadline_us - SILENCE_US


@dataclass
class Row:
    """All machines of one kind. `warnings_s` are those of machines that were taken away, `expected`
    how many of them would have been by the prior of their cloud."""

    name: str
    machine_us: int = 0
    expected: float = 0.0
    preempted: int = 0
    lost: int = 0
    unannounced: int = 0
    cut_short: int = 0
    warnings_s: list[float] = field(default_factory=list)
    asked: int = 0
    launched: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    said_hello: int = 0
    failed_to_boot: int = 0
    hellos_s: list[float] = field(default_factory=list)
    resumes: int = 0
    trained: int = 0

    @property
    def taken(self) -> int:
        return self.preempted + self.lost

    @property
    def hazard(self) -> Interval | None:
        """Preemptions and losses per machine-hour; None without any hour."""
        return rate(self.taken, self.machine_us / US_PER_H)

    @property
    def ratio(self) -> Interval | None:
        """Of those that were taken away to those that would have been by the prior: 1 is as often.
        The prior is taken at its word, and the interval is of what was seen."""
        return rate(self.taken, self.expected)

    @property
    def resumed(self) -> Interval | None:
        """Of the resumes that came to an end, those that trained."""
        return share(self.trained, self.resumes)

    @property
    def without_notice(self) -> Interval | None:
        """Of those that were taken away."""
        return share(self.unannounced, self.taken)

    @property
    def refusals(self) -> Interval | None:
        """Of the requests that were answered."""
        answered = self.launched + sum(self.refused.values())
        return share(sum(self.refused.values()), answered)

    @property
    def boot_failures(self) -> Interval | None:
        """Of the machines that said hello or will never."""
        return share(self.failed_to_boot, self.said_hello + self.failed_to_boot)


def count(
    lives: Iterable[MachineLife], by: By, capacity: str, since_us: int, until_us: int
) -> list[Row]:
    """Between `since_us` and `until_us`, of one capacity type: hours and weekdays in their order,
    the others by name. What happened before or after counts nowhere, nor do hours of it."""
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
        if life.taken and inside(life.ended_us):
            _note_loss(row(name(life.ended_us)), life)
        if life.resume is not None and inside(life.resumed_us):
            row(name(life.resumed_us)).resumes += 1
            row(name(life.resumed_us)).trained += life.resume
    order = _ORDERS.get(by)
    return sorted(rows.values(), key=lambda one: order.index(one.name) if order else one.name)


class Often(str, Enum):
    """How often machines were taken away, beside what was believed before."""

    MORE = "more"
    LESS = "less"
    OPEN = "open"  # the interval has 1: nobody can tell


def often(ratio: Interval) -> Often:
    if ratio.low > 1:
        return Often.MORE
    return Often.LESS if ratio.high < 1 else Often.OPEN


def total(rows: Sequence[Row]) -> Row:
    """All of them together."""
    found = Row("all")
    for one in rows:
        for name, value in vars(one).items():
            if name != "name":
                setattr(found, name, getattr(found, name) + value)
    return found


def _note_request(row: Row, life: MachineLife) -> None:
    row.asked += 1
    if life.refused and not life.launched_us:
        row.refused[life.refused] += 1
    if life.launched_us:
        row.launched += 1
        row.failed_to_boot += life.failed_to_boot
    if life.launched_us and life.hello_us:
        row.said_hello += 1
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
    """00 to 23, UTC."""
    return f"{at_us % DAY_US // US_PER_H:02}"


def weekday_of(at_us: int) -> str:
    return WEEKDAYS[(at_us // DAY_US + _EPOCH_WEEKDAY) % 7]


_STEPS_US = {By.HOUR: US_PER_H, By.WEEKDAY: DAY_US}
_ORDERS = {By.HOUR: tuple(f"{n:02}" for n in range(24)), By.WEEKDAY: WEEKDAYS}


def _namer(life: MachineLife, by: By) -> Callable[[int], str]:
    """The name of its row, at a time."""
    if by is By.HOUR:
        return hour_of
    if by is By.WEEKDAY:
        return weekday_of
    provider, region, zone, *_ = life.offer_key.split("/")
    names = {
        By.CLOUD: life.cloud or provider,
        By.REGION: f"{provider}/{region}",
        By.ZONE: f"{provider}/{zone or region}",
        By.POOL: life.offer_key,
    }
    return lambda _at_us: names[by]


def _parts(life: MachineLife, by: By, since_us: int, until_us: int) -> Iterator[tuple[str, int]]:
    """The time that it lived within those bounds, by name."""
    start_us, end_us = max(life.launched_us, since_us), min(life.ended_us, until_us)
    if not life.launched_us or end_us <= start_us:
        return
    name = _namer(life, by)
    step_us = _STEPS_US.get(by)
    if by is By.HOUR and end_us - start_us > 2 * DAY_US:
        # Whole days have as much of each hour.
        days = (end_us - start_us) // DAY_US - 1
        for hour in _ORDERS[By.HOUR]:
            yield hour, days * US_PER_H
        start_us += days * DAY_US
    while start_us < end_us:
        next_us = min(end_us, start_us - start_us % step_us + step_us) if step_us else end_us
        yield name(start_us), next_us - start_us
        start_us = next_us
