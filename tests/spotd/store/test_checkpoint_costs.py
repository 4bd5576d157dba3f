"""What checkpoints cost beside machines: what stays in its machine's region no egress, and the rest
does; to lie there, and to be written and read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.catalogs.storage import storage_prices
from providers.stores.bucket import PART_BYTES
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.units import MONTH_H, S
from spotd.store.checkpoint_costs import Window, restores, storage, storage_items
from spotd.store.checkpoints import CheckpointRow
from spotd.store.storage_costs import COMMIT_WRITES, egress, extras_of, requests
from tests.spotd.planner.build import job, market, node, offer, spec

GB = 10**9


def test_what_is_kept_beside_the_machine_left_nothing() -> None:
    gcp = replace(offer("c-1a"), cloud="gcp", region="us-central1")
    machine = node(offer=gcp, claimed_at_us=S)
    saving = job(spec=spec(checkpoint=CheckpointSpec("s3://b/x", "spotd")))
    there = market(
        (gcp,), places={"s3://b": ("aws", "us-east-2")}, egress_microusd_per_gb={"gcp": 120_000}
    )
    rows = [
        CheckpointRow(
            job_id=saving.id,
            generation=machine.generation,
            step=step,
            manifest=f"m{step}",
            bytes=100 * GB,
            trigger="",
            released=False,
            final=False,
            committed_at_us=2 * S,
            stage_s=0.1,
            write_s=0.2,
            near_bytes=near,
        )
        for step, near in ((1, 100 * GB), (2, 40 * GB), (3, 0))
    ]
    first = {machine.generation: machine}
    [item], unknown = egress(saving, first, rows, there, Window(0, 9 * S))
    assert unknown == []
    assert (item.quantity, item.cost_microusd) == (160.0, 160 * 120_000)
    assert egress(saving, first, rows[:1], there, Window(0, 9 * S)) == (
        [],
        [],
    )


@pytest.mark.req("CST-02")
def test_storage_is_prorated_by_the_month() -> None:
    """1.5 TB for 16 days at $0.10 per GB and month: $77.42 by 31 days, $80.00 by 30."""
    price = replace(storage_prices()["aws"], tiers=((float("inf"), 100_000),))
    until_us = 16 * 86_400 * S
    lies = [(1500 << 30, 0, until_us)]
    [item] = storage_items(price, "checkpoints", lies, "aws", Window(0, until_us))
    assert 77.42e6 <= item.cost_microusd <= 80.00e6


def test_what_a_checkpoint_shares_with_an_earlier_one_is_uploaded_and_stored_once() -> None:
    """A folder of 100 GB of which 10 change: the store has the union of the two that are kept."""
    near = replace(offer("c-1a"), cloud="gcp", region="us-central1")
    machine = node(offer=near, claimed_at_us=S)
    saving = job(spec=spec(checkpoint=CheckpointSpec("s3://b/x", "none", keep=2)))
    there = market(
        (near,), places={"s3://b": ("aws", "us-east-2")}, egress_microusd_per_gb={"gcp": 120_000}
    )
    first = {machine.generation: machine}
    rows = [
        replace(
            moved()[2][0],
            step=step,
            manifest=f"m{step}",
            committed_at_us=step * HOUR,
            near_bytes=0,
            shared_bytes=0 if step == 1 else 90 * GB,
        )
        for step in (1, 2, 3)
    ]
    window = Window(0, 9 * HOUR)
    [item], _ = egress(saving, first, rows, there, window)
    assert item.quantity == 100 + 10 + 10
    [stored], _ = storage(saving, first, rows, window, 4 * HOUR)
    gb_hours = 100 + (100 + 10) + (100 + 10)  # one checkpoint in the first hour, then two
    assert stored.quantity == pytest.approx(gb_hours * GB / 2**30 / MONTH_H)
    written = [
        item.quantity
        for item in requests(saving, first, rows, there, window)
        if item.what.startswith("writes")
    ]
    parts = [-(-size * GB // PART_BYTES) for size in (100, 10, 10)]
    assert written == [sum(parts) + 3 * COMMIT_WRITES]


AWS = replace(offer("c-1a"), cloud="aws", region="us-east-2")
GCP = replace(offer("c-1a"), cloud="gcp", region="us-central1")
HOUR = 3600 * S


def moved() -> tuple[Any, dict[int, Node], list[CheckpointRow], Market]:
    """A job that saved 100 GB on AWS, 60 of them beside the machine, and resumed in Google's."""
    nodes = {
        1: node(offer=AWS, claimed_at_us=S, generation=1),
        2: node(offer=GCP, claimed_at_us=HOUR, generation=2),
    }
    saving = job(spec=spec(checkpoint=CheckpointSpec("gs://b/x", "spotd", keep=1)))
    row = CheckpointRow(
        job_id=saving.id,
        generation=1,
        step=5,
        manifest="m5",
        bytes=100 * GB,
        trigger="",
        released=False,
        final=False,
        committed_at_us=2 * S,
        stage_s=0.1,
        write_s=0.2,
        near_bytes=60 * GB,
    )
    there = market(
        (AWS, GCP),
        places={"gs://b": ("gcp", "us-central1")},
        egress_microusd_per_gb={"aws": 90_000, "gcp": 1},
    )
    return saving, nodes, [row], there


