"""What holds of any history: machines that come up, train, are taken away, lost, hedged and paused,
at prices that change, in several clouds and over months. All in integers: to the microsecond and
the micro-dollar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotd.money.counterfactual import AS_IS, BEST
from spotd.money.document import report_data
from spotd.money.focus import COLUMNS, Row, days, months, rows_of
from spotd.money.focus_rules import problems
from spotd.money.hour_breakdown import END_US, Machine, Save, Segment, Steps, TimeUse
from spotd.money.report import Account, Item, Kind, Report, by_name, report_of, together
from spotd.money.savings import savings_of
from tests.fixtures.examples import examples
from tests.spotd.money.build import H, M

NOVEMBER = 1_793_491_200_000_000  # 2026-11-01: histories begin within two days before it
CLOUDS = {
    "aws": ("us-east-1", "use1-az2", "p5.48xlarge"),
    "gcp": ("us-central1", "us-central1-a", "a3-highgpu-8g"),
    "azure": ("eastus", "eastus-1", "ND96isr_H100_v5"),
}
MONEY = settings(max_examples=examples(25), deadline=None)

times = st.integers(1, 300 * M)  # odd microseconds: nothing comes out even
prices = st.integers(0, 60_000_000)


@dataclass
class Life:
    """Where a history has come to."""

    at_us: int
    step: int = 0
    saved: int = 0
    generation: int = 0


@st.composite
def histories(draw: st.DrawFn) -> Account:
    """One job: attempts that follow one another, with pauses between."""
    life = Life(NOVEMBER - draw(st.integers(0, 48 * 60)) * M)
    machines: list[Machine] = []
    steps: list[Steps] = []
    saves: list[Save] = []
    reports = draw(st.booleans())
    for _ in range(draw(st.integers(1, 4))):
        life.generation += 1
        life.at_us += draw(st.one_of(st.just(0), times))  # a pause, or none to be had
        machines += _attempt(draw, life, steps, saves)
    extras = tuple(
        Item(kind, kind.value, "x", draw(st.integers(1, 999)) / 7, unit, draw(prices), cloud="aws")
        for kind, unit in (
            (Kind.STORAGE, "GB-Months"),
            (Kind.EGRESS, "GB"),
            (Kind.CONTROL, "Hours"),
        )
        if draw(st.booleans())
    )
    return Account(
        "j",
        draw(st.sampled_from(["gpt", "llama"])),
        draw(st.sampled_from(["ada", "bob", ""])),
        1,
        tuple(machines),
        steps=tuple(steps) if reports else (),
        saves=tuple(saves),
        extras=extras,
        project=draw(st.sampled_from(["llm", "vision", ""])),
    )


def _attempt(draw: st.DrawFn, life: Life, steps: list[Steps], saves: list[Save]) -> list[Machine]:
    """A machine, with another one beside it now and then, which loses."""
    asked_us = life.at_us
    ready_us = asked_us + draw(times)
    claimed_us = ready_us + draw(times)
    at_us = claimed_us + draw(times)
    first = life.saved + 1  # what was not saved is made again
    for _ in range(draw(st.integers(0, 3))):
        count, busy_us, late_us = draw(st.integers(1, 50)), draw(times), draw(st.integers(0, M))
        begin_us, at_us = at_us, at_us + busy_us + draw(st.integers(0, 10 * M))
        fields = (first, first + count - 1, begin_us, at_us, busy_us, at_us + late_us)
        steps.append(Steps(life.generation, *fields))
        first = life.step = first + count
        if draw(st.booleans()):
            stage, write = draw(st.integers(0, 5 * M)), draw(st.integers(0, 5 * M))
            saves.append(Save(life.generation, first - 1, stage, write))
            life.saved = first - 1
    ended_us = at_us + draw(times)
    life.at_us = ended_us + draw(times)
    machines = [
        _machine(
            draw, life, (asked_us, life.at_us), chosen=True, marks=(ready_us, claimed_us, ended_us)
        )
    ]
    if draw(st.booleans()):
        machines.append(_machine(draw, life, (asked_us, asked_us + draw(times)), chosen=False))
    return machines


def _machine(
    draw: st.DrawFn,
    life: Life,
    billed: tuple[int, int],
    *,
    chosen: bool,
    marks: tuple[int, int, int] = (0, 0, 0),
) -> Machine:
    cuts = sorted({*billed, *draw(st.lists(st.integers(*billed), max_size=2))})
    cloud = draw(st.sampled_from(sorted(CLOUDS)))
    region, zone, kind = CLOUDS[cloud]
    capacity = draw(st.sampled_from(["spot", "on_demand"]))
    prepaid = draw(st.integers(0, 9)) == 0
    parts = []
    for start_us, end_us in pairwise(cuts):
        priced = (0 if prepaid else draw(prices), draw(prices), draw(prices))
        invoiced = None if prepaid else draw(st.one_of(st.none(), prices))
        part = Segment(start_us, end_us, *priced, prepaid=prepaid)
        if invoiced is not None:
            part = replace(part, reconciled=True, invoiced_microusd=invoiced)
        parts.append(part)
    details = {"what": kind, "provider": f"{cloud}-lab", "cloud": cloud, "region": region}
    details |= {"zone": zone, "type": kind, "capacity": capacity, "accelerator": "H100"}
    name = f"j-g{life.generation}-{int(not chosen)}"
    return Machine(
        name,
        life.generation,
        tuple(parts),
        draw(st.sampled_from([0, 1, 8])),
        chosen=chosen,
        hedge_lost=not chosen,
        ready_at_us=marks[0],
        claimed_at_us=marks[1],
        ended_at_us=marks[2],
        details={**details, "instance_id": f"i-{name}"},
    )


ledgers = st.lists(histories(), min_size=1, max_size=3).map(
    lambda jobs: [replace(job, job_id=f"j{n}") for n, job in enumerate(jobs)]
)


def ledger_of(accounts: Sequence[Account]) -> int:
    """By rate and time, or the invoice: each segment once."""
    parts = [part for job in accounts for one in job.machines for part in one.stretches]
    extras = [item.cost_microusd for job in accounts for item in job.extras]
    return sum(part.spent(0, END_US) for part in parts) + sum(extras)


def span_of(accounts: Sequence[Account]) -> tuple[int, int]:
    parts = [part for job in accounts for one in job.machines for part in one.stretches]
    return min(part.start_us for part in parts), max(part.end_us for part in parts)


@pytest.mark.req("CST-10")
@MONEY
@given(ledgers)
def test_what_hours_went_into_is_what_was_billed(accounts: list[Account]) -> None:
    """useful + replayed + checkpoint + start-up + idle + waiting + untold = billed."""
    for job in accounts:
        result = report_of(job)
        billed = {
            one.node_id: sum(part.end_us - part.start_us for part in one.stretches)
            for one in job.machines
        }
        assert sum(result.uses[use].us for use in TimeUse if use in result.uses) == sum(
            billed.values()
        )
        gpus = sum(billed[one.node_id] * one.gpus for one in job.machines)
        assert sum(hours.us for hours in result.gpu_uses.values()) == gpus
        assert (TimeUse.UNTOLD in result.uses) <= (not job.steps)
        assert result.useful.us <= sum(row.last_at_us - row.first_at_us for row in job.steps)


@pytest.mark.req("CST-10", "CST-12")
@MONEY
@given(ledgers)
def test_however_it_is_grouped_it_is_the_ledger(accounts: list[Account]) -> None:
    """By job, user, project, provider and use, by day and by month: the same micro-dollars."""
    ledger = ledger_of(accounts)
    each = [report_of(job) for job in accounts]
    whole = together(each)
    assert whole.total_microusd == ledger
    assert sum(one.total_microusd for one in each) == ledger
    assert sum(sum(one.costs.values()) for one in each) + extra(each) == ledger
    for by in ("user", "project", "provider"):
        assert sum(by_name(each, by).values()) == ledger
    start_us, end_us = span_of(accounts)
    bare = [replace(job, extras=()) for job in accounts]
    for cut in (days, months):
        parts = [report_of(job, *ends) for job in bare for ends in cut(start_us, end_us)]
        assert sum(part.total_microusd for part in parts) == ledger - extra(each)
        assert sum(part.billed.us for part in parts) == whole.billed.us


def extra(reports: Sequence[Report]) -> int:
    kinds = (Kind.STORAGE, Kind.EGRESS, Kind.CONTROL)
    return sum(one.kind_microusd(kind) for one in reports for kind in kinds)


@pytest.mark.req("CST-06", "HYB-03")
@MONEY
@given(ledgers)
def test_a_saving_is_never_above_the_discount_and_both_counterfactuals_are_there(
    accounts: list[Account],
) -> None:
    each = [report_of(job) for job in accounts]
    for result in (*each, together(each)):
        names = {one.name for one in result.instead}
        listed = any(one.priced_microusd for one in result.instead if one.name == AS_IS)
        assert (AS_IS in names) is listed
        assert names <= {AS_IS, BEST}
        for one in result.instead:
            assert one.priced_microusd > 0
            assert one.discount is not None
            assert one.saving is None or one.saving <= one.discount
    for job in accounts:
        paid = [p for one in job.machines for p in one.stretches if not p.prepaid]
        names = {one.name for one in report_of(job).instead}
        ends = (0, END_US)
        assert (AS_IS in names) == any(p.at_rate(p.list_rate_microusd_per_h, *ends) for p in paid)
        assert (BEST in names) == any(p.at_rate(p.best_rate_microusd_per_h, *ends) for p in paid)


@MONEY
@given(ledgers, st.booleans())
def test_no_view_tells_a_saving_of_work_that_is_not_there(
    accounts: list[Account], no_result: bool
) -> None:
    """Above the price discount, or of a job that failed, lost its work, or did who knows what."""
    each = [report_of(replace(job, no_result=no_result)) for job in accounts]
    for result in (*each, together(each)):
        data = report_data(result)
        for row in (data, *data["on_demand"]):
            assert row["saving"] is None or row["saving"] <= row["discount"]
        if data["savings"] is not None:
            assert data["savings"]["fraction"] == data["saving"]
        if no_result or not result.useful.us:
            assert (data["saving"], data["savings"]) == (None, None)
    for result in each:
        if TimeUse.UNTOLD in result.uses:
            assert report_data(result)["saving"] is None


@pytest.mark.req("CST-11")
@MONEY
@given(ledgers)
def test_savings_add_up_to_what_was_not_paid(accounts: list[Account]) -> None:
    for job in accounts:
        result = savings_of(report_of(job))
        if result is None:
            continue
        parts = sum(one.microusd for one in result.parts if one.microusd is not None)
        assert parts == result.total_microusd == result.instead_microusd - result.paid_microusd
        assert all(one.against for one in result.parts)


@pytest.mark.req("BUD-07")
@MONEY
@given(ledgers)
def test_an_export_keeps_the_rules_and_is_the_same_sum(accounts: list[Account]) -> None:
    rows: list[Row] = []
    start_us, end_us = span_of(accounts)
    for number, ends in enumerate(months(start_us, end_us)):
        for job in accounts:
            rows += rows_of(job if not number else replace(job, extras=()), "d0", *ends)
    assert problems(COLUMNS, rows) == []
    billed = sum(Decimal(row["BilledCost"]) for row in rows)
    # Line items beside machines are exported with the first month in which the job had any.
    late = [job for job in accounts if span_of([job])[0] >= next(months(start_us, end_us))[1]]
    assert billed * 1_000_000 == ledger_of(accounts) - extra([report_of(job) for job in late])
    hours = sum(
        Decimal(row["PricingQuantity"]) for row in rows if row["SkuMeter"] == "Machine hours"
    )
    whole = sum(report_of(job).billed.us for job in accounts)
    assert abs(hours * H - whole) <= len(rows) * 4, "to the ninth digit of an hour"
