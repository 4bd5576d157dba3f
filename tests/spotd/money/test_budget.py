"""Budgets of a month: what is spent, what will be, who is told, and what may not begin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotd.money.budget import (
    Budget,
    Crossing,
    Plan,
    Spending,
    StorageSpending,
    budget_status,
    crossings,
    new_job_alerts,
    refusal,
)
from spotd.money.focus import iso
from tests.spotd.money.build import H, stretch

DAY = 24 * H
NOVEMBER = 1_793_491_200_000_000
MONTH = (NOVEMBER, NOVEMBER + 30 * DAY)
LAB = Budget("lab", 10_000_000_000, routes={50: "ai-team", 80: "ai-director", 100: "finance"})
ADA = Budget("ada", 1_000_000_000, user="ada")


def spending(
    user: str, from_d: float, to_d: float, usd_per_h: float, running: bool = False
) -> Spending:
    base = NOVEMBER / H
    part = stretch(base + 24 * from_d, base + 24 * to_d, round(usd_per_h * 1e6), running=running)
    return Spending("j", user, part)


def test_what_is_spent_of_whom_in_this_month() -> None:
    rows = [
        spending("ada", -5, 1, 10),  # of which a day lies in the month
        spending("bob", 0, 2, 5),
        spending("ada", 1.5, 2, 1, running=True),
    ]
    lab = budget_status(LAB, rows, MONTH, NOVEMBER + 2 * DAY)
    assert (lab.spent_microusd, lab.microusd_per_h) == (492_000_000, 1_000_000)
    ada = budget_status(ADA, rows, MONTH, NOVEMBER + 2 * DAY)
    assert ada.spent_microusd == 252_000_000
    assert lab.mean_microusd_per_h == 5_500_000
    assert budget_status(replace(ADA, user="eve"), rows, MONTH, NOVEMBER + DAY).spent_microusd == 0


def test_checkpoints_count_in_what_is_spent_in_the_rate_and_in_where_it_ends() -> None:
    rows = [spending("ada", 0, 2, 5, running=True)]
    extra = [
        StorageSpending("ada", 90_000_000, 1_000_000),
        StorageSpending("bob", 7_000_000, 2_000_000, "llm"),
    ]
    ada = budget_status(ADA, rows, MONTH, NOVEMBER + 2 * DAY, extra)
    assert (ada.spent_microusd, ada.microusd_per_h) == (330_000_000, 6_000_000)
    assert ada.mean_microusd_per_h == 6_000_000
    assert ada.forecast.middle == pytest.approx(330e6 + 28 * 24 * 6e6)
    assert ada.reached_at_us == NOVEMBER + 2 * DAY + 670_000_000 * H // 6_000_000
    llm = budget_status(replace(LAB, project="llm"), rows, MONTH, NOVEMBER + 2 * DAY, extra)
    assert (llm.spent_microusd, llm.microusd_per_h) == (7_000_000, 2_000_000)


def test_where_it_will_end_and_when_it_is_used_up() -> None:
    """$10 an hour since two days, and before that $5: between $150 a day and $240 a day."""
    rows = [spending("ada", -4, 3, 5), spending("ada", 3, 5, 10, running=True)]
    result = budget_status(ADA, rows, MONTH, NOVEMBER + 5 * DAY)
    assert result.spent_microusd == 840_000_000
    assert result.reached_at_us == NOVEMBER + 5 * DAY + 16 * H
    low, high = result.forecast.low, result.forecast.high
    assert low == pytest.approx(840e6 + 600 * 5e6)
    assert result.forecast.middle == high == pytest.approx(840e6 + 600 * 10e6)
    idle = budget_status(ADA, rows[:1], MONTH, NOVEMBER + 5 * DAY).forecast
    assert (idle.low, idle.middle) == (360e6, 360e6)
    assert idle.high > 360e6


def alerted(result: list[Crossing]) -> list[tuple[str, int, str]]:
    return [(item.kind, item.percent, item.route) for item in result]


def ahead(
    rows: list[Spending], at_d: float, known: set[str], budget: Budget = LAB
) -> list[Crossing]:
    result = budget_status(budget, rows, MONTH, NOVEMBER + round(at_d * DAY))
    new = list(crossings(result, known, iso))
    known |= {item.key for item in new}
    return new


@pytest.mark.req("BUD-01", "BUD-02", "BUD-04")
def test_each_threshold_is_told_once_a_month_to_its_own_route() -> None:
    """$20 an hour, $14,400 in a month of $10,000: forecasts first, then what is spent."""
    known: set[str] = set()

    def rows(at_d: float) -> list[Spending]:
        return [spending("ada", 0, at_d, 20, running=True)]

    first = ahead(rows(1), 1, known)
    assert alerted(first) == [
        ("forecast", 50, "ai-team"),
        ("forecast", 80, "ai-director"),
        ("forecast", 100, "finance"),
    ]
    assert "$14,400.00 expected" in first[2].text
    assert "used up on 2026-11-21" in first[2].text
    assert ahead(rows(2), 2, known) == []
    assert alerted(ahead(rows(10.5), 10.5, known)) == [("actual", 50, "ai-team")]
    assert ahead(rows(10.6), 10.6, known) == []
    assert alerted(ahead(rows(21), 21, known)) == [
        ("actual", 80, "ai-director"),
        ("actual", 100, "finance"),
    ]
    december = (MONTH[1], MONTH[1] + 31 * DAY)
    again = [spending("ada", 0, 31, 20, running=True)]
    result = budget_status(LAB, again, december, NOVEMBER + 31 * DAY)
    assert [item.kind for item in crossings(result, known, iso)] == ["forecast"] * 3, "a new month"


def test_the_alert_names_user_amount_and_budget() -> None:
    (item, *_) = ahead([spending("ada", 0, 2, 20)], 2, set(), ADA)
    assert "50 % of the budget ada of ada is spent: $960.00 of $1,000.00" in item.text
    assert item.route == ""


def test_what_is_committed_and_projected_must_fit() -> None:
    result = budget_status(ADA, [spending("ada", 0, 1, 20)], MONTH, NOVEMBER + DAY)
    assert result.spent_microusd == 480_000_000
    running = [Plan("ada", 10_000_000, 300_000_000), Plan("bob", 1, 900_000_000)]
    assert refusal(result, running, Plan("ada", 1, 220_000_000)) == ""
    text = refusal(result, running, Plan("ada", 1, 220_000_001))
    assert "$480.00 spent, $300.00 committed to unfinished jobs" in text
    assert refusal(result, running, Plan("bob", 1, 999_000_000)) == "", "another's budget"


def test_a_budget_of_a_project() -> None:
    llm = Budget("llm", 10**9, project="llm")
    mine = replace(spending("ada", 0, 1, 10), project="llm")
    rows = [mine, spending("ada", 0, 1, 5), replace(spending("bob", 0, 1, 1), project="llm")]
    result = budget_status(llm, rows, MONTH, NOVEMBER + DAY)
    assert result.spent_microusd == 264_000_000
    assert refusal(result, [], Plan("ada", 10**10)) == ""
    assert refusal(result, [], Plan("ada", 10**10, project="llm"))
    both = replace(llm, user="ada")
    assert budget_status(both, rows, MONTH, NOVEMBER + DAY).spent_microusd == 240_000_000
    assert (both.scope_text, llm.scope_text, LAB.scope_text) == (
        " of ada, project llm",
        " of project llm",
        "",
    )


@pytest.mark.parametrize(
    ("plan", "usd"),
    [
        (Plan("ada", 10_000_000), 10.0),
        (Plan("ada", 10_000_000, hours_left=5), 50.0),
        (Plan("ada", 10_000_000, max_cost_left_microusd=70_000_000), 70.0),
        (Plan("ada", 10_000_000, 70_000_000, hours_left=5), 50.0),
        (Plan("ada", 10_000_000, 20_000_000, hours_left=5), 20.0),
    ],
)
def test_what_a_job_may_cost_yet(plan: Plan, usd: float) -> None:
    assert plan.projected() == usd * 1e6


A, F = "actual", "forecast"
OWN = {50: "ai-team", 80: "ai-director", 100: "finance"}


@pytest.mark.req("BUD-02")
@pytest.mark.parametrize(
    ("spent", "ends", "alerted", "routes", "expected"),
    [
        (49, None, [], {}, []),
        (50, None, [], {}, [(A, 50)]),
        (100, None, [], {}, [(A, 100)]),  # of several for one route the highest
        (100, None, [], OWN, [(A, 50), (A, 80), (A, 100)]),
        (85, None, [(A, 50)], {}, [(A, 80)]),
        (85, None, [(A, 80)], {}, []),
        (100, None, [(A, 80)], OWN, [(A, 50), (A, 100)]),
        (10, 90, [], {}, [(F, 80)]),
        (10, 90, [], OWN, [(F, 50), (F, 80)]),
        (60, 120, [], OWN, [(A, 50), (F, 80), (F, 100)]),  # what is spent is not a forecast
        (60, 120, [(F, 100), (A, 50)], {}, []),
        (60, 120, [(F, 80)], {}, [(A, 50), (F, 100)]),
    ],
)
def test_what_of_a_jobs_own_limit_is_news(
    spent: int,
    ends: int | None,
    alerted: list[tuple[str, int]],
    routes: dict[int, str],
    expected: list[tuple[str, int]],
) -> None:
    assert new_job_alerts(spent, ends, 100, alerted, lambda p: routes.get(p, "")) == expected
