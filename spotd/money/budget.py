"""Monthly budgets (UTC): what is spent, what will be, and which alerts are due."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spotd.money.formulas import Estimate, estimate_at_completion
from spotd.money.hour_breakdown import Segment
from spotd.money.units import US_PER_H

THRESHOLDS = (50, 80, 100)  # percent
ACTUAL, FORECAST = "actual", "forecast"
DAY_US = 24 * US_PER_H
HISTORY_DAYS = 7  # of which the spread of the forecast is


@dataclass(frozen=True)
class Budget:
    """What the machines and checkpoints of all jobs, a user's, or a project's may cost per month.

    `routes` are alert routes by threshold; "default" has the rest.
    """

    name: str
    microusd: int
    user: str = ""  # "": everybody's
    project: str = ""  # "": of any, or of none
    routes: Mapping[int, str] = field(default_factory=dict)

    def covers(self, user: str, project: str = "") -> bool:
        """Return whether it covers that user's jobs of that project."""
        return self.user in ("", user) and self.project in ("", project)

    @property
    def whose(self) -> str:
        """ " of ada, project llm": "" where it is for all."""
        parts = [self.user, f"project {self.project}" if self.project else ""]
        said = ", ".join(part for part in parts if part)
        return f" of {said}" if said else ""


@dataclass(frozen=True)
class Spending:
    """A ledger segment with its user and project."""

    job_id: str
    user: str
    stretch: Segment
    project: str = ""


@dataclass(frozen=True)
class StorageSpending:
    """What a job's checkpoints cost in the month, and per hour of late."""

    user: str
    microusd: int
    microusd_per_h: int
    project: str = ""


@dataclass(frozen=True)
class BudgetStatus:
    """A budget now. `microusd_per_h` is the burn rate: of machines that run, and of checkpoints.
    `forecast` is for the end of the month, at that rate; one of ten lies below and above at the
    rates of the last days. `reached_at_us`: when it is used up at the present rate, 0 for not this
    month."""

    budget: Budget
    since_us: int
    until_us: int
    spent_microusd: int
    microusd_per_h: int
    mean_microusd_per_h: int  # of the last 24 h
    forecast: Estimate
    reached_at_us: int = 0

    def percent(self, microusd: float) -> float:
        return 100 * microusd / self.budget.microusd


def standing(
    budget: Budget,
    rows: Sequence[Spending],
    month: tuple[int, int],
    now_us: int,
    carried: Sequence[StorageSpending] = (),
) -> BudgetStatus:
    """`month` is the one that `now_us` is in, and `carried` of it."""
    since_us, until_us = month
    mine = [row.stretch for row in rows if budget.covers(row.user, row.project)]
    extra = [one for one in carried if budget.covers(one.user, one.project)]
    extra_rate = sum(one.microusd_per_h for one in extra)
    spent = sum(one.spent(since_us, min(until_us, now_us)) for one in mine)
    spent += sum(one.microusd for one in extra)
    rate = sum(one.rate_microusd_per_h for one in mine if one.running) + extra_rate
    days = [
        sum(one.spent(now_us - (n + 1) * DAY_US, now_us - n * DAY_US) for one in mine) / 24
        + extra_rate
        for n in range(HISTORY_DAYS)
    ]
    begun_us = min((one.start_us for one in mine), default=now_us)
    known = [day for n, day in enumerate(days) if now_us - (n + 1) * DAY_US >= begun_us]
    left_h = (until_us - now_us) / US_PER_H
    ends = spent + rate * left_h
    spread = estimate_at_completion(spent, left_h, [0.0], known) or Estimate(ends, ends, ends)
    forecast = Estimate(min(spread.low, ends), ends, max(spread.high, ends))
    reached_us = 0
    if rate and spent < budget.microusd:
        at_us = now_us + (budget.microusd - spent) * US_PER_H // rate
        reached_us = at_us if at_us < until_us else 0
    return BudgetStatus(
        budget, since_us, until_us, spent, rate, round(days[0]), forecast, reached_us
    )


@dataclass(frozen=True)
class Crossing:
    """A threshold that was crossed. `key` is the same for the same one in the same month."""

    budget: Budget
    kind: str
    percent: int
    key: str
    text: str

    @property
    def route(self) -> str:
        return self.budget.routes.get(self.percent, "")


