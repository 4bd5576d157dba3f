"""What of a job's data is brought ahead of it, as people are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from providers.catalogs.egress import first_tier_prices
from spotd.domain.datasets import DataSet
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig

GB = 10**9
DATA = DataSet(
    url="s3://home",
    copies=("gs://one", "az://two"),
    max_microusd=10**9,
    leaving=first_tier_prices(),
    size_bytes=1000 * GB,
    box_microusd_per_gb=0,
)
WAY_USD = 90.0  # of a TB out of AWS, by the first tier


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    gcp = replace(SPOT, provider="gcp", cloud="gcp", region="us-central1", zone="us-central1-a")
    azure = replace(gcp, provider="azure", cloud="azure", region="eastus", zone="eastus-1")
    for number, offer in enumerate((gcp, azure)):
        dearer = replace(offer, price_microusd_per_h=25_000_000 + number)
        made.store.market.record_offers(offer.provider, [dearer], made.clock.now_us())
    made.datasets = {"corpus": DATA}
    made.places = {
        "s3://home": ("aws", "us-east-1"),
        "gs://one": ("gcp", "us-central1"),
        "az://two": ("azure", "eastus"),
    }
    yield made
    made.close()


def a_job(max_cost_usd: float) -> str:
    asks = "  stage_ahead: {regions: 2, max_usd: 1000}\nfile_mounts: {/d: dataset://corpus}\n"
    return f"{JOB_FILE}  budget: {{max_cost_usd: {max_cost_usd}}}\n{asks}"


def told(rig: Rig, text: str) -> list[tuple[str, str]]:
    rig.start()
    client = PathClient(rig.socket)
    job_id = rig.submit(text=text)
    why: dict[str, Any] = client.get(f"/v1/jobs/{job_id}/why")
    plan: dict[str, Any] = client.post("/v1/plan", {"yaml": text})
    rows = [(row["copy"], row["refused"]) for row in why["ahead"]]
    assert rows == [(row["copy"], row["refused"]) for row in plan["ahead"]]
    assert [text.partition(": ")[2] for text in plan["warnings"] if "stage_ahead" in text] == [
        f"data set corpus is not copied ahead to {copy}: {refused}"
        for copy, refused in rows
        if refused
    ]
    return rows


def test_both_are_brought_where_the_job_may_spend_it(rig: Rig) -> None:
    assert told(rig, a_job(500)) == [("gs://one", ""), ("az://two", "")]


def test_what_is_beyond_the_jobs_own_limit_is_said_to_stay_where_it_is(rig: Rig) -> None:
    """As the box decides it; each is within the limit, and both together are not."""
    one, two = told(rig, a_job(1.5 * WAY_USD))
    assert one == ("gs://one", "")
    assert two[1].endswith("beyond the job's max_cost_usd")
