"""Money: what was paid, and counterfactuals that never flatter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotd.api.views.job_bill import OnDemand, all_reports, bill, on_demand, useful_us
from spotd.store.ledger import SegmentRow
from spotd.store.progress import ProgressRow
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig, story

H = 3_600_000_000


def segment(start_h: float, end_h: float, rate: int = 2_000_000, **fields: object) -> SegmentRow:
    values = {
        "node_id": "n",
        "job_id": "j",
        "kind": "compute",
        "start_us": int(start_h * H),
        "end_us": int(end_h * H),
        "rate_microusd_per_h": rate,
        "list_rate_microusd_per_h": 5_000_000,
        "best_on_demand_microusd_per_h": 4_000_000,
        "price_source": "quote",
        "state": "closed" if end_h else "open",
    }
    return SegmentRow(**{**values, **fields})  # type: ignore[arg-type]


def progress(generation: int, steps: tuple[int, int], hours: tuple[float, float]) -> ProgressRow:
    first, last = (int(hour * H) for hour in hours)
    return ProgressRow(generation, *steps, (), first, last, 0, 0.0, at_us=last)


def test_sums_and_the_running_end() -> None:
    total = bill([segment(0, 1), segment(1, 0)], 3 * H)
    assert total.paid_us == 3 * H
    assert total.spend_microusd == 6_000_000
    assert total.list_microusd == 15_000_000
    assert total.best_microusd == 12_000_000
    assert total.estimated
    assert total.discount == pytest.approx(0.6)


def test_an_unknown_launch_counts_at_its_worst_and_a_void_one_not() -> None:
    assert bill([segment(1, 0, state="unknown")], 2 * H).spend_microusd == 2_000_000
    assert bill([segment(1, 0, state="unknown")], 2 * H).estimated
    void = bill([segment(1, 2, state="void")], 2 * H)
    assert (void.spend_microusd, void.paid_us, void.estimated) == (0, 0, False)
    assert void.discount is None


def test_prepaid_hours_are_no_cost_and_no_saving() -> None:
    prepaid = segment(1, 4, rate=0, price_source="prepaid")
    total = bill([segment(0, 1), prepaid], 4 * H)
    assert (total.paid_us, total.prepaid_us) == (4 * H, 3 * H)
    assert total.discount == bill([segment(0, 1)], 4 * H).discount
    assert total.list_microusd == 5_000_000
    rows = [progress(1, (1, 100), (1, 4))]
    alone = bill([prepaid], 4 * H)
    assert alone.discount is None
    assert on_demand(alone, [prepaid], rows, 1) is None


def test_replayed_steps_are_not_useful() -> None:
    # 100 steps in an hour, of which a newer generation trains the last 25 again.
    rows = [progress(1, (1, 100), (0, 1)), progress(2, (76, 175), (2, 3))]
    assert useful_us(rows) == int(1.75 * H)


def test_neither_are_those_of_a_program_that_was_begun_again_on_its_machine() -> None:
    """It trained for an hour, hung for one, and went on from a checkpoint of 25 steps before."""
    rows = [
        progress(1, (1, 50), (0, 0.5)),
        progress(1, (51, 100), (0.5, 1)),
        progress(1, (76, 125), (2, 2.5)),
        progress(1, (126, 175), (2.5, 3)),
    ]
    assert useful_us(rows) == int(1.75 * H)


def test_a_gang_that_trains_with_fewer_is_no_saving_of_those_that_it_lacks() -> None:
    """Two machines for an hour, one of them for two, both again for one: six machine hours, four of
    them of the same work as in three hours of two."""
    rows = [
        progress(1, (1, 100), (0, 1)),
        progress(2, (101, 200), (1, 3)),
        progress(3, (201, 300), (3, 4)),
    ]
    assert useful_us(rows, 2, {2: 1}) == 6 * H
    assert useful_us(rows, 2) == 8 * H
    paid = [segment(0, 4), segment(0, 1, node_id="m"), segment(3, 4, node_id="o")]
    assert bill(paid, 4 * H).paid_us == 6 * H
    lazy = [segment(0, 8), *paid]
    listed = on_demand(bill(lazy, 9 * H), lazy, rows, 2, {2: 1})
    assert listed is not None
    assert listed.list_microusd == 6 * 5_000_000


def test_on_demand_would_not_have_paid_for_recoveries() -> None:
    segments = [segment(0, 1.5), segment(1.25, 3)]  # overlap at the hand-over
    rows = [progress(1, (1, 100), (0.25, 1.25)), progress(2, (101, 200), (1.75, 2.75))]
    total = bill(segments, 3 * H)
    # Two hours of steps and one start of a quarter, at the list price.
    expected = OnDemand(int(2.25 * 5_000_000), int(2.25 * 4_000_000))
    assert on_demand(total, segments, rows, 1) == expected
    assert total.list_microusd == int(3.25 * 5_000_000)


@pytest.mark.parametrize("ahead_h", [0.0, 0.5, -0.2, 100.0])
@pytest.mark.parametrize("away_h", [0.0, 0.2])
def test_a_node_may_have_any_time(ahead_h: float, away_h: float) -> None:
    """It is ahead of us, or behind, and a report may be heard late (spotd was away): two hours of
    steps and a start of a quarter of an hour are what they are."""
    clock = progress(1, (1, 200), (0.25, 2.25))
    halves = [
        replace(clock, to_step=100, last_at_us=int(1.25 * H), at_us=int((1.25 + away_h) * H)),
        replace(clock, from_step=101, first_at_us=int(1.25 * H)),
    ]
    ahead_us = int(ahead_h * H)
    rows = [
        replace(r, first_at_us=r.first_at_us + ahead_us, last_at_us=r.last_at_us + ahead_us)
        for r in halves
    ]
    segments = [segment(0, 3)]
    instead = on_demand(bill(segments, 3 * H), segments, rows, 1)
    assert instead == OnDemand(11_250_000, 9_000_000)


def test_the_published_case_comes_out_honest() -> None:
    """216 h of a node at $11.92 spot and $16.00 dedicated, 98.06 % of it useful: 24.0 % saved, not
    the 25.5 % of the price, and not the 73 % of the headline."""
    segments = [segment(0, 216, 11_920_000, list_rate_microusd_per_h=16_000_000)]
    rows = [progress(1, (1, 1000), (0, 216 * 0.9806))]
    total = bill(segments, 216 * H)
    assert total.spend_microusd == 2_574_720_000
    assert total.discount == pytest.approx(0.255)
    instead = on_demand(total, segments, rows, 1)
    assert instead is not None
    assert 1 - total.spend_microusd / instead.list_microusd == pytest.approx(0.2403, abs=1e-4)


def saved(segments: list[SegmentRow], rows: list[ProgressRow], num_nodes: int = 1) -> float:
    total = bill(segments, 100 * H)
    instead = on_demand(total, segments, rows, num_nodes)
    assert instead
    return 1 - total.spend_microusd / instead.list_microusd


def test_waiting_for_a_machine_is_no_start() -> None:
    """The first machine was lost in its setup, then nothing was on sale until hour 10: 9.9 useful
    hours of 20.3 that were paid. With the wait as "one start" it would be 59.4 % saved."""
    segments = [segment(0, 0.3, node_id="n1"), segment(10, 25, node_id="n2")]
    segments.append(segment(20, 25, node_id="n3"))  # together with the one before it
    rows = [progress(1, (1, 50), (10.1, 15.05)), progress(2, (51, 100), (20.05, 25.0))]
    assert bill(segments, 100 * H).paid_us == int(20.3 * H)
    assert saved(segments, rows) == pytest.approx(0.188, abs=1e-4)


def test_a_new_price_in_the_middle_of_a_start_begins_no_machine() -> None:
    segments = [segment(0, 0.2), segment(0.2, 2)]
    assert saved(segments, [progress(1, (1, 100), (0.5, 2))]) == pytest.approx(0.6)


def test_the_start_of_a_gang_is_that_of_its_newest_machine() -> None:
    segments = [segment(0, 2, node_id="r0"), segment(0.4, 2, node_id="r1")]
    rows = [progress(1, (1, 100), (0.5, 2))]
    # Two machines needed 1.5 h of steps and 0.1 h of start each, and 3.6 h were paid.
    assert saved(segments, rows, 2) == pytest.approx(1 - 0.4 * 3.6 / 3.2)


def test_a_void_machine_was_not_started() -> None:
    segments = [segment(0, 2), segment(0.4, 0.4, node_id="none", state="void")]
    assert saved(segments, [progress(1, (1, 100), (0.5, 2))]) == pytest.approx(0.6)


def test_after_the_first_reports_were_pruned_nothing_is_known(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    cost = client.get(f"/v1/jobs/{job_id}/cost")
    assert cost["saving"] is not None
    rig.store.events.prune(rig.ago(2740))  # the reports of the second machine are younger
    assert rig.store.progress.rows(job_id)
    cost = client.get(f"/v1/jobs/{job_id}/cost")
    assert (cost["saving"], cost["on_demand_usd"], cost["useful_hours"]) == (None, None, None)
    assert cost["spend_usd"] > 0


def test_all_reports_are_those_with_the_first_one() -> None:
    rows = [progress(1, (1, 100), (0, 1)), progress(2, (101, 200), (1, 2))]
    assert all_reports(rows, H) == rows
    assert all_reports(rows[1:], H) == []
    assert all_reports([], 0) == []


def test_unknown_when_no_steps_are_reported() -> None:
    assert on_demand(bill([segment(0, 1)], H), [segment(0, 1)], [], 1) is None
    assert on_demand(bill([], H), [], [progress(1, (1, 2), (0, 1))], 1) is None


hours = st.floats(0, 50, allow_nan=False)
stretches = st.tuples(hours, hours).map(lambda pair: (min(pair), max(pair)))


@given(
    st.lists(st.tuples(stretches, st.integers(0, 9_000_000)), min_size=1, max_size=6),
    st.lists(st.tuples(stretches, st.integers(0, 500), st.integers(0, 500)), max_size=6),
    st.integers(1, 8),
)
def test_the_saving_is_never_more_than_the_discount(
    paid: list[tuple[tuple[float, float], int]],
    steps: list[tuple[tuple[float, float], int, int]],
    num_nodes: int,
) -> None:
    segments = [segment(start, end, rate, state="closed") for (start, end), rate in paid]
    rows = [
        progress(number + 1, (min(a, b), max(a, b)), stretch)
        for number, (stretch, a, b) in enumerate(steps)
    ]
    total = bill(segments, 100 * H)
    instead = on_demand(total, segments, rows, num_nodes)
    if instead and instead.list_microusd:
        assert instead.list_microusd <= total.list_microusd
        assert instead.best_microusd <= total.best_microusd
        assert total.discount is not None
        assert 1 - total.spend_microusd / instead.list_microusd <= total.discount + 1e-9


@pytest.mark.parametrize(
    ("store", "usd", "of"),
    [
        ("s3://runs/team", 0.138, "S3 Standard, us-east-1, 2026-08-31"),
        ("file:///srv/runs", None, None),
    ],
)
def test_kept_checkpoints_cost_by_the_month(
    rig: Rig, client: PathClient, store: str, usd: float | None, of: str | None
) -> None:
    """Two of 3 GiB each; nothing of it is in the job's own sum."""
    rig.checkpoint_store = store
    cost = client.get(f"/v1/jobs/{story(rig)}/cost")
    assert cost["kept"] == {
        "checkpoints": 2,
        "bytes": 6 << 30,
        "usd_per_month": usd,
        "price_of": of,
    }


def test_what_was_kept_no_longer_costs_nothing(rig: Rig, client: PathClient) -> None:
    rig.checkpoint_store = "s3://runs/team"
    text = JOB_FILE.replace("every_steps: 100", "every_steps: 100, keep: 1")
    node = rig.launch(rig.submit(text=text, ago_s=100), SPOT, ago_s=90)
    rig.train(node, ago_s=80, until_s=40, first=0, last=10)
    rig.say(node, 20, "checkpoint", step=20, manifest="m20", bytes=5 << 30)
    cost = client.get("/v1/jobs/gpt/cost")
    assert (cost["kept"]["checkpoints"], cost["kept"]["bytes"]) == (1, 5 << 30)
