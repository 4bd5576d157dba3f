"""Find jobs that spend far more in a day than jobs of their project did before."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotd.money.budget import DAY_US, Spending

HISTORY_DAYS = 30  # before the last 24 h, whatever the months
LEAST_DAYS = 10  # days of jobs with any spend, before anything is called usual
DEVIATIONS = 5.0
MAD_TO_SIGMA = 1.4826  # of a normal distribution: 1 / its 75 % quantile
LEAST_TIMES = 2.0  # of the median: where all days are alike, a little more is no outlier


@dataclass(frozen=True)
class ProjectBaseline:
    """What jobs of a project spent per day: the number of days, and the bound."""

    days: int
    median_microusd: int
    bound_microusd: int


def usual(amounts: Sequence[int]) -> ProjectBaseline | None:
    """The bound is median + 5 * 1.4826 * MAD, and at least twice the median, MAD the median of
    what each differs from the median. None with fewer than LEAST_DAYS amounts."""
    if len(amounts) < LEAST_DAYS:
        return None
    median = statistics.median(amounts)
    mad = statistics.median(abs(one - median) for one in amounts)
    bound = max(median + DEVIATIONS * MAD_TO_SIGMA * mad, LEAST_TIMES * median)
    return ProjectBaseline(len(amounts), round(median), round(bound))


@dataclass(frozen=True)
class Outlier:
    """A job with what it spent in the last 24 h, and what is usual for its project."""

    job_id: str
    user: str
    project: str
    microusd: int
    usual: ProjectBaseline


def outliers(rows: Iterable[Spending], now_us: int) -> list[Outlier]:
    """The jobs of which the last 24 h are beyond what days of their project's jobs were before."""
    by_job: dict[str, list[Spending]] = {}
    for row in rows:
        by_job.setdefault(row.job_id, []).append(row)
    history: dict[str, list[int]] = {}
    for mine in by_job.values():
        days = (_day(mine, now_us - n * DAY_US) for n in range(1, HISTORY_DAYS + 1))
        history.setdefault(mine[0].project, []).extend(spent for spent in days if spent)
    found = []
    for job_id, mine in sorted(by_job.items()):
        spent, known = _day(mine, now_us), usual(history[mine[0].project])
        if known is not None and spent > known.bound_microusd:
            found.append(Outlier(job_id, mine[0].user, mine[0].project, spent, known))
    return found


def _day(rows: Iterable[Spending], until_us: int) -> int:
    return sum(row.stretch.spent(until_us - DAY_US, until_us) for row in rows)
