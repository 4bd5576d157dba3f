"""What is usual for a project, and what is far outside of it."""

from __future__ import annotations

import pytest

from spotd.domain.units import DAY_US
from spotd.money.budget import Spending
from spotd.money.hour_breakdown import Segment
from spotd.money.outliers import LEAST_DAYS, ProjectBaseline, outliers, usual

NOW = 1_800_230_400_000_000  # 2027-01-18: 30 days before it are of two months
USD = 1_000_000


def ran(job_id: str, day: int, usd_a_day: float, project: str = "llm") -> Spending:
    """The whole of the `day`-th day before now; 0: the last 24 h."""
    end_us = NOW - day * DAY_US
    rate = round(usd_a_day * USD / 24)
    return Spending(job_id, "ada", Segment(end_us - DAY_US, end_us, rate), project)


def test_the_bound_by_hand() -> None:
    """Median 100, MAD 10: 100 + 5 * 1.4826 * 10 = 174.13, and twice the median is more."""
    amounts = [80, 90, 90, 100, 100, 100, 110, 110, 120, 100]
    assert usual(amounts) == ProjectBaseline(10, 100, 200)
    wide = [40, 60, 60, 100, 100, 100, 140, 140, 160, 100]  # MAD 40
    assert usual(wide) == ProjectBaseline(10, 100, round(100 + 5 * 1.4826 * 40))
    assert usual(amounts[1:]) is None
    assert len(amounts) == LEAST_DAYS


@pytest.mark.req("CST-13")
@pytest.mark.parametrize(
    ("today", "project", "result"),
    [(250, "llm", ["new"]), (199, "llm", []), (250, "vision", [])],
    ids=["far outside", "within", "a project without history"],
)
def test_a_job_far_outside_its_projects_history(
    today: float, project: str, result: list[str]
) -> None:
    history = [ran("old", day, 100) for day in range(1, 31)]
    rows = [*history, ran("new", 0, today, project)]
    assert [item.job_id for item in outliers(rows, NOW)] == result


def test_what_is_older_than_a_month_is_no_history() -> None:
    history = [ran("old", day, 100) for day in range(31, 40)]
    assert outliers([*history, ran("new", 0, 10_000)], NOW) == []
