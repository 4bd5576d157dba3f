"""What a job that waits is told: reasons with their counts, and what it could have now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.base import CapacityType, OfferRequest, Scope
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec, JobSpec
from spotd.domain.market import Market, Refusal
from spotd.domain.units import S
from spotd.planner.core.shard_stores import StorePlace
from spotd.planner.offers.cooldowns import BASE_S, OUTBID
from spotd.planner.offers.price_sanity import DOUBTED
from spotd.planner.placement.explain_blocked import by_reason, way_out
from spotd.planner.placement.rank import DISABLED, ENDS, SLOW, TAKEN, TOO_DEAR, RankedOffer
from tests.spotd.planner.build import NOW, OFFERS, market, offer, spec

ON_DEMAND = CapacityType.ON_DEMAND
SPOT_ONLY = OfferRequest(
    accelerator="H100", accelerator_count=8, capacity_types=(CapacityType.SPOT,)
)
BOTH_CHANGES = "allow on-demand (drop use_spot) and raise max_hourly_cost"
FULL = "CapacityError"
PLAIN = offer("gcp-1a", 55.0, capacity_type=ON_DEMAND)
DEAR = offer("gcp-1b", 40.0)


def ranked(*codes: str) -> list[RankedOffer]:
    return [RankedOffer(OFFERS[0], 1, excluded=code, code=code) for code in codes]


def out(*spared: str) -> Market:
    """All of aws is out for want of quota; what else is on sale."""
    refusals = (Refusal(OFFERS[0].key, Scope.PROVIDER, "QuotaError", NOW - S),)
    others = [one for one in (PLAIN, DEAR) if one.zone in spared]
    return market(offers=(OFFERS[0], *others), refusals=refusals)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            ranked("QuotaError", "CapacityError", "CapacityError"),
            "2 without capacity, 1 over quota",
        ),
        (ranked(FULL, "QuotaError", "QuotaError"), "2 over quota, 1 without capacity"),
        (ranked("Hung", "NoQuotaError"), "1 Hung, 1 without a quota"),
        (ranked("QuotaError", "QuotaError"), ""),
        ([*ranked("QuotaError", "CapacityError"), RankedOffer(OFFERS[1], 1)], None),
        ([], ""),
    ],
)
def test_reasons_are_counted(rows: list[RankedOffer], text: str | None) -> None:
    assert by_reason(rows) == ("1 without capacity, 1 over quota" if text is None else text)


@pytest.mark.parametrize(
    "code",
    [
        *sorted(set(BASE_S) - {"Hung", "Unfit", OUTBID}),
        "BootTimeout",
        TOO_DEAR,
        DISABLED,
        DOUBTED,
        ENDS,
        SLOW,
        TAKEN,
    ],
)
def test_what_keeps_offers_from_a_job_is_told_in_words(code: str) -> None:
    told = by_reason(ranked(code, "Hung"))
    assert code not in told
    assert told.count("1 ") == 2


@pytest.mark.parametrize(
    ("job", "market_", "text"),
    [
        (
            spec(alternatives=(SPOT_ONLY,)),
            out("gcp-1a"),
            f"allow on-demand (drop use_spot) for {PLAIN.key} at $55.00/h",
        ),
        (
            spec(max_hourly_microusd=30_000_000),
            out("gcp-1a", "gcp-1b"),
            f"raise max_hourly_cost for {DEAR.key} at $40.00/h",
        ),
        (
            spec(alternatives=(SPOT_ONLY,), max_hourly_microusd=30_000_000),
            out("gcp-1a"),
            f"{BOTH_CHANGES} for {PLAIN.key} at $55.00/h",
        ),
        (
            spec(alternatives=(replace(SPOT_ONLY, capacity_types=(ON_DEMAND,)),)),
            out("gcp-1b"),
            f"allow spot (drop use_spot) for {DEAR.key} at $40.00/h",
        ),
        (
            spec(alternatives=(SPOT_ONLY,), capacity_ordered=True),
            out("gcp-1a"),
            f"allow on-demand (spotd.capacity) for {PLAIN.key} at $55.00/h",
        ),
        (spec(alternatives=(SPOT_ONLY,)), out(), ""),
        (spec(), out("gcp-1b"), ""),  # it has that already
        (spec(max_hourly_microusd=40_000_000), out("gcp-1b"), ""),  # no more than its cap
    ],
)
def test_the_cheapest_way_out(job: JobSpec, market_: Market, text: str) -> None:
    assert way_out(job, market_, NOW, "j0") == text


@pytest.mark.parametrize(("whose", "there"), [("j0", False), ("j1", True)])
def test_what_the_job_itself_left_for_a_better_one_is_no_way_out(whose: str, there: bool) -> None:
    left = Refusal(DEAR.key, Scope.OFFER, OUTBID, NOW - S, f"{whose}-g1-c0-r0")
    some = replace(out("gcp-1b"), refusals=(*out().refusals, left))
    assert bool(way_out(spec(max_hourly_microusd=30_000_000), some, NOW, "j0")) is there


def test_a_way_out_from_which_saves_cost_something() -> None:
    """Nor does what they cost count against the cap that is to be raised."""
    saves = CheckpointSpec("s3://b/x", "spotd", every_s=300.0, size_bytes=100 * 10**9)
    dear = changed(
        out("gcp-1b"),
        places={"s3://b": StorePlace("aws", "us-east-2")},
        egress_microusd_per_gb={"gcp": 120_000},
    )
    capped = spec(checkpoint=saves, max_hourly_microusd=30_000_000)
    assert way_out(capped, dear, NOW, "j0") == f"raise max_hourly_cost for {DEAR.key} at $40.00/h"


def test_a_gang_may_do_without_an_interconnect() -> None:
    gang = spec(num_nodes=2, fast_network=True)
    assert way_out(gang, market(offers=(OFFERS[0],)), NOW, "j1") == (
        "do without an interconnect (spotd.slow_network) for aws/aws-1/aws-1a/8xh100/spot "
        "at $10.00/h"
    )
    joined = market(offers=(replace(OFFERS[0], interconnect="efa"),))
    assert way_out(gang, joined, NOW, "j1") == ""
