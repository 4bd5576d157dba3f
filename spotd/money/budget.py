"""Monthly budgets (UTC): spending, forecast, and the alerts that are due."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from providers.dollars import format_microusd, format_usd
from spotd.domain.units import DAY_US, US_PER_H
from spotd.money.formulas import Estimate, estimate_at_completion
from spotd.money.hour_breakdown import Segment

THRESHOLDS = (50, 80, 100)  # percent
ACTUAL, FORECAST = "actual", "forecast"
WITHIN, WILL_EXCEED, USED_UP = "within", "will exceed", "used up"
TOP_JOBS = 3  # that an alert names
HISTORY_DAYS = 7  # days from which the spread of the forecast is computed


@dataclass(frozen=True)
class Budget:
    """A monthly limit on machines and checkpoints, of all jobs or of a user's or a project's.

    `routes` are alert routes by threshold in percent; "default" is used for the others.
    """

    name: str
    microusd: int
    user: str = ""  # "": all users
    project: str = ""  # "": any project, or none
    routes: Mapping[int, str] = field(default_factory=dict)

    def covers(self, user: str, project: str = "") -> bool:
        """Return whether it covers that user's jobs of that project."""
        return self.user in ("", user) and self.project in ("", project)

    @property
    def scope_text(self) -> str:
        """The scope for messages, like " of ada, project llm"; "" for all jobs."""
        parts = [self.user, f"project {self.project}" if self.project else ""]
        scope = ", ".join(part for part in parts if part)
        return f" of {scope}" if scope else ""


@dataclass(frozen=True)
class Spending:
    """A ledger segment with its user and project."""

    job_id: str
    user: str
    stretch: Segment
    project: str = ""


@dataclass(frozen=True)
class StorageSpending:
    """The cost of a job's checkpoints in the month, and their present cost per hour."""

    user: str
    microusd: int
    microusd_per_h: int
    project: str = ""


@dataclass(frozen=True)
class BudgetStatus:
    """The state of a budget.

    `microusd_per_h` is the burn rate of running machines and of checkpoints. `forecast` is the
    spending at the end of the month at that rate; its bounds are the 10 % and 90 % quantiles at the
    rates of the last days. `reached_at_us` is when the budget is used up at the present rate, 0 for
    not this month.
    """

    budget: Budget
    since_us: int
    until_us: int
    spent_microusd: int
    microusd_per_h: int
    mean_microusd_per_h: int  # of the last 24 h
    forecast: Estimate
    reached_at_us: int = 0

    @property
    def state(self) -> str:
        """One of USED_UP, WILL_EXCEED (the forecast is beyond the budget) and WITHIN."""
        if self.spent_microusd >= self.budget.microusd:
            return USED_UP
        return WILL_EXCEED if self.forecast.middle > self.budget.microusd else WITHIN

    def percent(self, microusd: float) -> float:
        return 100 * microusd / self.budget.microusd


def budget_status(
    budget: Budget,
    rows: Sequence[Spending],
    month: tuple[int, int],
    now_us: int,
    storage_spending: Sequence[StorageSpending] = (),
) -> BudgetStatus:
    """Return the state of a budget.

    `month` is the (start, end) of the month of `now_us`, `storage_spending` is that of the month.
    """
    since_us, until_us = month
    segments = [row.stretch for row in rows if budget.covers(row.user, row.project)]
    storage = [item for item in storage_spending if budget.covers(item.user, item.project)]
    extra_rate = sum(item.microusd_per_h for item in storage)
    spent = sum(item.spent(since_us, min(until_us, now_us)) for item in segments)
    spent += sum(item.microusd for item in storage)
    rate = sum(item.rate_microusd_per_h for item in segments if item.running) + extra_rate
    days = [
        sum(item.spent(now_us - (n + 1) * DAY_US, now_us - n * DAY_US) for item in segments) / 24
        + extra_rate
        for n in range(HISTORY_DAYS)
    ]
    first_us = min((item.start_us for item in segments), default=now_us)
    known_days = [day for n, day in enumerate(days) if now_us - (n + 1) * DAY_US >= first_us]
    left_h = (until_us - now_us) / US_PER_H
    expected = spent + rate * left_h
    spread = estimate_at_completion(spent, left_h, [0.0], known_days) or Estimate(
        expected, expected, expected
    )
    forecast = Estimate(min(spread.low, expected), expected, max(spread.high, expected))
    reached_us = 0
    if rate and spent < budget.microusd:
        at_us = now_us + (budget.microusd - spent) * US_PER_H // rate
        reached_us = at_us if at_us < until_us else 0
    return BudgetStatus(
        budget, since_us, until_us, spent, rate, round(days[0]), forecast, reached_us
    )


def top_spenders(
    budget: Budget, rows: Sequence[Spending], month: tuple[int, int], now_us: int
) -> list[tuple[str, int]]:
    """Return the ids of the jobs that spent the most of a budget this month, with that sum."""
    since_us, until_us = month
    sums: dict[str, int] = {}
    for row in rows:
        if budget.covers(row.user, row.project):
            spent = row.stretch.spent(since_us, min(until_us, now_us))
            sums[row.job_id] = sums.get(row.job_id, 0) + spent
    spenders = [(job_id, spent) for job_id, spent in sums.items() if spent]
    return sorted(spenders, key=lambda item: (-item[1], item[0]))[:TOP_JOBS]


