"""The duty of budgets: who is told once, who is paused, and who is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from spotd.domain.events import Event, Severity
from spotd.domain.job import Desired
from spotd.domain.plan import ChangeNode
from spotd.domain.states import LeaveReason, NodeState
from spotd.money.budget import Budget
from spotd.observe.budgets import Budgets
from spotd.store.budget_queries import OVERRIDE, override_key
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig
from tests.spotd.store.build import submission


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def look(rig: Rig, *budgets: Budget) -> None:
    Budgets(lambda: budgets, rig.clock).keep(rig.store)


def desired(rig: Rig, name: str) -> Desired:
    job = rig.store.jobs.find(name)
    assert job is not None
    return job.desired


def month_of_ten(rig: Rig, user: str = "") -> Budget:
    """A machine of ada's that costs $19.93 an hour has run for half of one; $10 is the budget.
    (In the first half hour of a month there is less on the bill.)"""
    rig.launch(rig.submit(ago_s=2000), SPOT, ago_s=1800)
    spent = rig.store.load_view(rig.store.jobs.rows()[0].id, rig.clock.now_us())
    assert spent is not None
    return Budget("lab", max(1, min(9_000_000, spent.spent_microusd // 2)), user)


@pytest.fixture
def mid_month(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """At the 15th, whatever day it is."""
    at_us = 1_794_700_800_000_000
    monkeypatch.setattr(rig.clock, "now_us", lambda: at_us)
    return rig


@pytest.mark.req("BUD-02", "BUD-05")
def test_at_the_limit_the_job_is_told_to_save_and_stop(mid_month: Rig) -> None:
    rig = mid_month
    budget = replace(month_of_ten(rig, "ada"), routes={100: "finance"})
    rig.store.jobs.submit(replace(submission("j2", name="bobs"), user="bob"), rig.ago(60))
    look(rig, budget)
    assert desired(rig, "gpt") is Desired.PAUSE
    assert desired(rig, "bobs") is Desired.RUN
    rows = rig.store.alerts.due(rig.clock.now_us(), 99)
    assert sorted((row.event.kind, row.route) for row in rows) == [
        ("budget", "default"),
        ("budget", "default"),
        ("budget", "finance"),
        ("budget_stop", "default"),
    ]
    (stop,) = (row for row in rows if row.event.kind == "budget_stop")
    assert "gpt is paused: the budget lab" in stop.event.text
    crossed = [row.event.text for row in rows if row.event.kind == "budget"]
    assert all("the budget lab" in text and "most by gpt ($" in text for text in crossed)
    look(rig, budget)
    assert len(rig.store.alerts.due(rig.clock.now_us(), 99)) == 4, "each is told once a month"


def test_a_forecast_beyond_the_budget_is_a_warning(mid_month: Rig) -> None:
    rig = mid_month
    budget = replace(month_of_ten(rig), microusd=10**9)
    look(rig, budget)
    rows = rig.store.alerts.due(rig.clock.now_us(), 99)
    severities = {row.event.key.rpartition(":")[2]: row.event.severity for row in rows}
    assert severities == {"50": Severity.INFO, "80": Severity.INFO, "100": Severity.WARNING}
    assert desired(rig, "gpt") is Desired.RUN


def test_others_and_those_who_may_go_on(mid_month: Rig) -> None:
    rig = mid_month
    budget = month_of_ten(rig)
    look(rig, replace(budget, user="bob"))
    assert desired(rig, "gpt") is Desired.RUN, "another's budget"
    job_id = rig.store.jobs.rows()[0].id
    rig.store.events.add(
        job_id, Event(OVERRIDE, "ada", key=override_key(job_id)), rig.clock.now_us()
    )
    look(rig, budget)
    assert desired(rig, "gpt") is Desired.RUN, "somebody took it upon himself"
    look(rig)
    assert rig.store.events.keys("budget", 0), "which nothing takes back"


def test_below_the_limit_nobody_is_stopped(mid_month: Rig) -> None:
    rig = mid_month
    budget = month_of_ten(rig)
    look(rig, replace(budget, microusd=10**12))
    assert desired(rig, "gpt") is Desired.RUN
    assert rig.store.events.keys("budget", 0) == set()


@pytest.mark.req("BUD-02")
def test_of_a_jobs_own_limit_each_threshold_is_told_once_to_its_routes(mid_month: Rig) -> None:
    """At $19.93 an hour, of $16: half an hour is 62 %, 39 minutes are 80 %, and 49 all of it."""
    rig = mid_month
    job_id = rig.submit(ago_s=2000, text=JOB_FILE + "  budget: {max_cost_usd: 16}\n")
    rig.launch(job_id, SPOT, ago_s=1800)
    began_us = rig.clock.now_us()
    told = []
    for minute in range(25):
        Budgets(lambda: (), At(began_us + minute * 60_000_000)).keep(rig.store)
        rows = rig.store.events.of_kinds(job_id, ["cost_reached"])
        told += [(minute, row.event.data["percent"]) for row in rows[len(told) :]]
    assert told == [(0, 50), (9, 80), (19, 100)]
    first, *_, last = (row.event for row in rig.store.events.of_kinds(job_id, ["cost_reached"]))
    assert first.text.startswith(
        "gpt has spent 50 % of its max_cost_usd: $9.96 of $16.00, $19.93/h"
    )
    assert "used up on 2026-11-" in first.text
    assert "used up" not in last.text
    assert first.alert


@pytest.mark.req("BUD-02", "BUD-04")
def test_what_a_job_will_cost_is_told_before_it_is_spent_each_once_to_its_own_route(
    mid_month: Rig,
) -> None:
    """At $25.50 an hour, 3.5 s a step and 8,210 steps left, of $200: $40 spent, some $230 at its
    end, and it is told of 160 % of the limit, each threshold to whom it is for."""
    rig = mid_month
    routes = "routes: {50: ai-team, 80: ai-director, 100: finance}"
    budget = f"  budget: {{max_cost_usd: 140, {routes}}}\n"
    job_id = rig.submit(ago_s=6330, text=JOB_FILE + "  work: 10000 steps\n" + budget)
    first = rig.launch(job_id, SPOT, ago_s=6320)
    rig.train(first, ago_s=6270, until_s=2750, first=0, last=1190)
    second = rig.launch(job_id, OFFERS[2], ago_s=2790)
    rig.leave(first, 2720, LeaveReason.PREEMPTED, "preempt notice")
    rig.train(second, ago_s=2730, until_s=30, first=1190, last=1790)
    budgets = Budgets(lambda: (), rig.clock)
    for _ in range(2):
        budgets.keep(rig.store)
    found = [row.event for row in rig.store.events.of_kinds(job_id, ["cost_forecast"])]
    assert [event.data["percent"] for event in found] == [50, 80, 100]
    assert found[2].text.startswith(
        "gpt will have spent 100 % of its max_cost_usd of $140.00 by its end: $39.69 so far, $2"
    )
    assert "(nine of ten: $1" in found[2].text
    sent = {(row.event.kind, row.route) for row in rig.store.alerts.due(rig.clock.now_us(), 99)}
    assert {route for kind, route in sent if kind == "cost_forecast"} == {
        "ai-team",
        "ai-director",
        "finance",
    }
    later = At(rig.clock.now_us() + 3 * 3600 * 1_000_000)  # $116 of $140 are spent
    Budgets(lambda: (), later).keep(rig.store)
    reached = [row.event for row in rig.store.events.of_kinds(job_id, ["cost_reached"])]
    assert [event.data["percent"] for event in reached] == [50, 80]
    assert len(rig.store.events.of_kinds(job_id, ["cost_forecast"])) == 3, "each is told once"


@pytest.mark.parametrize(
    ("store", "percent"), [("s3://runs", [50, 80]), ("gs://runs", [50, 80, 100])]
)
def test_what_its_checkpoints_cost_until_then_is_part_of_what_is_foretold(
    mid_month: Rig, store: str, percent: list[int]
) -> None:
    """Of $196: $194.51 for machines, and $0.29 an hour for 8 h of what leaves their cloud."""
    rig = mid_month
    rig.checkpoint_store = store
    routes = "routes: {50: ai-team, 80: ai-director, 100: finance}"
    budget = f"  budget: {{max_cost_usd: 196, {routes}}}\n"
    job_id = rig.submit(ago_s=6330, text=JOB_FILE + "  work: 10000 steps\n" + budget)
    node = rig.launch(job_id, SPOT, ago_s=6320)
    rig.train(node, ago_s=6270, until_s=30, first=0, last=1790)
    look(rig)
    found = [row.event for row in rig.store.events.of_kinds(job_id, ["cost_forecast"])]
    assert [event.data["percent"] for event in found] == percent
    assert rig.store.events.of_kinds(job_id, ["cost_reached"]) == []


def test_of_a_job_that_does_not_say_how_much_there_is_to_do_nothing_is_foretold(
    mid_month: Rig,
) -> None:
    rig = mid_month
    job_id = rig.submit(ago_s=6330, text=JOB_FILE + "  budget: {max_cost_usd: 100}\n")
    node = rig.launch(job_id, SPOT, ago_s=6320)
    rig.train(node, ago_s=6270, until_s=30, first=0, last=1190)
    look(rig)
    assert rig.store.events.of_kinds(job_id, ["cost_forecast", "cost_reached"]) == []


def test_a_job_without_a_limit_of_its_own_has_no_thresholds(mid_month: Rig) -> None:
    rig = mid_month
    rig.launch(rig.submit(ago_s=2000), SPOT, ago_s=1800)
    look(rig)
    assert rig.store.events.of_kinds(rig.store.jobs.rows()[0].id, ["cost_reached"]) == []


@pytest.mark.req("BUD-06")
@pytest.mark.parametrize("dry_run", [True, False])
def test_an_outlier_is_told_of_once_a_day_and_paused_where_the_policy_says_so(
    mid_month: Rig, dry_run: bool
) -> None:
    """Twelve jobs had a machine for an hour, each on another day, and this one for a day."""
    rig = mid_month
    text = JOB_FILE + "  project: llm\n"
    for day in range(12):
        old = rig.submit(f"old{day}", ago_s=(day + 3) * 86_400, text=text)
        rig.launch(old, SPOT, ago_s=(day + 2) * 86_400)
        node = rig.store.nodes.of_job(old)[0]
        gone_us = rig.ago((day + 2) * 86_400 - 3600)
        left = {"state": NodeState.GONE, "leave_reason": LeaveReason.DONE}
        rig.commit(old, gone_us, ChangeNode(node.id, left))
    job_id = rig.submit("greedy", ago_s=90_000, text=text)
    rig.launch(job_id, SPOT, ago_s=86_400)
    for _ in range(2):
        Budgets(lambda: (), rig.clock, lambda: dry_run).keep(rig.store)
    (told,) = (row.event for row in rig.store.events.of_kinds(job_id, ["outlier"]))
    assert told.alert
    assert "greedy of ada spent $" in told.text
    assert "of the project llm $19.93 a day (median of 12 days" in told.text
    assert ("would save and be paused" in told.text) is dry_run
    assert desired(rig, "greedy") is (Desired.RUN if dry_run else Desired.PAUSE)


class At:
    """A clock that stands."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us
