"""What checkpoints cost is recorded, and every limit of money counts it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from providers.catalogs.storage import storage_prices
from spotd.api.views.resources import iso
from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.domain.datasets import DataSet
from spotd.domain.job import Desired, Job
from spotd.domain.plan import ChangeJob
from spotd.domain.states import LeaveReason, Outcome
from spotd.domain.units import S
from spotd.money.budget import Budget, budget_status
from spotd.money.focus import month_of
from spotd.observe import storage_costs
from spotd.observe.budgets import Budgets
from spotd.planner.planner import decide
from spotd.store.budget_queries import carried, spendings
from spotd.store.journal import JournalBatch
from spotd.wire import JournalEntry
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig

GB = 10**9
PLACES = {"gs://runs": ("gcp", "us-central1")}
HOUR = 3600 * S
NOVEMBER_15 = 1_794_700_800_000_000
EGRESS = 100 * 90_000  # 100 GB that leave AWS, in micro-USD
WRITES = (-(-100 * GB // (16 << 20)) + 2) * 5


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """At the 15th of November, with a store in Google's cloud."""
    made = Rig()
    made.checkpoint_store = "gs://runs/team"
    made.places = PLACES
    monkeypatch.setattr(made.clock, "_now_us", NOVEMBER_15)
    yield made
    made.close()


def look(rig: Rig, *budgets: Budget) -> None:
    Budgets(lambda: budgets, rig.clock, places=lambda: PLACES).keep(rig.store)


def saving(rig: Rig, budget: str = "", ago_s: float = 1800) -> str:
    """A job on AWS for an hour, that saved 100 GB."""
    job_id = rig.submit(ago_s=4000, text=JOB_FILE + budget)
    node = rig.launch(job_id, SPOT, ago_s=3600)
    rig.say(node, 3500, "claimed", step=0, manifest="")
    rig.say(node, ago_s, "checkpoint", step=20, manifest="m20", bytes=100 * GB)
    return job_id


def spent(rig: Rig, job_id: str) -> int:
    view = rig.store.load_view(job_id, rig.clock.now_us())
    assert view is not None
    return view.spent_microusd


def lies(seconds: float) -> int:
    """100 GB, or as much as there is, for so long at Google's price, in micro-USD."""
    price = storage_prices()["gcp"]
    return price.microusd_per_month(round(100 * GB * seconds / 3600 / 730))


def test_egress_requests_and_storage_are_part_of_what_a_job_has_spent(rig: Rig) -> None:
    job_id = saving(rig)
    machines = spent(rig, job_id)
    look(rig)
    [row] = rig.store.storage_costs.rows()
    assert row.month_us == month_of(NOVEMBER_15)[0]
    assert row.microusd == pytest.approx(EGRESS + WRITES + lies(1800), abs=5)
    assert row.microusd_per_h == row.microusd, "all of it in the last hour"
    assert spent(rig, job_id) == machines + row.microusd
    look(rig)
    assert spent(rig, job_id) == machines + row.microusd, "it is not counted twice"


