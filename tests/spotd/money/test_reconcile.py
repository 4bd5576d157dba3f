"""A bill against the ledger: what matches, what only one side has, when somebody is told."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spotd.money.billing_exports import Entry
from spotd.money.reconcile import LedgerSegment, reconcile
from tests.spotd.money.build import H, stretch

NOW = 100 * H


def entry(key: str, usd: float, hours: tuple[float, float] = (0, 10), gpu: bool = True) -> Entry:
    return Entry(key, "p5", gpu, round(usd * 1e6), round(hours[0] * H), round(hours[1] * H))


def booked(
    number: int, start_h: float, end_h: float, instance: str = "us/i-1", **fields: object
) -> LedgerSegment:
    part = stretch(start_h, end_h, 2_000_000, **fields)
    return LedgerSegment(number, instance, f"n-{instance}", "j", part)


def test_a_machine_that_is_on_both_sides() -> None:
    """Two segments of three hours in all at $2, billed at $6.60: shared by what each cost."""
    result = reconcile([entry("i-1", 6.6)], [booked(1, 0, 1), booked(2, 1, 3)], NOW)
    (match,) = result.matched
    assert (match.ledger_microusd, match.difference_microusd, match.complete) == (
        6_000_000,
        600_000,
        True,
    )
    assert result.invoiced == {1: 2_200_000, 2: 4_400_000}
    assert result.share == 0.6 / 6.6
    assert result.alerts


def test_less_than_a_percent_is_no_alert() -> None:
    rows = [booked(1, 0, 5)]
    assert not reconcile([entry("i-1", 10.05)], rows, NOW).alerts
    assert reconcile([entry("i-1", 10.2)], rows, NOW).alerts


def test_gpu_spend_that_the_ledger_does_not_know() -> None:
    bill = [entry("i-1", 10), entry("i-2", 5), entry("i-3", 3, gpu=False)]
    result = reconcile(bill, [booked(1, 0, 5)], NOW)
    assert [item.key for item in result.unknown] == ["i-2"]
    assert (result.unexplained_microusd, result.others_microusd) == (5_000_000, 3_000_000)
    assert result.share == 5 / 15


def test_a_machine_that_the_bill_does_not_have() -> None:
    rows = [booked(1, 0, 5), booked(2, 0, 1, "us/i-9"), booked(3, 50, 51, "us/i-late")]
    result = reconcile([entry("i-1", 10)], rows, NOW)
    assert [(item.key, item.ledger_microusd) for item in result.missing] == [("i-9", 2_000_000)]
    assert result.share == 0.2


def test_what_goes_on_beyond_the_bill_is_compared_and_not_marked() -> None:
    running = booked(2, 8, 20, running=True)
    result = reconcile([entry("i-1", 20)], [booked(1, 0, 8), running], NOW)
    assert (result.matched[0].ledger_microusd, result.matched[0].complete) == (20_000_000, False)
    assert result.invoiced == {}
    assert not result.alerts
    began = reconcile([entry("i-1", 10, (5, 10))], [booked(1, 0, 10)], NOW)
    assert (began.matched[0].ledger_microusd, began.matched[0].complete) == (10_000_000, False)


def test_machines_without_a_price_share_by_time() -> None:
    free = [
        replace(item, stretch=replace(item.stretch, rate_microusd_per_h=0))
        for item in (booked(1, 0, 1), booked(2, 1, 4))
    ]
    assert reconcile([entry("i-1", 4)], free, NOW).invoiced == {1: 1_000_000, 2: 3_000_000}


def test_a_second_bill_replaces_the_first() -> None:
    """What an earlier one said is not what the ledger said."""
    segment = booked(1, 0, 5, reconciled=True, invoiced_microusd=99_000_000)
    result = reconcile([entry("i-1", 10)], [segment], NOW)
    assert (result.unexplained_microusd, result.invoiced) == (0, {1: 10_000_000})


def test_no_bill() -> None:
    assert reconcile([], [booked(1, 0, 5)], NOW).share == 0.0
    assert reconcile([entry("i-1", 0)], [], NOW).share == 0.0


@given(
    st.integers(0, 10**9),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10**7)), min_size=1, max_size=5),
)
def test_what_is_invoiced_adds_up_to_the_bill(billed: int, parts: list[tuple[int, int]]) -> None:
    rows, at_h = [], 0
    for number, (hours, rate) in enumerate(parts):
        item = booked(number, at_h, at_h + hours + 1)
        rows.append(replace(item, stretch=replace(item.stretch, rate_microusd_per_h=rate)))
        at_h += hours + 1
    bill = [Entry("i-1", "p5", True, billed, 0, 60 * H)]
    assert sum(reconcile(bill, rows, NOW).invoiced.values()) == billed
