"""Find jobs that spend far more in a day than jobs of their project did before."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotd.domain.units import DAY_US
from spotd.money.budget import Spending

HISTORY_DAYS = 30  # before the last 24 h, whatever the months
LEAST_DAYS = 10  # minimum number of days of jobs with any spend, for a baseline
DEVIATIONS = 5.0
MAD_TO_SIGMA = 1.4826  # of a normal distribution: 1 / its 75 % quantile
LEAST_TIMES = 2.0  # minimum factor above the median, for projects whose days are all alike


@dataclass(frozen=True)
class ProjectBaseline:
    """The daily spending of a project's jobs: number of days, median, and outlier bound."""

    days: int
    median_microusd: int
    bound_microusd: int


def usual(amounts: Sequence[int]) -> ProjectBaseline | None:
    """Return the baseline of daily amounts; None with fewer than LEAST_DAYS.

    The bound is median + 5 * 1.4826 * MAD (the median absolute deviation), and at least twice the
    median.
    """
    if len(amounts) < LEAST_DAYS:
        return None
    median = statistics.median(amounts)
    mad = statistics.median(abs(amount - median) for amount in amounts)
    bound = max(median + DEVIATIONS * MAD_TO_SIGMA * mad, LEAST_TIMES * median)
    return ProjectBaseline(len(amounts), round(median), round(bound))


@dataclass(frozen=True)
class Outlier:
    """A job with its spending in the last 24 h, and its project's baseline."""

    job_id: str
    user: str
    project: str
    microusd: int
    usual: ProjectBaseline


def outliers(rows: Iterable[Spending], now_us: int) -> list[Outlier]:
    """Return the jobs whose spending in the last 24 h is above their project's bound."""
    by_job: dict[str, list[Spending]] = {}
    for row in rows:
        by_job.setdefault(row.job_id, []).append(row)
    history: dict[str, list[int]] = {}
    for job_rows in by_job.values():
        days = (_day(job_rows, now_us - n * DAY_US) for n in range(1, HISTORY_DAYS + 1))
        history.setdefault(job_rows[0].project, []).extend(spent for spent in days if spent)
    result = []
    for job_id, job_rows in sorted(by_job.items()):
        spent, known = _day(job_rows, now_us), usual(history[job_rows[0].project])
        if known is not None and spent > known.bound_microusd:
            result.append(Outlier(job_id, job_rows[0].user, job_rows[0].project, spent, known))
    return result


def _day(rows: Iterable[Spending], until_us: int) -> int:
    return sum(row.stretch.spent(until_us - DAY_US, until_us) for row in rows)