def test_what_a_resume_elsewhere_takes_out_of_a_cloud_is_part_of_it(rig: Rig) -> None:
    """100 GB of Google's, read on AWS after the first machine was lost."""
    job_id = saving(rig)
    look(rig)
    before = spent(rig, job_id)
    [first] = rig.store.nodes.of_job(job_id)
    rig.leave(first, 1000, LeaveReason.PREEMPTED, "notice")
    second = rig.launch(job_id, SPOT, ago_s=900)
    rig.say(second, 800, "claimed", step=20, manifest="m20")
    alone = spent(rig, job_id) - before
    look(rig)
    restored = 100 * 120_000 + round(-(-100 * GB // (16 << 20)) * 0.4)
    assert spent(rig, job_id) - before == pytest.approx(alone + restored, abs=5)


def test_what_is_read_over_a_mount_of_another_cloud_is_part_of_it(rig: Rig) -> None:
    """In two lines, 10 GB of Google's on AWS; of AWS's own, elsewhere, only how much is known."""
    mounts = "file_mounts:\n"
    for name, url in (("/d", "gs://runs/x"), ("/e", "s3://west/x")):
        mounts += f"  {name}: {{source: '{url}', mode: MOUNT}}\n"
    rig.places = {**PLACES, "s3://west": ("aws", "us-west-2")}
    job_id = rig.submit(ago_s=4000, text=JOB_FILE + mounts)
    node = rig.launch(job_id, SPOT, ago_s=3600)
    machines = spent(rig, job_id)
    for ago_s, target, size in ((900, "/d", 4), (800, "/d", 6), (700, "/e", 5)):
        rig.say(node, ago_s, "mount_read", target=target, bytes=size * GB)
    rig.say(node, 600, "mount_read", target="/other", bytes=GB)
    Budgets(list, rig.clock, places=lambda: rig.places).keep(rig.store)
    assert spent(rig, job_id) - machines == 10 * 120_000
    assert (
        "'/other', which is not a mount"
        in rig.store.events.of_kinds(job_id, ["journal"])[0].event.text
    )
    rig.start()
    report = Client(rig.socket).call(routes.JOB_COST_REPORT(job=job_id))
    text = str(report)
    assert "data that machines read out of gcp, list price" in text
    assert "what 5 GB cost that gpt read or copied of s3://west/x from aws/us-east-1" in text


COPIES = """file_mounts:
  /set: dataset://corpus
  /d: gs://runs/x
  /e: s3://west/x
  /n: s3://near/x
"""


def test_what_a_machine_copies_out_of_another_cloud_is_part_of_it(rig: Rig) -> None:
    """Of a data set, from where it is declared; what is said twice, by an agent that a network
    lost, is one line. Of AWS's own elsewhere only how much is known, and beside it all is free."""
    near, west = ("aws", SPOT.region), ("aws", "us-west-2")
    rig.places = {**PLACES, "s3://near": near, "s3://west": west}
    rig.datasets = {"corpus": DataSet("gs://runs/corpus", (), 10**9, {"gcp": 120_000})}
    job_id = rig.submit(ago_s=4000, text=JOB_FILE + COPIES)
    node = rig.launch(job_id, SPOT, ago_s=3600)
    machines = spent(rig, job_id)
    told = (
        ("/set", "gs://runs/corpus", 20),
        ("/d", "gs://runs/x", 4),
        ("/d", "gs://runs/x", 6),
        ("/e", "s3://west/x", 5),
        ("/n", "s3://near/x", 50),
        ("/d", "s3://near/x", 1),  # the job says where that is, whatever its node says
        ("/set", "http://else/x", 7),
    )
    entries = [
        JournalEntry(
            number,
            rig.ago(900 - number),
            node.generation,
            "mount_read",
            {"target": target, "bytes": size * GB, "url": url},
        )
        for number, (target, url, size) in enumerate(told, start=1)
    ]
    for _ in range(2):
        rig.store.journal.record([JournalBatch(node.id, tuple(entries), rig.ago(800))])
    Budgets(list, rig.clock, places=lambda: rig.places).keep(rig.store)
    assert spent(rig, job_id) - machines == 31 * 120_000
    [wrong] = rig.store.events.of_kinds(job_id, ["journal"])
    assert "field 'url' is 'http://else/x'" in wrong.event.text
    rig.start()
    data = Client(rig.socket).call(routes.JOB_COST_REPORT(job=job_id))
    [item] = [one for one in data["items"] if one["kind"] == "egress"]
    assert item["what"] == "data that machines read out of gcp, list price"
    assert (item["quantity"], item["cost_usd"]) == (31.0, 3.72)
    [unknown] = [text for text in data["unknown"] if "GB" in text]
    assert unknown.startswith("what 5 GB cost that gpt read or copied of s3://west/x from aws/")


def test_what_somebody_said_that_a_data_set_costs_counts_more_than_the_list(rig: Rig) -> None:
    """Between two regions of a cloud, too, of which the list knows nothing; beside it, nothing."""
    rig.places = {"s3://west": ("aws", "us-west-2"), "s3://near": ("aws", SPOT.region)}
    rig.datasets = {
        name: DataSet(f"s3://{name}/d", (), 10**9, {}, 20_000) for name in ("west", "near")
    }
    mounts = "file_mounts: {/w: dataset://west, /n: dataset://near}\n"
    job_id = rig.submit(ago_s=4000, text=JOB_FILE + mounts)
    node = rig.launch(job_id, SPOT, ago_s=3600)
    machines = spent(rig, job_id)
    for name in ("west", "near"):
        told = {"target": f"/{name[0]}", "bytes": 50 * GB, "url": f"s3://{name}/d"}
        rig.say(node, 900, "mount_read", **told)
    kept = {"places": lambda: rig.places, "datasets": lambda: rig.datasets}
    Budgets(list, rig.clock, **kept).keep(rig.store)
    assert spent(rig, job_id) - machines == 1_000_000
    rig.start()
    data = Client(rig.socket).call(routes.JOB_COST_REPORT(job=job_id))
    [item] = [one for one in data["items"] if one["kind"] == "egress"]
    assert item["what"] == "data that machines read out of aws, usd_per_gb"
    assert not [text for text in data["unknown"] if "GB" in text]


def test_max_cost_ends_a_job_whose_checkpoints_reach_it(rig: Rig) -> None:
    """$19.93 of the machine and $9.03 of its one checkpoint, of $25."""
    job_id = saving(rig, "  budget: {max_cost_usd: 25}\n")

    def stop_text() -> str:
        view = rig.store.load_view(job_id, rig.clock.now_us())
        assert view is not None
        plan = decide(view, rig.store.market.load(rig.clock.now_us()), rig.clock.now_us())
        told = [one.fields for one in plan.changes if isinstance(one, ChangeJob)]
        return next((str(fields["stop_text"]) for fields in told if "stop_text" in fields), "")

    assert stop_text() == ""
    look(rig)
    assert stop_text() == "max_cost_usd of $25.00 reached"
    [*_, reached] = rig.store.events.of_kinds(job_id, ["cost_reached"])
    assert reached.event.data["percent"] == 100
    assert "$28.96 of $25.00" in reached.event.text


def test_when_the_limit_is_reached_and_what_cost_shows_go_by_both(rig: Rig) -> None:
    """$19.93 and $9.03 are spent of $100, and each hour takes as much again."""
    job_id = saving(rig, "  budget: {max_cost_usd: 100}\n")
    look(rig)
    [row] = rig.store.storage_costs.rows()
    rig.start()
    data = Client(rig.socket).call(routes.JOB_COST(job=job_id))
    assert data["carried_usd"] == pytest.approx(row.microusd / 1e6)
    each = SPOT.price_microusd_per_h + row.microusd_per_h
    at_us = NOVEMBER_15 + (100_000_000 - spent(rig, job_id)) * HOUR // each
    assert data["outlook"]["used_up_at"] == iso(at_us)


def test_a_budget_counts_it_and_stops_at_it(rig: Rig) -> None:
    job_id = saving(rig)
    job = rig.store.jobs.find(job_id)
    assert job is not None
    lab = Budget("lab", 25_000_000)
    now_us = rig.clock.now_us()
    month, rows = month_of(now_us), spendings(rig.store, now_us)
    alone = budget_status(lab, rows, month, now_us)
    assert alone.spent_microusd < lab.microusd
    look(rig, lab)
    found = budget_status(lab, rows, month, now_us, carried(rig.store, month[0]))
    assert found.spent_microusd == spent(rig, job_id) > lab.microusd
    [row] = rig.store.storage_costs.rows()
    assert found.microusd_per_h == alone.microusd_per_h + row.microusd_per_h
    after = rig.store.jobs.find(job_id)
    assert after is not None
    assert after.desired is Desired.PAUSE
    assert rig.store.events.keys("budget", 0)


def test_a_month_that_is_over_stays_and_what_is_kept_goes_on_costing(rig: Rig) -> None:
    """A job that has ended: its checkpoint lies there until somebody removes it."""
    job_id = saving(rig)
    look(rig)
    [node] = rig.store.nodes.of_job(job_id)
    rig.leave(node, 10, LeaveReason.DONE, "done")
    rig.finish(job_id, 5, Outcome.SUCCEEDED)
    rig.clock.go_on(30 * 86_400)
    for _ in range(2):
        look(rig)
    november, december = rig.store.storage_costs.rows()
    (_, ends_us) = month_of(NOVEMBER_15)
    assert (november.month_us, december.month_us) == (month_of(NOVEMBER_15)[0], ends_us)
    rest_s = (ends_us - NOVEMBER_15) / S + 1800
    assert november.microusd == pytest.approx(EGRESS + WRITES + lies(rest_s), rel=1e-4)
    assert november.microusd_per_h == 0
    assert december.microusd == pytest.approx(lies(30 * 86_400 + 1800 - rest_s), rel=1e-3)
    assert december.microusd_per_h == pytest.approx(lies(3600), abs=10)
    rig.clock.go_on(3600)
    look(rig)
    assert rig.store.storage_costs.rows() == [november, december], (
        "what it keeps is looked at once a day"
    )
    rig.clock.go_on(86_400)
    look(rig)
    again, later = rig.store.storage_costs.rows()
    assert again == november, "it is over"
    assert later.microusd == pytest.approx(december.microusd + lies(25 * 3600), rel=1e-3)


def test_what_is_heard_of_a_month_after_its_end_counts_in_it(rig: Rig) -> None:
    """A machine that nobody heard over midnight had saved before."""
    job_id = saving(rig)
    _, ends_us = month_of(NOVEMBER_15)
    rig.clock.go_on((ends_us - NOVEMBER_15) / S + 600)
    look(rig)
    november, _ = rig.store.storage_costs.rows()
    [node] = rig.store.nodes.of_job(job_id)
    data = {"step": 40, "manifest": "m40", "bytes": 100 * GB}
    entries = (
        JournalEntry(98, ends_us - HOUR // 6, node.generation, "checkpoint", data),
        JournalEntry(99, rig.ago(0), node.generation, "link", {}),
    )
    rig.store.journal.record([JournalBatch(node.id, entries, rig.ago(0))])
    look(rig)
    again, _ = rig.store.storage_costs.rows()
    assert again.month_us == november.month_us
    assert again.microusd - november.microusd == pytest.approx(EGRESS + WRITES, rel=0.01)


def test_beside_a_machine_of_this_box_and_in_a_folder_nothing_is_paid(rig: Rig) -> None:
    rig.checkpoint_store = "file:///ckpt"
    job_id = rig.submit(ago_s=4000)
    node = rig.launch(job_id, OFFERS[2], ago_s=3600)
    rig.say(node, 1800, "checkpoint", step=20, manifest="m20", bytes=100 * GB)
    look(rig)
    assert rig.store.storage_costs.rows() == []


def test_a_job_that_came_and_went_between_two_looks_is_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many were submitted after it."""
    monkeypatch.setattr(storage_costs, "NEWEST", 1)
    look(rig)
    job_id = saving(rig)
    rig.submit("later", ago_s=60)
    [node] = rig.store.nodes.of_job(job_id)
    rig.leave(node, 10, LeaveReason.DONE, "done")
    rig.finish(job_id, 5, Outcome.SUCCEEDED)
    look(rig)
    [row] = rig.store.storage_costs.rows()
    assert row.job_id == job_id


def test_what_a_person_removed_costs_nothing_from_then_on(rig: Rig) -> None:
    job_id = saving(rig)
    [node] = rig.store.nodes.of_job(job_id)
    rig.leave(node, 10, LeaveReason.DONE, "done")
    rig.finish(job_id, 5, Outcome.SUCCEEDED)
    look(rig)
    [before] = rig.store.storage_costs.rows()
    rig.store.checkpoints.record_removed(job_id, "m20", rig.clock.now_us())
    rig.store.checkpoints.record_removed(job_id, "m20", rig.clock.now_us() + 99 * HOUR)
    rig.clock.go_on(5 * 86_400)
    look(rig)
    [after] = rig.store.storage_costs.rows()
    assert (after.microusd, after.microusd_per_h) == (before.microusd, 0)


def test_one_job_that_cannot_be_reckoned_is_in_no_budgets_way(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = saving(rig)
    rig.finish(bad, 5, Outcome.SUCCEEDED)
    good = saving(rig)

    def extras(job: Job, *more: Any) -> Any:
        if job.id == bad:
            raise ValueError("bytes cannot be negative")
        return carried_by_list(job, *more)

    carried_by_list = storage_costs.extras_of
    monkeypatch.setattr(storage_costs, "extras_of", extras)
    budget = Budget("all", round(EGRESS / 2))
    look(rig, budget)
    assert [row.job_id for row in rig.store.storage_costs.rows()] == [good]
    assert rig.store.events.keys("budget", 0)
