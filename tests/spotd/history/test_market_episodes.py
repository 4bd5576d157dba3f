"""Prices that rise and fall back, and machines that nobody gets: begun once, over once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.base import CapacityType, Offer, OfferRequest
from spotd.domain.events import Event, Severity
from spotd.domain.units import S
from spotd.history.market_episodes import (
    AGAIN,
    NONE_LEFT,
    SPIKE,
    SPIKE_OVER,
    Episode,
    EpisodeThresholds,
    WaitingJobs,
    WatchedOffer,
    capacity_events,
    label,
    median_microusd,
    open_episodes,
    price_events,
)
from tests.spotd.store.build import offer

NOW = 10_000_000 * S
DAY = 86_400 * S
TERMS = EpisodeThresholds(rise=0.3, route="ops")
FOR_DAYS = ((NOW - 9 * DAY, 10_000_000),)


def at(price: int, **more: object) -> WatchedOffer:
    return WatchedOffer(offer(price=price), **more)  # type: ignore[arg-type]


KEY = offer().key


def look(
    concern: WatchedOffer | None, episodes: tuple[Episode, ...] = (), points: object = FOR_DAYS
) -> list[Event]:
    concerns = [concern] if concern else []
    return list(price_events(concerns, {KEY: points}, episodes, TERMS, NOW))  # type: ignore[dict-item]


OPEN = (Episode(SPIKE, KEY, NOW - 3600 * S, f"price_spike:{KEY}:1"),)


@pytest.mark.parametrize(("price", "alerted"), [(10, False), (12, False), (13, True), (14, True)])
def test_a_rise_is_told_from_its_bound_on(price: int, alerted: bool) -> None:
    result = look(at(price, runs={"gpt": 0}))
    assert [event.kind for event in result] == ([SPIKE] if alerted else [])
    if alerted:
        assert result[0].alert
        assert result[0].route == "ops"
        assert (
            f"at ${price}.00/h, {price * 10 - 100}% above its median of $10.00/h" in result[0].text
        )
        assert result[0].text.endswith("; gpt runs there")


@pytest.mark.parametrize(
    ("price", "over"),
    [(13, False), (12, False), (11, True), (10, True)],  # 15 % is half of what begins one
)
def test_it_is_over_well_below_that_bound(price: int, over: bool) -> None:
    result = look(at(price, waits={"gpt": 0}), OPEN)
    assert [event.kind for event in result] == ([SPIKE_OVER] if over else []), "and not told again"
    if over:
        assert result[0].key == OPEN[0].key
        assert "again, after 60 min" in result[0].text


def test_a_cap_counts_where_the_price_was_below_it() -> None:
    (event,) = look(at(11, runs={"gpt": 10_500_000}))
    assert "above the max_hourly_cost of gpt, $10.50" in event.text
    assert look(at(11, waits={"gpt": 10_500_000}))
    assert look(at(11, waits={"gpt": 9_000_000})) == [], "it never was below"
    assert look(at(11, waits={"gpt": 10_500_000}), points=()) == [], "nor is it known to have been"


def test_of_a_price_known_since_hours_nothing_is_told() -> None:
    assert look(at(90, runs={"gpt": 0}), points=((NOW - DAY + S, 10_000_000),)) == []
    assert look(at(90, runs={"gpt": 0}), points=((NOW - DAY, 10_000_000),))


def test_an_offer_that_is_nobodys_concern_any_more_ends_without_a_word() -> None:
    (event,) = look(None, OPEN)
    assert (event.kind, event.alert, event.key) == (SPIKE_OVER, False, OPEN[0].key)


def test_a_region_that_rises_together_is_five_alerts() -> None:
    concerns = [at(20, runs={"gpt": 0}) for _ in range(9)]
    concerns = [
        replace(item, offer=replace(item.offer, zone=f"aws-1{n}"))
        for n, item in enumerate(concerns)
    ]
    points = {item.offer.key: FOR_DAYS for item in concerns}
    result = list(price_events(concerns, points, (), TERMS, NOW))
    assert len({event.key for event in result}) == 9, "each has begun"
    assert [event.alert for event in result] == [True] * 5 + [False] * 4
    assert result[4].text.endswith("and so have 4 more")


def test_a_median_is_of_time_and_not_of_points() -> None:
    points = [(0, 10), (2 * DAY, 50), (2 * DAY + S, 10), (2 * DAY + 2 * S, 50), (3 * DAY, 20)]
    assert median_microusd(points, 0, 4 * DAY) == 10, "two of four days"
    assert median_microusd(points, DAY, 4 * DAY) == 20
    assert median_microusd(points, 2 * DAY, 3 * DAY) == 50
    assert median_microusd(points, 4 * DAY, 5 * DAY) == 20, "it is in force since before"
    assert median_microusd([], 0, 9 * DAY) is None


SHORT = WaitingJobs("8xH100 spot", ("gpt",), NOW - 1800 * S)


def test_nothing_to_be_had_and_again() -> None:
    (event,) = capacity_events([SHORT], {}, (), TERMS, NOW)
    assert (event.kind, event.severity) == (NONE_LEFT, Severity.WARNING)
    assert event.text == "no 8xH100 spot was available for 30 min: gpt waits"
    assert not list(capacity_events([SHORT], {}, (), TERMS, NOW - S)), "not long enough"
    episodes = open_episodes([event])
    assert [item.subject for item in episodes] == ["8xH100 spot"]
    assert not list(capacity_events([SHORT], {}, episodes, TERMS, NOW + DAY)), "told once"
    before = {"8xH100 spot": ("aws/x", NOW - 1900 * S)}
    assert not list(capacity_events([SHORT], before, episodes, TERMS, NOW)), "from before"
    served = {"8xH100 spot": ("aws/x", NOW + 60 * S)}
    (over,) = capacity_events([], served, episodes, TERMS, NOW + 60 * S)
    assert over.text == "8xH100 spot is available again, in aws/x, after 31 min"
    assert (over.kind, over.alert) == (AGAIN, True)
    assert open_episodes([event, over]) == []


def test_nobody_waits_any_more() -> None:
    (event,) = capacity_events([SHORT], {}, (), TERMS, NOW)
    (over,) = capacity_events([], {}, open_episodes([event]), TERMS, NOW)
    assert (over.kind, over.alert) == (AGAIN, False), "it says nothing about machines"


def test_what_is_wanted_in_words() -> None:
    spot = (CapacityType.SPOT,)
    gpus = OfferRequest("H100", 8, capacity_types=spot)
    assert label([gpus]) == "8xH100 spot"
    assert label([gpus, replace(gpus, region="eu")]) == "8xH100 spot or 8xH100 spot in eu"
    assert label([OfferRequest(instance_type="m7.large")]) == "m7.large spot/on_demand"


def test_an_offer_is_known_by_its_whole_key() -> None:
    other: Offer = replace(offer(price=20), zone="aws-1b")
    result = price_events([WatchedOffer(other, {"gpt": 0})], {KEY: FOR_DAYS}, (), TERMS, NOW)
    assert list(result) == [], "another zone's median is not its own"
