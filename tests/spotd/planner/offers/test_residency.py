"""Places that are out of the question, whatever they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import Offer
from spotd.domain.job import CheckpointSpec
from spotd.domain.market import Market
from spotd.domain.preferences import Preferences
from spotd.domain.states import NodeState
from spotd.planner.core.shard_stores import StorePlace
from spotd.planner.offers.residency import out_of_place
from spotd.planner.placement.explain_blocked import by_reason
from spotd.planner.placement.rank import RESIDENCE, rank
from spotd.planner.rules.stale_alerts import advise
from tests.spotd.planner.build import NOW, market, node, offer, settle, spec, view

ZURICH, FRANKFURT = "eu-central-2", "eu-central-1"


def world(**fields: Any) -> Market:
    offers = tuple(
        offer(f"{region}a", price, provider="aws", cloud="aws")
        for region, price in ((ZURICH, 5.0), (FRANKFURT, 9.0), ("us-east-1", 3.0), ("moon-1", 1.0))
    )
    countries = {f"aws/{ZURICH}": "CH", f"aws/{FRANKFURT}": "DE", "aws/us-east-1": "US"}
    return market(offers, countries=countries, operators={"aws": "US"}, **fields)


@pytest.mark.req("DAT-03")
@pytest.mark.parametrize(
    ("residency", "free"),
    [
        (("DE", "FR"), [FRANKFURT]),
        (("CH", "DE"), [ZURICH, FRANKFURT]),
        ((), ["moon-1", "us-east-1", ZURICH, FRANKFURT]),
        (("GB",), []),
    ],
)
def test_residency_is_where_a_machine_stands(residency: tuple[str, ...], free: list[str]) -> None:
    rows = rank(spec(preferences=Preferences(residency=residency)), world(), NOW)
    assert [row.offer.region for row in rows if not row.excluded] == free
    out = {row.offer.region: row for row in rows if row.excluded}
    assert {row.code for row in out.values()} <= {RESIDENCE}
    if residency == ("DE", "FR"):
        assert out[ZURICH].excluded == "it is in CH, outside the job's residency"
        assert out["moon-1"].excluded.startswith("the country of moon-1 is not known")
        assert out[ZURICH].until_us == 0


@pytest.mark.req("DAT-04")
def test_a_region_in_the_eu_is_run_by_an_american_company_all_the_same() -> None:
    row = rank(
        spec(preferences=Preferences(residency=("DE",), not_operated_from=("US",))), world(), NOW
    )
    told = {one.offer.region: one.excluded for one in row}
    assert told[FRANKFURT] == "its operator is based in US (not_operated_from)"


def test_who_runs_a_cloud_and_is_not_known_may_not() -> None:
    preferences = Preferences(not_operated_from=("US",))
    other = offer("zz-1a", provider="zz", cloud="zz")
    unknown = out_of_place(spec(preferences=preferences), other, world())
    assert "the home country of the operator of zz" in unknown
    known = market((other,), operators={"zz": "DE"})
    assert out_of_place(spec(preferences=preferences), other, known) == ""


def test_why_a_job_waits_names_it() -> None:
    rows = rank(
        spec(preferences=Preferences(residency=("GB",))), world(disabled={"aws": "off"}), NOW
    )
    assert "allow other places (spotd.residency, not_operated_from)" in advise(rows)
    mixed = [*rows, *rank(spec(), world(disabled={"aws": "off"}), NOW)]
    assert "4 where the job may not run" in by_reason(mixed)


# --- a folder that is a job's store

FOLDER = "file:///mnt/runs"
EAST = tuple(offer(f"aws-1{zone}", 10.0 + n) for n, zone in enumerate("ab"))
WEST = offer("aws-2a", 5.0)
OTHER = offer("gcp-1a", 4.0)
HERE = offer("own-1a", 99.0, local=True)


def stored(store: str, at: StorePlace | None, *offers: Offer) -> dict[str, str]:
    """Why not, by zone, for a job whose store that is."""
    places = {} if at is None else {store: at}
    sold = market(
        offers or (*EAST, WEST, OTHER, HERE),
        places=places,
        egress_microusd_per_gb={"aws": 0, "gcp": 0},
    )
    of = spec(checkpoint=CheckpointSpec(store=f"{store}/gpt", engine="spotd"))
    return {row.offer.zone: row.excluded for row in rank(of, sold, NOW)}


@pytest.mark.req("CKP-14", "DAT-06")
@pytest.mark.parametrize(
    ("store", "at", "free"),
    [
        (FOLDER, StorePlace("aws", "aws-1"), {"aws-1a", "aws-1b", "own-1a"}),
        (FOLDER, StorePlace("aws", "aws-1", "aws-1b"), {"aws-1b", "own-1a"}),
        (FOLDER, StorePlace("here"), {"aws-1a", "aws-1b", "aws-2a", "gcp-1a", "own-1a"}),
        (FOLDER, None, {"aws-1a", "aws-1b", "aws-2a", "gcp-1a", "own-1a"}),
        (
            "s3://runs",
            StorePlace("aws", "aws-1"),
            {"aws-1a", "aws-1b", "aws-2a", "gcp-1a", "own-1a"},
        ),
    ],
)
def test_a_folder_binds_a_job_to_where_it_is_mounted_and_a_bucket_does_not(
    store: str, at: StorePlace | None, free: set[str]
) -> None:
    told = stored(store, at)
    assert {zone for zone, why in told.items() if not why} == free
    if "gcp-1a" not in free:
        where = "/".join(filter(None, at or ()))
        assert told["gcp-1a"] == (
            f"its checkpoint.store is a folder of {where}, not mounted elsewhere"
        )


@pytest.mark.req("CKP-14", "DAT-06")
def test_the_next_machine_is_beside_the_folder_too() -> None:
    """However cheap others are: what was saved is nowhere else."""
    lost = node(NodeState.RUNNING, offer=EAST[0], gone_at_us=NOW)
    of = spec(checkpoint=CheckpointSpec(store=FOLDER, engine="spotd"))
    places = {FOLDER: StorePlace("aws", "aws-1")}
    after, _ = settle(view(lost, job={"spec": of}), market((*EAST, WEST, OTHER), places=places))
    assert after.nodes[1].offer == EAST[1]
    bucket = replace(of, checkpoint=replace(of.checkpoint, store="s3://runs"))
    after, _ = settle(view(lost, job={"spec": bucket}), market((*EAST, WEST, OTHER)))
    assert after.nodes[1].offer == OTHER
