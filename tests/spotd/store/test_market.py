"""Offers, prices over time, refusals, limits and providers."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select

from providers.base import Scope
from spotd.domain.job import Desired
from spotd.domain.plan import ChangeJob
from spotd.domain.queue import Limits
from spotd.domain.states import Outcome
from spotd.domain.units import S
from spotd.store import schema
from spotd.store.engine import Database
from spotd.store.interface import Store
from spotd.store.market import PricePoint
from spotd.store.sql_store import SqlStore
from tests.spotd.store.build import NOW, Bell, commit, new_node, offer, placed, plan, submit, view
from tests.spotd.store.conftest import make


def test_offers_are_replaced_per_provider(store: Store) -> None:
    aws = [offer("aws-1a", 10), offer("aws-1b", 11)]
    store.market.record_offers("aws", aws, NOW)
    store.market.record_offers("gcp", [offer("gcp-1a", 9)], NOW)
    assert store.market.load(NOW).offers == (*aws, offer("gcp-1a", 9))
    store.market.record_offers("aws", [offer("aws-1b", 5)], NOW + S)
    assert store.market.load(NOW).offers == (offer("aws-1b", 5), offer("gcp-1a", 9))
    store.market.record_offers("gcp", [], NOW + S)
    assert store.market.load(NOW).offers == (offer("aws-1b", 5),)


def test_an_offer_named_twice_counts_at_its_lower_price(store: Store) -> None:
    store.market.record_offers("aws", [offer(price=12), offer(price=7)], NOW)
    assert store.market.load(NOW).offers == (offer(price=7),)


def test_history_is_kept_where_a_price_moved(sql_store: SqlStore, url: str) -> None:
    for at_us, price in enumerate((10, 10, 12, 12, 10), start=NOW):
        sql_store.market.record_offers("aws", [offer(price=price), offer("aws-1b", 3)], at_us)
    table = schema.price_history.c
    query = select(table.offer_key, table.at_us, table.price_microusd_per_h).order_by(table.at_us)
    database = Database(url)
    rows = database.read(lambda conn: [tuple(row) for row in conn.execute(query)])
    database.close()
    moved = [(at - NOW, price // 10**6) for key, at, price in rows if key == offer().key]
    assert moved == [(0, 10), (2, 12), (4, 10)]
    assert sum(key == offer("aws-1b").key for key, _, _ in rows) == 1


def test_the_history_of_some_offers_begins_with_the_price_in_force_then(store: Store) -> None:
    one, other = offer(), offer("aws-1b", 3)
    for at_us, price in enumerate((10, 10, 12, 12, 10), start=NOW):
        store.market.record_offers("aws", [replace(one, price_microusd_per_h=price), other], at_us)
    listed = one.list_microusd_per_h
    points = [
        PricePoint(one.key, NOW + n, p, listed, "quote") for n, p in ((0, 10), (2, 12), (4, 10))
    ]
    assert store.market.price_history([one.key], NOW) == points
    assert store.market.price_history([one.key], NOW + 1) == points, "10 is in force since before"
    assert store.market.price_history([one.key], NOW + 2) == points[1:]
    assert store.market.price_history([one.key], NOW + 9) == points[2:]
    assert store.market.price_history([one.key], NOW - 1) == points
    assert [
        p.offer_key for p in store.market.price_history([other.key, one.key], NOW + 9)
    ] == sorted((one.key, other.key))
    assert store.market.price_history([], NOW) == []


def test_what_somebody_mended_is_no_reason_any_more(store: Store) -> None:
    submit(store, "waits")
    for number, (zone, code) in enumerate(
        (("aws-1a", "NoQuotaError"), ("aws-1b", "CapacityError"), ("gcp-1a", "NoQuotaError"))
    ):
        placed(store, f"j{number}", new_node(f"j{number}", offer=offer(zone)))
        store.nodes.record_launch_refused(f"j{number}-g1-0", code, "none", Scope.REGION, NOW)
    seen = view(store, "waits").job.wakeup.notes
    mended = [offer("aws-1a").key, offer("aws-1b").key]
    assert store.market.lift_refusals("NoQuotaError", mended, NOW + S) == 1
    left = {(r.offer_key, r.code) for r in store.market.load(NOW).refusals}
    assert left == {(offer("aws-1b").key, "CapacityError"), (offer("gcp-1a").key, "NoQuotaError")}
    assert view(store, "waits").job.wakeup.notes == seen + 1
    assert store.market.lift_refusals("NoQuotaError", mended, NOW + S) == 0
    assert store.market.lift_refusals("NoQuotaError", [], NOW + S) == 0
    assert view(store, "waits").job.wakeup.notes == seen + 1, "nothing was mended: nobody is woken"


def test_new_offers_wake_who_waits_and_nobody_else(store: Store, bell: Bell) -> None:
    waiting, paused, done = (submit(store, name) for name in ("waiting", "paused", "done"))
    placed(store, "placed")
    store.jobs.set_desired("paused", Desired.PAUSE, NOW)
    ended = {"outcome": Outcome.FAILED, "finished_at_us": NOW}
    commit(store, done, plan(ChangeJob(ended)))
    before = {
        name: view(store, name).job.wakeup.notes for name in ("waiting", "paused", "done", "placed")
    }
    rings = bell.rings
    store.market.record_offers("aws", [offer()], NOW + S)
    store.market.record_offers("aws", [offer()], NOW + 2 * S)
    noted = [name for name, notes in before.items() if view(store, name).job.wakeup.notes > notes]
    assert noted == ["waiting"]
    assert view(store, "waiting").job.wakeup.notes == waiting.job.wakeup.notes + 1
    assert bell.rings == rings + 1
    assert paused.job.desired is Desired.RUN


def test_a_price_that_moves_wakes_who_pays_it(store: Store) -> None:
    for name, zone in (("here", "aws-1a"), ("there", "aws-1b"), ("gone", "aws-1a")):
        placed(store, name, new_node(name, offer=offer(zone)))
    store.nodes.record_absent("gone-g1-0", NOW)
    names = ("here", "there", "gone")
    for price, noted in ((10, []), (40, ["here"]), (8, ["here"])):
        before = {name: view(store, name).job.wakeup.notes for name in names}
        store.market.record_offers("aws", [offer(price=price), offer("aws-1b")], NOW + price * S)
        assert [n for n in names if view(store, n).job.wakeup.notes > before[n]] == noted
        # The higher price counts as long as it is not known whether a machine came of the request.
        counted = max(price, 40 if price == 8 else 10) * 1_000_000
        assert view(store, "here").nodes[0].offer.price_microusd_per_h == counted


def test_what_is_cached_is_never_old(url: str) -> None:
    """Another daemon changes the market: the next load sees it."""
    here, there = make(url), make(url)
    there.market.record_offers("aws", [offer()], NOW)
    assert here.market.load(NOW).offers == (offer(),)
    assert here.market.load(NOW).offers is here.market.load(NOW + S).offers
    there.market.record_offers("aws", [offer(price=11)], NOW)
    assert here.market.load(NOW).offers == (offer(price=11),)
    there.market.set_limits(Limits(3, 99_000_000))
    assert here.market.load(NOW).use.limits == Limits(3, 99_000_000)
    placed(there)
    there.nodes.record_launch_refused("j1-g1-0", "CapacityError", "none", Scope.ZONE, NOW)
    assert [refusal.code for refusal in here.market.load(NOW).refusals] == ["CapacityError"]
    there.market.record_provider("gcp", "key expired", NOW)
    assert here.market.load(NOW).launch.disabled == {"gcp": "key expired"}
    there.market.record_provider("gcp", "", NOW + S)
    market = here.market.load(NOW)
    assert (market.launch.disabled, market.deployment) == ({}, "d0")
    here.close()
    there.close()


def test_committed_use_is_read_fresh(store: Store) -> None:
    assert (store.market.load(NOW).use.nodes, store.market.load(NOW).use.microusd_per_h) == (0, 0)
    placed(store, "j1", new_node(number=0), new_node(number=1, offer=offer("aws-1b", 7)))
    market = store.market.load(NOW)
    assert (market.use.nodes, market.use.microusd_per_h) == (2, 17_000_000)


def test_old_refusals_say_nothing_any_more(store: Store) -> None:
    placed(store)
    store.nodes.record_launch_refused("j1-g1-0", "CapacityError", "none", Scope.ZONE, NOW)
    store.market.record_provider("x", "y", NOW)  # reads the market again
    assert store.market.load(NOW + 25 * 3600 * S).refusals == ()


def test_credentials_that_stay_refused_are_told_once_and_so_is_their_return(store: Store) -> None:
    """In other words it is the same refusal; a key that is just being exchanged is none."""
    store.market.record_provider("aws", "", NOW)
    for at_s in (10, 70, 129, 131, 200, 400):
        store.market.record_provider("aws", f"expired (request {at_s})", NOW + at_s * S)
    assert store.market.load(NOW).launch.disabled == {"aws": "expired (request 400)"}
    (told,) = [row for row in store.events.rows(None) if row.event.alert]
    assert told.at_us == NOW + 131 * S
    assert "aws refuses spotd's credentials and is not used: expired" in told.event.text
    assert "nothing that runs there can be ended" in told.event.text
    store.market.record_provider("aws", "", NOW + 500 * S)
    store.market.record_provider("aws", "", NOW + 501 * S)
    texts = [row.event.text for row in store.events.rows(None)]
    assert texts[1:] == ["aws accepts spotd's credentials again and is used"]
    store.market.record_provider("aws", "expired", NOW + 600 * S)
    store.market.record_provider("aws", "", NOW + 660 * S)
    assert len(store.events.rows(None)) == 2, "over before anybody had to know"
