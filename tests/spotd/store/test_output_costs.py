"""What a job's outputs cost: their storage, requests and egress."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.catalogs.storage import GB as GIB
from providers.catalogs.storage import storage_prices
from providers.stores.bucket import PART_BYTES
from spotd.domain.job import CheckpointSpec
from spotd.domain.units import MONTH_H, S
from spotd.store.checkpoint_costs import Window
from spotd.store.output_costs import output_costs
from spotd.store.outputs import StoredOutput
from tests.spotd.planner.build import job, market, node, offer, spec

GB = 10**9
HOUR = 3600 * S
GCP = replace(offer("c-1a"), cloud="gcp", region="us-central1")
NODE = node(offer=GCP, claimed_at_us=S)
JOB = job(spec=spec(checkpoint=CheckpointSpec("s3://b/x", "spotd")))
MARKET = market(
    (GCP,), places={"s3://b": ("aws", "us-east-2")}, egress_microusd_per_gb={"gcp": 120_000}
)


def stored(at_us: int, *, new_gb: int = 100, files: int = 3) -> StoredOutput:
    return StoredOutput(
        job_id=JOB.id,
        manifest=f"m{at_us}",
        digest="",
        generation=1,
        rank=0,
        node_id=NODE.id,
        stored_at_us=at_us,
        files=files,
        bytes=200 * GB,
        new_bytes=new_gb * GB,
    )


def test_what_is_uploaded_is_stored_written_and_sent() -> None:
    items, unknown = output_costs(
        JOB, [NODE], [stored(HOUR)], MARKET, Window(0, 11 * HOUR), 11 * HOUR
    )
    assert unknown == []
    by_unit = {item.unit: item for item in items}
    price = storage_prices()["aws"]
    gb_months = by_unit["GB-Months"]
    assert gb_months.quantity == pytest.approx(100 * GB / GIB * 10 / MONTH_H)
    assert gb_months.cost_microusd == pytest.approx(
        price.microusd_per_month(round(100 * GB * 10 / MONTH_H)), abs=2
    )
    assert by_unit["Requests"].quantity == -(-100 * GB // PART_BYTES) + 1
    assert (by_unit["GB"].quantity, by_unit["GB"].cost_microusd) == (100.0, 100 * 120_000)


def test_many_small_files_are_a_request_each() -> None:
    small = replace(stored(HOUR, files=5000), new_bytes=1000)
    items, _ = output_costs(JOB, [NODE], [small], MARKET, Window(0, 2 * HOUR), 2 * HOUR)
    assert next(item.quantity for item in items if item.unit == "Requests") == 5001


def test_windows_add_up() -> None:
    uploads, now_us = (
        [stored(HOUR), stored(5 * HOUR, new_gb=7), stored(9 * HOUR, new_gb=0)],
        99 * HOUR,
    )

    def cost(since_us: int, until_us: int) -> int:
        window = Window(since_us, until_us)
        items, _ = output_costs(JOB, [NODE], uploads, MARKET, window, now_us)
        return sum(item.cost_microusd for item in items)

    parts = [cost(0, 2 * HOUR), cost(2 * HOUR, 20 * HOUR), cost(20 * HOUR, now_us)]
    assert all(parts)
    assert sum(parts) == pytest.approx(cost(0, now_us), abs=3)


def test_what_is_not_known_is_said() -> None:
    strange = replace(NODE, offer=replace(GCP, cloud="lambda"))
    items, unknown = output_costs(
        JOB, [strange], [stored(HOUR)], MARKET, Window(0, 2 * HOUR), 2 * HOUR
    )
    assert not any(item.unit == "GB" for item in items)
    assert "outputs from" in unknown[0]


def test_a_folder_of_the_box_costs_nothing() -> None:
    local = job(spec=spec(checkpoint=CheckpointSpec("file:///x", "spotd")))
    here = replace(NODE, offer=replace(GCP, local=True))
    window = Window(0, 2 * HOUR)
    assert output_costs(local, [here], [stored(HOUR)], MARKET, window, 2 * HOUR) == ([], [])
