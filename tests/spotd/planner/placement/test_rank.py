"""What fits, in which order, and why the rest is not to be had now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.base import CapacityType, Offer, OfferRequest, Scope
from spotd.domain.fast_replace import changed
from spotd.domain.market import Market, Refusal
from spotd.domain.preferences import Preferences
from spotd.domain.units import S
from spotd.planner.offers.price_sanity import DOUBTED
from spotd.planner.placement.rank import SLOW, RankedOffer, SharedRanking, rank
from tests.spotd.planner.build import NOW, OFFERS, market, offer, spec

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
BIG = offer("aws-1a", cpus=192.0, memory_gib=2048.0)


@pytest.mark.parametrize(
    ("want", "expected"),
    [
        ({}, True),
        ({"accelerator": "H100"}, True),
        ({"accelerator": "h100"}, True),
        ({"accelerator": "H10"}, False),
        ({"accelerator": "A100"}, False),
        ({"accelerator": "H100", "accelerator_count": 8}, True),
        ({"accelerator": "H100", "accelerator_count": 4}, True),
        ({"accelerator": "H100", "accelerator_count": 16}, False),
        ({"accelerator_count": 1}, True),
        ({"cpus": 192.0}, True),
        ({"cpus": 192.5}, False),
        ({"memory_gib": 2048.0}, True),
        ({"memory_gib": 4096.0}, False),
        ({"instance_type": "8xh100"}, True),
        ({"instance_type": "p5.48xlarge"}, False),
        ({"cloud": "aws"}, True),
        ({"cloud": "gcp"}, False),
        ({"region": "aws-1"}, True),
        ({"region": "aws-2"}, False),
        ({"zone": "aws-1a"}, True),
        ({"zone": "aws-1b"}, False),
        ({"capacity_types": (ON_DEMAND,)}, False),
        ({"capacity_types": (ON_DEMAND, SPOT)}, True),
    ],
)
def test_one_want(want: dict[str, Any], expected: bool) -> None:
    assert OfferRequest(**want).admits(BIG) is expected


def test_a_provider_is_wanted_by_its_own_name_or_by_its_make() -> None:
    second = replace(BIG, provider="aws-eu", cloud="aws")
    assert OfferRequest(cloud="aws").admits(second)
    assert OfferRequest(cloud="aws-eu").admits(second)
    assert not OfferRequest(cloud="aws-eu").admits(BIG)


def test_a_machine_without_accelerators_is_for_jobs_that_want_none() -> None:
    plain = replace(BIG, accelerator="", accelerator_count=0)
    assert OfferRequest(cpus=8.0).admits(plain)
    assert not OfferRequest(accelerator="H100").admits(plain)
    named = replace(BIG, accelerator_count=0)
    assert not OfferRequest(accelerator="H100").admits(named), "a name alone is not an accelerator"


def keys(ranked: list[RankedOffer]) -> list[str]:
    return [row.offer.zone for row in ranked]


def free(ranked: list[RankedOffer]) -> list[str]:
    return [row.offer.zone for row in ranked if not row.excluded]


def test_the_cheapest_comes_first_and_what_does_not_fit_does_not_come() -> None:
    offers = (offer("b-1a", 3), offer("a-1a", 2), offer("c-1a", 1, accelerator="A100"))
    assert keys(rank(spec(), market(offers), NOW)) == ["a-1a", "b-1a"]


def test_equal_prices_are_told_apart_by_name_the_same_every_time() -> None:
    offers = tuple(offer(zone, 5) for zone in ("c-1a", "a-1a", "b-1a"))
    assert keys(rank(spec(), market(offers), NOW)) == ["a-1a", "b-1a", "c-1a"]
    assert keys(rank(spec(), market(offers[::-1]), NOW)) == ["a-1a", "b-1a", "c-1a"]


def test_of_equal_prices_the_placement_score_decides_and_of_others_not() -> None:
    offers = (
        offer("a-1a", 5),
        offer("b-1a", 5, score=4),
        offer("c-1a", 5, score=6),
        offer("d-1a", 5, score=10),
        offer("e-1a", 6, score=10),
        offer("f-1a", 4, score=1),
    )
    expected = ["f-1a", "d-1a", "c-1a", "a-1a", "b-1a", "e-1a"]
    assert keys(rank(spec(), market(offers), NOW)) == expected
    assert keys(rank(spec(), market(offers[::-1]), NOW)) == expected


def test_of_equal_scores_the_lower_share_of_taken_machines_decides() -> None:
    offers = (
        offer("a-1a", 5),
        offer("b-1a", 5, evicted_pct=5),
        offer("c-1a", 5, evicted_pct=100),
        offer("d-1a", 5, evicted_pct=100, score=9),
        offer("e-1a", 4, evicted_pct=100),
    )
    expected = ["e-1a", "d-1a", "b-1a", "a-1a", "c-1a"]
    assert keys(rank(spec(), market(offers), NOW)) == expected
    assert keys(rank(spec(), market(offers[::-1]), NOW)) == expected


def test_the_score_is_of_the_whole_gang() -> None:
    ranked = rank(spec(num_nodes=4), market(), NOW)
    assert ranked[0].score_microusd_per_h == 4 * ranked[0].offer.price_microusd_per_h


@pytest.mark.req("ELA-08")
@pytest.mark.parametrize(
    ("asked", "sold", "out"),
    [
        ({"num_nodes": 2, "fast_network": True}, {}, True),
        ({"num_nodes": 2, "fast_network": True}, {"interconnect": "efa"}, False),
        ({"num_nodes": 2, "fast_network": True}, {"local": True}, False),
        ({"num_nodes": 2}, {}, False),  # with slow_network, and of before there was the key
        ({"num_nodes": 1, "fast_network": True}, {}, False),
    ],
)
def test_a_gang_needs_an_interconnect(asked: Any, sold: Any, out: bool) -> None:
    [row] = rank(spec(**asked), market((offer("aws-1a", **sold),)), NOW)
    assert (row.code, row.until_us) == (SLOW if out else "", 0)
    assert ("spotd.slow_network" in row.excluded) is out


@pytest.mark.parametrize(
    ("joins_with", "needs"), [("", ""), ("a placement group", " without a placement group")]
)
def test_what_an_interconnect_needs_is_told(joins_with: str, needs: str) -> None:
    gang = spec(num_nodes=2, fast_network=True)
    [row] = rank(gang, market((offer("aws-1a", joins_with=joins_with),)), NOW)
    assert row.excluded == (
        f"no interconnect between its machines{needs}; spotd.slow_network: true takes it"
    )


H100 = OfferRequest(accelerator="H100", accelerator_count=8)
A100 = OfferRequest(accelerator="A100", accelerator_count=8)


def test_alternatives_compete_by_price_unless_they_are_ordered() -> None:
    offers = (offer("a-1a", 2, accelerator="A100"), offer("h-1a", 9))
    both = {"alternatives": (H100, A100)}
    assert keys(rank(spec(**both), market(offers), NOW)) == ["a-1a", "h-1a"]
    assert keys(rank(spec(**both, ordered=True), market(offers), NOW)) == ["h-1a", "a-1a"]


@pytest.mark.parametrize(
    ("ordered", "machines_ordered", "expected"),
    [
        (False, False, ["a-1a/spot", "h-1a/spot", "h-1a/block"]),
        (True, False, ["h-1a/block", "a-1a/spot", "h-1a/spot"]),
        (True, True, ["h-1a/block", "h-1a/spot", "a-1a/spot"]),
    ],
)
def test_capacity_types_are_in_order_where_the_job_says_so(
    ordered: bool, machines_ordered: bool, expected: list[str]
) -> None:
    block = CapacityType.BLOCK
    wants = tuple(replace(one, capacity_types=(block, SPOT)) for one in (H100, A100))
    offers = (
        offer("a-1a", 2, accelerator="A100"),
        offer("h-1a", 9),
        offer("h-1a", 20, capacity_type=block),
    )
    asked = spec(alternatives=wants, capacity_ordered=ordered, ordered=machines_ordered)
    rows = rank(asked, market(offers), NOW)
    found = [f"{row.offer.zone}/{row.offer.capacity_type.value}" for row in rows]
    assert found == expected


def test_an_offer_that_fits_two_alternatives_counts_for_the_better_one_once() -> None:
    either = {"alternatives": (A100, OfferRequest(cloud="h"), H100), "ordered": True}
    offers = (offer("h-1a", 9), offer("x-1a", 1))
    assert keys(rank(spec(**either), market(offers), NOW)) == ["h-1a", "x-1a"]


def test_a_preferred_alternative_that_is_cooling_gives_way() -> None:
    offers = (offer("h-1a", 9), offer("a-1a", 2, accelerator="A100"))
    refusals = (Refusal(offers[0].key, Scope.OFFER, "CapacityError", NOW),)
    ordered = spec(alternatives=(H100, A100), ordered=True)
    ranked = rank(ordered, market(offers, refusals=refusals), NOW)
    assert free(ranked) == ["a-1a"]
    assert keys(ranked) == ["a-1a", "h-1a"]


@pytest.mark.parametrize(
    ("fields", "taken", "why", "until_us", "code"),
    [
        (
            {"disabled": {"aws": "the key expired"}},
            (),
            "aws cannot be used: the key expired",
            0,
            "Disabled",
        ),
        ({}, (OFFERS[0].key,), "being preempted, or already requested", 0, "Taken"),
        (
            {"offers": (offer(ends_at_us=NOW + 600 * S),)},
            (),
            "its booked time ends in 10 min",
            0,
            "EndsSoon",
        ),
        (
            {"offers": (replace(OFFERS[0], price_source=DOUBTED),)},
            (),
            "its price is implausible",
            0,
            "doubted",
        ),
        (
            {"offers": (offer(price=99.0),)},
            (),
            "$99.00/h is above max_hourly_cost",
            0,
            "TooDear",
        ),
        (
            {"refusals": (Refusal(OFFERS[0].key, Scope.OFFER, "Preempted", NOW - 20 * S),)},
            (),
            "cooling for 100 s more after Preempted",
            NOW + 100 * S,
            "Preempted",
        ),
        (
            {"refusals": (Refusal(OFFERS[0].key, Scope.OFFER, "CapacityError", NOW - 60 * S),)},
            (),
            "",
            0,
            "",
        ),
    ],
)
def test_why_not_now(
    fields: dict[str, Any], taken: tuple[str, ...], why: str, until_us: int, code: str
) -> None:
    there = market(**({"offers": OFFERS[:1]} | fields))
    (offered,) = there.offers
    ranked = rank(spec(max_hourly_microusd=50_000_000), there, NOW, taken)
    assert ranked == [RankedOffer(offered, offered.price_microusd_per_h, why, until_us, code, 0)]


@pytest.mark.parametrize(("cap", "expected"), [(0, 4), (13, 4), (12, 3), (10, 1), (9, 0)])
def test_the_hourly_cap_is_of_one_machine_and_includes_its_own_price(
    cap: int, expected: int
) -> None:
    ranked = rank(spec(max_hourly_microusd=cap * 1_000_000), market(), NOW)
    assert len(free(ranked)) == expected
    assert all("max_hourly_cost" in row.excluded for row in ranked[expected:])


def test_a_job_that_is_steered_asks_again_where_there_was_no_room_every_ten_minutes() -> None:
    times = [NOW - 1 - minutes * 60 * S for minutes in (10, 20, 30, 40, 50)]
    (one, *_) = OFFERS
    said = tuple(Refusal(one.key, Scope.OFFER, "CapacityError", at, f"j-{at}") for at in times)
    sold = market((one,), refusals=said)
    (row,) = rank(spec(), sold, NOW)
    assert row.until_us > NOW
    (row,) = rank(spec(preferences=Preferences(work_s=9.0)), sold, NOW)
    assert not row.excluded


def test_what_is_not_to_be_had_comes_last_however_cheap() -> None:
    ranked = rank(spec(), market(), NOW, [OFFERS[0].key])
    assert keys(ranked) == ["aws-1b", "gcp-1a", "azure-1a", "aws-1a"]


@given(
    st.lists(st.sampled_from(OFFERS), unique=True),
    st.lists(st.sampled_from([o.key for o in OFFERS])),
)
def test_every_offer_that_fits_comes_once_the_free_ones_first_by_price(
    offers: list[Offer], taken: list[str]
) -> None:
    ranked = rank(spec(), market(tuple(offers)), NOW, taken)
    assert {row.offer.key for row in ranked} == {o.key for o in offers}
    assert len(ranked) == len(offers)
    excluded = [bool(row.excluded) for row in ranked]
    assert excluded == sorted(excluded)
    prices = [row.score_microusd_per_h for row in ranked if not row.excluded]
    assert prices == sorted(prices)


def test_what_refused_this_attempt_comes_after_all_that_has_not() -> None:
    """And what is out comes after that; with an order of alternatives the same."""
    first, second, third = OFFERS[:3]

    def keys(rows: list[RankedOffer]) -> list[str]:
        return [row.offer.key for row in rows]

    some = market(offers=(first, second, third))
    assert keys(rank(spec(), some, NOW)) == [first.key, second.key, third.key]
    asked = frozenset({first.key})
    assert keys(rank(spec(), some, NOW, asked=asked)) == [second.key, third.key, first.key]
    out = rank(spec(), some, NOW, taken=[second.key], asked=asked)
    assert keys(out) == [third.key, first.key, second.key]
    wants = tuple(OfferRequest(accelerator="H100", zone=one.zone) for one in (first, second, third))
    ordered = spec(alternatives=wants, ordered=True)
    assert keys(rank(ordered, some, NOW, asked=asked)) == [second.key, third.key, first.key]


def test_jobs_that_ask_for_the_same_of_a_market_share_one_answer() -> None:
    sold = market()
    first = rank(spec(name="a"), sold, NOW, job_id="j1")
    assert rank(spec(name="b", envs={"X": "1"}), sold, NOW, job_id="j2") is first
    assert isinstance(first, SharedRanking)
    for other in (spec(max_hourly_microusd=1), spec(num_nodes=2), spec(boot_timeout_s=1.0)):
        assert rank(other, sold, NOW) is not first
    assert rank(spec(), sold, NOW + S) is not first
    worth = {first[-1].offer.key: -1.0}
    by_worth = rank(spec(), sold, NOW, worth=worth)
    assert by_worth[0] is first[-1]
    assert rank(spec(), sold, NOW, worth=worth) is by_worth
    assert not isinstance(by_worth, SharedRanking)


@pytest.mark.parametrize(
    "fields",
    [
        {"taken": [OFFERS[0].key]},
        {"takers": frozenset({OFFERS[0].provider})},
        {"asked": frozenset({OFFERS[0].key})},
    ],
)
def test_what_is_known_of_one_job_is_in_its_own_answer_alone(fields: dict[str, Any]) -> None:
    sold = market()
    everybody = rank(spec(), sold, NOW)
    told = list(everybody)
    own = rank(spec(), sold, NOW, **fields)
    assert not isinstance(own, SharedRanking)
    assert [row.offer.key for row in own] != [row.offer.key for row in told]
    assert rank(spec(), sold, NOW) is everybody
    assert everybody == told


def test_what_was_refused_since_is_seen_in_the_same_offers() -> None:
    """Offers are the same objects from pass to pass, and what follows from them alone is kept."""

    def had(where: Market, job_id: str = "") -> list[str]:
        rows = rank(spec(), where, NOW, job_id=job_id)
        return [row.offer.key for row in rows if not row.excluded]

    sold = market()
    best = had(sold)[0]
    said = (Refusal(best, Scope.OFFER, "CapacityError", NOW, "j9-g1-x"),)
    assert best not in had(changed(sold, refusals=said))
    out = changed(sold, disabled={best.partition("/")[0]: "it does not answer"})
    assert best not in had(out)
    assert had(sold)[0] == best
    outbid = (Refusal(best, Scope.OFFER, "Outbid", NOW, "j1-g1-x"),)
    his = changed(sold, refusals=outbid)
    assert best not in had(his, "j1")
    assert best in had(his, "j2")