def crossings(
    found: BudgetStatus, told: Collection[str], when: Callable[[int], str]
) -> Iterator[Crossing]:
    """Yield thresholds that were not alerted this month: spent, or expected at the present rate.

    A forecast below what is already spent is left out. `when` formats a time.
    """
    budget = found.budget
    spent = found.percent(found.spent_microusd)
    ends = found.percent(found.forecast.middle)
    period = when(found.since_us)[:7]
    whose = budget.whose
    have = f"${found.spent_microusd / 1e6:,.2f} of ${budget.microusd / 1e6:,.2f}"
    rate = f"${found.microusd_per_h / 1e6:,.2f}/h now"
    for percent in THRESHOLDS:
        if spent >= percent:
            kind, text = ACTUAL, f"{percent} % of the budget {budget.name}{whose} is spent: {have}"
        elif ends >= percent:
            low, high = (value / 1e6 for value in (found.forecast.low, found.forecast.high))
            kind = FORECAST
            text = (
                f"the budget {budget.name}{whose} will be {percent} % spent in this month: "
                f"{have} so far, ${found.forecast.middle / 1e6:,.2f} expected "
                f"(${low:,.2f} to ${high:,.2f})"
            )
        else:
            continue
        text += f", {rate}"
        if found.reached_at_us:
            text += f", used up on {when(found.reached_at_us)[:16]}Z"
        key = f"budget:{budget.name}:{period}:{kind}:{percent}"
        if key not in told:
            yield Crossing(budget, kind, percent, key, text)


def crossed(
    spent_microusd: int,
    ends_microusd: int | None,
    most_microusd: int,
    told: Collection[tuple[str, int]],
    route: Callable[[int], str],
) -> list[tuple[str, int]]:
    """Return the (ACTUAL or FORECAST, percent) of a job's own limit that were not alerted yet.

    Of several for one route the highest. `ends_microusd` is the expected final cost, None if
    unknown. A forecast below what is already spent is left out.
    """
    highest: dict[tuple[str, str], int] = {}
    for percent in THRESHOLDS:
        if 100 * spent_microusd >= percent * most_microusd:
            highest[ACTUAL, route(percent)] = percent
        elif ends_microusd is not None and 100 * ends_microusd >= percent * most_microusd:
            highest[FORECAST, route(percent)] = percent
    known: dict[tuple[str, str], int] = {}
    for kind, percent in told:
        known[kind, route(percent)] = max(percent, known.get((kind, route(percent)), 0))
    new = [(kind, p) for (kind, to), p in highest.items() if p > known.get((kind, to), 0)]
    return sorted(new, key=lambda one: (one[0] == FORECAST, one[1]))


@dataclass(frozen=True)
class Plan:
    """What a job may still cost according to its file.

    By `max_cost_usd` (what is left of it) and by `max_duration` or its deadline (the hours left); 0
    if not bounded. `once_microusd` may be spent on its data beside its machines, within
    `max_cost_usd`.
    """

    user: str
    microusd_per_h: int
    max_cost_left_microusd: int = 0
    hours_left: float = 0.0
    project: str = ""
    once_microusd: int = 0

    def projected(self) -> int:
        """Micro-USD: the smaller of both bounds; without any, its next hour."""
        hours = self.hours_left or 1.0
        by_time = round(self.microusd_per_h * hours) + self.once_microusd
        most = self.max_cost_left_microusd
        if most and not self.hours_left:
            return most
        return min(by_time, most) if most else by_time


def refusal(found: BudgetStatus, running: Sequence[Plan], new: Plan) -> str:
    """Why a job may not begin: committed (what is spent, and what unfinished jobs may cost yet) and
    projected (what it may cost itself) are more than the budget. "" where it may."""
    budget = found.budget
    if not budget.covers(new.user, new.project):
        return ""
    open_ = sum(plan.projected() for plan in running if budget.covers(plan.user, plan.project))
    committed, more = found.spent_microusd + open_, new.projected()
    if committed + more <= budget.microusd:
        return ""
    return (
        f"the budget {budget.name} has ${budget.microusd / 1e6:,.2f} this month: "
        f"${found.spent_microusd / 1e6:,.2f} spent, ${open_ / 1e6:,.2f} committed to unfinished "
        f"jobs, and this one may cost ${more / 1e6:,.2f}"
    )
