"""The duty that tells of prices and capacity: each episode once, whoever looks, however often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotd.base.clock import Clock
from spotd.domain.job import Desired, Job
from spotd.domain.plan import ChangeJob
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.history.market_episodes import (
    AGAIN,
    KINDS,
    NONE_LEFT,
    SPIKE,
    SPIKE_OVER,
    EpisodeThresholds,
)
from spotd.observe.market_alerts import Markets, concerned
from spotd.store.errors import LostLeaseError
from spotd.store.interface import Store
from tests.spotd.store.build import NOW, commit, move, offer, opening, placed, plan, submit, view

DAY = 86_400 * S
START = NOW + 30 * DAY


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at_us = START

    def now_us(self) -> int:
        return self.at_us

    def monotonic_s(self) -> float:
        return self.at_us / S

    def sleep(self, seconds: float) -> None:
        self.at_us += int(seconds * S)


def told(store: Store) -> list[str]:
    return [row.event.kind for row in store.events.of_deployment(KINDS, 0)]


def alerts(store: Store) -> list[str]:
    return [row.event.kind for row in store.alerts.due(1 << 60, 99)]


def look(store: Store, hand: Clock, **terms: object) -> None:
    """By a daemon that has just begun: nothing is left of those before but what is in the store."""
    Markets(lambda: replace(EpisodeThresholds(), **terms), hand).look(store)  # type: ignore[arg-type]


def running(store: Store) -> None:
    """A job on the offer, which has cost $10 for long."""
    store.market.record_offers("aws", [offer()], NOW)
    placed(store)
    store.nodes.record_launched("j1-g1-0", "i-1", NOW)


def at_price(store: Store, hand: Hand, usd: int) -> None:
    hand.sleep(600)
    listed = offer().list_microusd_per_h
    now = replace(offer(price=usd), list_microusd_per_h=listed)
    store.market.record_offers("aws", [now], hand.at_us)


@pytest.mark.req("MON-01")
def test_a_price_that_rises_and_falls_back_is_told_twice_by_however_many_daemons(
    store: Store,
) -> None:
    hand = Hand()
    running(store)
    look(store, hand)
    assert told(store) == []
    at_price(store, hand, 14)
    for _ in range(3):
        look(store, hand)
        hand.sleep(60)
    at_price(store, hand, 15)
    look(store, hand)
    assert told(store) == [SPIKE]
    at_price(store, hand, 10)
    look(store, hand)
    look(store, hand)
    assert told(store) == [SPIKE, SPIKE_OVER]
    at_price(store, hand, 20)
    look(store, hand)
    assert told(store) == alerts(store) == [SPIKE, SPIKE_OVER, SPIKE], "another episode"


def test_who_was_overtaken_tells_nothing(store: Store) -> None:
    """Two daemons see the same rise; the one whose lease is over is refused, whatever it has read
    before."""
    hand = Hand()
    running(store)
    first = store.leases.take("market", "one", hand.now_us, 20 * S)
    assert first is not None
    at_price(store, hand, 14)
    second = store.leases.take("market", "two", hand.now_us, 20 * S)
    assert second is not None
    with pytest.raises(LostLeaseError):
        look(store.fenced("market", first), hand)
    assert told(store) == []
    look(store.fenced("market", second), hand)
    assert told(store) == [SPIKE]


def test_what_was_told_is_known_although_much_else_happened(store: Store) -> None:
    hand = Hand()
    running(store)
    at_price(store, hand, 14)
    look(store, hand)
    for number in range(3):
        store.events.prune(START - number)
        look(store, hand)
    assert told(store) == [SPIKE]


def test_it_may_be_silent(store: Store) -> None:
    hand = Hand()
    running(store)
    at_price(store, hand, 14)
    look(store, hand, prices=False)
    look(store, hand, prices=False, capacity=False)
    look(store, hand, rise=0.5)
    assert told(store) == []


@pytest.mark.req("MON-01")
def test_what_is_not_to_be_had_and_is_again(store: Store) -> None:
    hand = Hand()
    waiting = submit(store, at_us=START)
    fields = {"waiting_since_us": START}
    commit(store, waiting, plan(ChangeJob(fields)), START)
    look(store, hand)
    hand.sleep(1799)
    look(store, hand)
    assert told(store) == []
    hand.sleep(1)
    look(store, hand)
    look(store, hand)
    assert alerts(store) == [NONE_LEFT]
    hand.sleep(600)
    commit(store, view(store, "j1", hand.at_us), opening("j1"), hand.at_us)
    commit(store, view(store), plan(ChangeJob({"waiting_since_us": 0})), hand.at_us)
    store.nodes.record_launched("j1-g1-0", "i-1", hand.at_us)
    look(store, hand)
    look(store, hand)
    assert alerts(store) == [NONE_LEFT, AGAIN]
    text = store.events.of_deployment(KINDS, 0)[-1].event.text
    assert text.startswith("8xH100 spot/on_demand is available again, in aws/aws-1/aws-1a/8xh100/s")
    assert "after 40 min" in text


def test_a_job_that_is_paused_waits_for_nothing(store: Store) -> None:
    hand = Hand()
    commit(store, submit(store), plan(ChangeJob({"waiting_since_us": NOW})), NOW)
    store.jobs.set_desired("j1", Desired.PAUSE, NOW)
    look(store, hand)
    assert told(store) == []


def test_whose_concern_an_offer_is(store: Store) -> None:
    store.market.record_offers("aws", [offer(), offer("aws-1b", 11)], NOW)
    store.market.record_offers("gcp", [offer("gcp-1a", 9, accelerator="A100")], NOW)
    placed(store, "j1", max_hourly_microusd=12_000_000)
    commit(store, submit(store, "j2"), plan(ChangeJob({"waiting_since_us": NOW})), NOW)
    jobs: list[Job] = store.jobs.rows(finished=False)
    found = concerned(jobs, store.nodes.active(), store.market.load(NOW))
    assert [(one.offer.zone, dict(one.runs), dict(one.waits)) for one in found] == [
        ("aws-1a", {"j1": 12_000_000}, {"j2": 0}),
        ("aws-1b", {}, {"j2": 0}),
    ]
    move(store, "j1-g1-0", NodeState.TERMINATING)
    look(store, Hand())
    assert told(store) == [NONE_LEFT]
