"""Offers are recorded as they come, at prices that can be believed; a person is told of others."""

from __future__ import annotations

from providers.base import AuthError, Offer, UnknownOutcome
from spotd.domain.events import Event
from spotd.domain.states import NodeState
from spotd.observe.prices import Quotes
from spotd.planner.offers.price_sanity import ASSUMED, STALE_S
from tests.spotd.fake_world import Stage
from tests.spotd.store import build


def disabled(stage: Stage) -> dict[str, str]:
    return dict(stage.store.market.load(stage.clock.now_us()).launch.disabled)


def test_offers_replace_what_was_known(stage: Stage) -> None:
    cloud = stage.clouds["aws"]
    quotes = Quotes(cloud, stage.clock)
    cloud.on_sale = [build.offer("aws-1a", 3)]
    quotes.refresh(stage.store)
    offers = stage.store.market.load(stage.clock.now_us()).offers
    assert [o.price_microusd_per_h for o in offers if o.provider == "aws"] == [3_000_000]


def test_refused_credentials_put_a_cloud_out_of_use_until_they_work(stage: Stage) -> None:
    cloud = stage.clouds["aws"]
    quotes = Quotes(cloud, stage.clock)
    cloud.fail("offers", AuthError("the key has expired"))
    quotes.refresh(stage.store)
    assert disabled(stage) == {"aws": "the key has expired"}
    stage.submit()
    stage.run(lambda s: s.nodes("j1"))
    assert stage.nodes("j1")[0].offer.provider == "gcp"
    quotes.refresh(stage.store)
    assert disabled(stage) == {}


def test_a_cloud_that_does_not_answer_keeps_its_offers(stage: Stage) -> None:
    before = stage.store.market.load(stage.clock.now_us()).offers
    stage.clouds["aws"].fail("offers", UnknownOutcome("timed out"))
    Quotes(stage.clouds["aws"], stage.clock).refresh(stage.store)
    assert stage.store.market.load(stage.clock.now_us()).offers == before
    assert disabled(stage) == {}


def sold(stage: Stage) -> list[Offer]:
    offers = stage.store.market.load(stage.clock.now_us()).offers
    return [offer for offer in offers if offer.provider == "aws"]


def told(stage: Stage) -> list[Event]:
    return [row.event for row in stage.store.events.rows(None) if row.event.kind == "prices"]


def test_a_price_that_is_not_believed_is_told_once_and_costs_no_less(stage: Stage) -> None:
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    (node,) = stage.nodes("j1")
    cloud = stage.clouds[node.offer.provider]
    quotes = Quotes(cloud, stage.clock)
    key, listed = node.offer.key, node.offer.list_microusd_per_h
    cloud.on_sale = [build.offer(node.offer.zone, 0, list_microusd_per_h=listed)]
    for _ in range(3):
        quotes.refresh(stage.store)
    (event,) = told(stage)
    assert event.alert
    assert key in event.text
    running = [row for row in stage.store.ledger.segments("j1") if not row.end_us]
    assert [row.rate_microusd_per_h for row in running] == [listed]
    cloud.on_sale = [build.offer(node.offer.zone, 10)]
    quotes.refresh(stage.store)
    cloud.on_sale = [build.offer(node.offer.zone, 0, list_microusd_per_h=listed)]
    quotes.refresh(stage.store)
    assert len(told(stage)) == 2, "it was right in between"


def test_prices_that_nobody_confirms_grow_stale_and_fresh_again(stage: Stage) -> None:
    cloud = stage.clouds["aws"]
    quotes = Quotes(cloud, stage.clock)
    before = sold(stage)
    for _ in range(5):
        cloud.fail("offers", UnknownOutcome("timed out"))
        quotes.refresh(stage.store)
        assert sold(stage) == before
        stage.clock.sleep(STALE_S / 5)
    for _ in range(3):
        cloud.fail("offers", AuthError("the key has expired"))
        quotes.refresh(stage.store)
    assert [offer.price_source for offer in sold(stage)] == [ASSUMED] * len(before)
    assert [o.price_microusd_per_h for o in sold(stage)] == [o.list_microusd_per_h for o in before]
    (event,) = told(stage)
    assert "no prices for 1.0 h" in event.text
    quotes.refresh(stage.store)
    assert sold(stage) == before