def test_a_restore_leaves_the_cloud_that_had_the_shards_and_the_rest_is_there_already() -> None:
    saving, nodes, rows, there = moved()
    [item], unknown = restores(saving, nodes, rows, there, Window(0, 9 * HOUR))
    assert unknown == []
    assert (item.quantity, item.cost_microusd, item.cloud) == (60.0, 60 * 90_000, "aws")
    assert restores(saving, nodes, rows, there, Window(2 * HOUR, 9 * HOUR)) == ([], [])
    beside = {**nodes, 2: replace(nodes[2], offer=AWS)}
    [item], unknown = restores(saving, beside, rows, there, Window(0, 9 * HOUR))
    assert (item.quantity, item.cloud) == (40.0, "gcp"), "the shards were beside it"
    elsewhere = {**nodes, 2: replace(nodes[2], offer=replace(AWS, region="us-west-2"))}
    _, unknown = restores(saving, elsewhere, rows, there, Window(0, 9 * HOUR))
    assert [text.split("checkpoints ")[1] for text in unknown] == [
        "from aws/us-east-2 to c/us-west-2 is not known"
    ]


def test_shards_beside_the_machines_are_kept_at_their_own_clouds_price() -> None:
    saving, nodes, rows, _ = moved()
    items, unknown = storage(saving, nodes, rows, Window(0, 730 * HOUR), 730 * HOUR)
    assert unknown == []
    assert [(item.cloud, item.what.split(",")[0]) for item in items] == [
        ("gcp", "checkpoints"),
        ("aws", "shards beside the machines"),
    ]
    months = [item.quantity * (1 << 30) / GB for item in items]
    assert [round(size, 2) for size in months] == [40.0, 60.0]
    assert items[1].cost_microusd == storage_prices()["aws"].microusd_per_month(
        round(items[1].quantity * (1 << 30))
    )


def test_each_part_is_a_write_and_what_is_resumed_from_is_read_again() -> None:
    """60 GB beside the machine on AWS and 40 in Google's, in parts of 16 MiB; manifest and HEAD lie
    with the latter."""
    saving, nodes, rows, there = moved()
    parts = {cloud: -(-size * GB // (16 << 20)) for cloud, size in (("aws", 60), ("gcp", 40))}
    found = {
        (item.what.split(" ")[0], item.cloud): (item.quantity, item.cost_microusd)
        for item in requests(saving, nodes, rows, there, Window(0, 9 * HOUR))
    }
    assert found == {
        ("reads", "aws"): (parts["aws"], round(parts["aws"] * 0.4)),
        ("reads", "gcp"): (parts["gcp"], round(parts["gcp"] * 0.4)),
        ("writes", "aws"): (parts["aws"], parts["aws"] * 5),
        ("writes", "gcp"): (parts["gcp"] + 2, (parts["gcp"] + 2) * 5),
    }
    local = {n: replace(node, offer=replace(node.offer, local=True)) for n, node in nodes.items()}
    folder = changed(there, places={"gs://b": ("here", "")})
    assert requests(saving, local, rows, folder, Window(0, 9 * HOUR)) == []


def test_all_of_it_adds_up_over_times_that_follow_one_another() -> None:
    saving, nodes, rows, there = moved()

    def cost(since_us: int, until_us: int) -> int:
        window = Window(since_us, until_us)
        items, _ = extras_of(saving, list(nodes.values()), rows, there, window, 9 * HOUR)
        return sum(item.cost_microusd for item in items)

    whole = cost(0, 9 * HOUR)
    assert whole > 60 * 90_000
    for cut_us in (3 * S, HOUR, HOUR + 1, 5 * HOUR):
        assert cost(0, cut_us) + cost(cut_us, 9 * HOUR) == whole
