"""The report adds up to the ledger, flatters nobody, and says what it does not know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spotd.base.errors import UserError
from spotd.cli.external_runs import read_case
from spotd.money.counterfactual import AS_IS, BEST, MIXED, NEEDED, SAME, PaidTotals, counterfactuals
from spotd.money.document import report_data
from spotd.money.hour_breakdown import TimeUse
from spotd.money.report import Item, Kind, report_of, together
from tests.spotd.money.build import H, account, machine, steps, stretch

CASE = Path(__file__).parent / "case_study.toml"


@pytest.mark.req("CST-01", "CST-02", "CST-03", "CST-05", "CST-06", "CST-10")
def test_the_published_case_study() -> None:
    """$3,895 and 23.2 %, and nothing in it explains $11,200 and 73 %."""
    study, claim = read_case(CASE)
    data = report_data(report_of(study), claim)
    costs = [item["cost_usd"] for item in data["items"]]
    assert costs == [858.24, 2574.72, 384.0, 78.0]
    assert data["total_usd"] == 3894.96
    assert data["total_usd"] == pytest.approx(sum(costs))
    assert (data["billed_node_hours"], data["billed_gpu_hours"]) == (312, 2496)
    assert round(data["usd_per_billed_gpu_hour"], 2) == 1.56
    assert round(data["usd_per_useful_gpu_hour"], 2) == 1.59
    same, needed = data["on_demand"]
    assert (same["basis"], same["total_usd"], same["saving"]) == (SAME, 5070.0, None)
    assert (needed["basis"], needed["saving"]) == (NEEDED, 0.2189)
    assert same["discount"] == 0.2354
    assert data["claim"] == {
        "total_usd": 11200.0,
        "without_line_item_usd": 7305.04,
        "without_line_item": 0.6522,
        "baseline_usd": 41500.0,
        "baseline_without_line_item_usd": 36430.0,
        "baseline_without_line_item": 0.8778,
        "saving": 0.73,
        "saving_by_line_items": 0.2318,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 'x'", "compute: is missing"),
        ("no", "is not valid TOML"),
        ("name = 'x'\n[[compute]]\nphase = 'p'\ngpus = 8\nusd_per_hour = 2", "compute[0].hours"),
        (
            "name='x'\n[[compute]]\nphase='p'\ngpus=8\nhours=1\nlost_hours=2\nusd_per_hour=2",
            "compute[0].lost_hours: is more than its hours",
        ),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "case.toml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_case(file)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_case(tmp_path / "none.toml")


STORED = Item(Kind.STORAGE, "storage", "checkpoints", 1, "GB-Months", 500_000)
LEFT = Item(Kind.EGRESS, "egress", "checkpoints", 1, "GB", 90_000)
BOX = Item(Kind.CONTROL, "control", "box", 1, "Hours", 170_000)


@pytest.mark.req("CST-07")
def test_all_that_a_job_costs() -> None:
    """Machines that failed, losers of a hedge, storage, egress and the box."""
    rows = (steps(1, (1, 10), (1, 2), 1.0),)
    one = machine(stretch(0, 2))
    lost = machine(stretch(0, 0.5), rank=1, chosen=False, hedge_lost=True)
    result = report_of(account(one, lost, steps=rows, extras=(STORED, LEFT, BOX)))
    assert result.total_microusd == 5_000_000 + 500_000 + 90_000 + 170_000
    assert [result.kind_microusd(kind) for kind in Kind] == [5_000_000, 500_000, 90_000, 170_000]
    assert result.microusd_per_useful_gpu_h == 5_760_000 // 8
    same, needed, *_ = result.instead
    # On demand: an hour of steps, an hour of a start, the same storage; no box, and nothing leaves.
    assert (needed.hours.us, needed.total_microusd) == (2 * H, 10_500_000)
    assert same.total_microusd == 12_500_000 + 500_000
    assert needed.saving == pytest.approx(1 - 5.76 / 10.5)


def test_two_counterfactuals() -> None:
    result = report_of(account(machine(stretch(0, 2))))
    assert [(one.name, one.basis, one.total_microusd) for one in result.instead] == [
        (AS_IS, SAME, 10_000_000),
        (BEST, SAME, 8_000_000),
    ]


def test_of_what_has_no_price_on_demand_no_saving_is_told() -> None:
    unlisted = stretch(0, 2, list_rate_microusd_per_h=0, best_rate_microusd_per_h=0)
    data = report_data(report_of(account(machine(unlisted))))
    assert (data["on_demand"], data["saving"], data["discount"]) == ([], None, None)


def test_a_saving_is_never_more_than_the_discount() -> None:
    """Spot that is dearer than on demand: storage, the same in both, must not hide that."""
    dear = PaidTotals(10_000_000, 90_000_000, 0, 5_000_000, 5_000_000, {TimeUse.UNTOLD: H})
    for one in counterfactuals(dear):
        assert 1 - one.paid_microusd / one.total_microusd > -0.06
        assert one.bound == one.discount == -1.0


def test_what_on_demand_would_have_needed_is_at_most_what_was_billed() -> None:
    uses = {TimeUse.USEFUL: H, TimeUse.REPLAYED: H, TimeUse.CHECKPOINT: H}
    paid = PaidTotals(3, 0, 0, 9_000_000, 9_000_000, uses, start_us=H // 4)
    needed = counterfactuals(paid)[1]
    assert needed.hours.us == H + H // 2 + H // 4, "its own saves, and one start"
    assert counterfactuals(replace(paid, start_us=9 * H))[1].hours.us == 3 * H


def test_prepaid_hours_are_billed_and_no_saving() -> None:
    ours = stretch(2, 3, rate=0, prepaid=True)
    result = report_of(account(machine(stretch(0, 2), ours)))
    assert (result.billed.hours, result.prepaid.hours) == (3.0, 1.0)
    assert result.instead[0].priced_microusd == 10_000_000


def test_reconciled_stretches_cost_what_was_invoiced() -> None:
    billed = stretch(0, 2, reconciled=True, invoiced_microusd=3_333_333)
    result = report_of(account(machine(billed)))
    assert (result.total_microusd, result.invoiced_microusd) == (3_333_333, 3_333_333)
    assert not result.provisional
    halves = [report_of(account(machine(billed)), a * H, (a + 1) * H) for a in (0, 1)]
    assert sum(half.total_microusd for half in halves) == 3_333_333
    assert report_of(account(machine(billed, stretch(2, 3)))).provisional
    assert report_of(account(machine(billed), extras=(STORED,))).provisional


def test_several_jobs_are_the_sum_of_each() -> None:
    reported = account(machine(stretch(0, 2)), steps=(steps(1, (1, 10), (1, 2), 1.0),))
    silent = account(
        machine(stretch(0, 1, 1), claimed_at_us=1), extras=(STORED,), unknown=("this",)
    )
    unlisted = stretch(0, 2, list_rate_microusd_per_h=0, best_rate_microusd_per_h=0)
    each = [report_of(one) for one in (reported, silent, account(machine(unlisted)))]
    whole = together(each)
    assert whole.total_microusd == sum(one.total_microusd for one in each)
    assert whole.billed.hours == 5
    assert whole.unknown == ["this"]
    same, mixed, *_ = whole.instead
    assert (same.basis, same.priced_microusd, same.spent_microusd) == (SAME, 15_000_000, 4_000_001)
    assert (mixed.basis, mixed.hours.hours) == (MIXED, 3.0)
    assert each[0].microusd_per_useful_gpu_h == 500_000
    assert whole.microusd_per_useful_gpu_h is None, "some of it may have been useful, too"
    assert together([]).total_microusd == 0
    assert together([each[1]]).instead[0].basis == SAME