@dataclass(frozen=True)
class Crossing:
    """A threshold that was crossed. `key` identifies the budget, threshold and month."""

    budget: Budget
    kind: str
    percent: int
    key: str
    text: str

    @property
    def route(self) -> str:
        return self.budget.routes.get(self.percent, "")


def crossings(
    status: BudgetStatus,
    alerted: Collection[str],
    when: Callable[[int], str],
    jobs: Sequence[str] = (),
) -> Iterator[Crossing]:
    """Yield crossed thresholds whose key is not in `alerted`: spent, or expected at this rate.

    A forecast of a threshold that is already spent is left out. `when` formats a time.
    `jobs` name those that spent the most.
    """
    budget = status.budget
    spent_percent = status.percent(status.spent_microusd)
    expected_percent = status.percent(status.forecast.middle)
    period = when(status.since_us)[:7]
    scope = budget.scope_text
    amounts = f"{format_microusd(status.spent_microusd)} of {format_microusd(budget.microusd)}"
    rate = f"{format_microusd(status.microusd_per_h)}/h now"
    for percent in THRESHOLDS:
        if spent_percent >= percent:
            kind, text = (
                ACTUAL,
                f"{percent} % of the budget {budget.name}{scope} is spent: {amounts}",
            )
        elif expected_percent >= percent:
            low, high = (value / 1e6 for value in (status.forecast.low, status.forecast.high))
            kind = FORECAST
            text = (
                f"the budget {budget.name}{scope} will be {percent} % spent in this month: "
                f"{amounts} so far, {format_microusd(status.forecast.middle)} expected "
                f"({format_usd(low)} to {format_usd(high)})"
            )
        else:
            continue
        text += f", {rate}"
        if status.reached_at_us:
            text += f", used up on {when(status.reached_at_us)[:16]}Z"
        if jobs:
            text += f"; most by {', '.join(jobs)}"
        key = f"budget:{budget.name}:{period}:{kind}:{percent}"
        if key not in alerted:
            yield Crossing(budget, kind, percent, key, text)


def new_job_alerts(
    spent_microusd: int,
    ends_microusd: int | None,
    max_microusd: int,
    alerted: Collection[tuple[str, int]],
    route: Callable[[int], str],
) -> list[tuple[str, int]]:
    """Return the (ACTUAL or FORECAST, percent) of a job's own limit that were not alerted yet.

    Only the highest per route is returned. `ends_microusd` is the expected final cost, None if
    unknown. A forecast of a threshold that is already spent is left out.
    """
    highest: dict[tuple[str, str], int] = {}
    for percent in THRESHOLDS:
        if 100 * spent_microusd >= percent * max_microusd:
            highest[ACTUAL, route(percent)] = percent
        elif ends_microusd is not None and 100 * ends_microusd >= percent * max_microusd:
            highest[FORECAST, route(percent)] = percent
    alerted_percent: dict[tuple[str, str], int] = {}
    for kind, percent in alerted:
        alerted_percent[kind, route(percent)] = max(
            percent, alerted_percent.get((kind, route(percent)), 0)
        )
    new = [
        (kind, percent)
        for (kind, route_name), percent in highest.items()
        if percent > alerted_percent.get((kind, route_name), 0)
    ]
    return sorted(new, key=lambda crossing: (crossing[0] == FORECAST, crossing[1]))


@dataclass(frozen=True)
class Plan:
    """The most that a job may still cost according to its file.

    The bounds are the remaining `max_cost_usd`, and the hours left until `max_duration` or the
    deadline; 0 if not bounded. `once_microusd` may be spent on data in addition to machines, within
    `max_cost_usd`.
    """

    user: str
    microusd_per_h: int
    max_cost_left_microusd: int = 0
    hours_left: float = 0.0
    project: str = ""
    once_microusd: int = 0

    def projected(self) -> int:
        """Return the smaller of both bounds in micro-USD; without any, the cost of one hour."""
        hours = self.hours_left or 1.0
        by_time = round(self.microusd_per_h * hours) + self.once_microusd
        most = self.max_cost_left_microusd
        if most and not self.hours_left:
            return most
        return min(by_time, most) if most else by_time


def refusal(
    status: BudgetStatus, running: Sequence[Plan], new: Plan, name: str = "this one"
) -> str:
    """Return why a job may not start, or "".

    The spending so far, the projected cost of unfinished jobs and that of the new job must not be
    more than the budget. `name` is that of the job.
    """
    budget = status.budget
    if not budget.covers(new.user, new.project):
        return ""
    committed_jobs = sum(
        plan.projected() for plan in running if budget.covers(plan.user, plan.project)
    )
    committed, more = status.spent_microusd + committed_jobs, new.projected()
    if committed + more <= budget.microusd:
        return ""
    return (
        f"the budget {budget.name} has {format_microusd(budget.microusd)} this month: "
        f"{format_microusd(status.spent_microusd)} spent, {format_microusd(committed_jobs)} "
        "committed to "
        f"unfinished jobs, and {name} may cost {format_microusd(more)}"
    )
