"""Offers, prices, refusals and limits."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, Label, Row, bindparam, delete, exists, func, or_, select, update

from providers.base import Offer, Scope
from spotd.domain.job import Desired
from spotd.domain.market import (
    CommittedUse,
    LaunchPermission,
    LaunchQueue,
    Market,
    Refusal,
    WaitingRequest,
)
from spotd.domain.queue import Limits
from spotd.domain.units import S
from spotd.store import images, ledger, limits, queue_snapshot, schema
from spotd.store.codec import decode_offer, encode
from spotd.store.provider_status import ProviderStatus, judge
from spotd.store.rows import NOT_GONE
from spotd.store.session import Repository, Session, read, write
from spotd.store.transaction import Transaction


class PricePoint(NamedTuple):
    """The price of an offer from `at_us` until the offer's next point."""

    offer_key: str
    at_us: int
    price_microusd_per_h: int
    list_microusd_per_h: int
    price_source: str


REMEMBERED_S = 6 * 3600.0  # refusals older than this say nothing any more
MOST_REFUSALS = 1000
_offers, _refusals, _nodes = schema.offers.c, schema.refusals.c, schema.nodes.c


def _version(name: str) -> Label[int]:
    """The version of the data that is cached under that name."""
    counters = schema.counters.c
    query = select(counters.value).where(counters.name == name)
    return query.scalar_subquery().label(name)


# Of jobs that hold a machine alone: what nobody can give back is in nobody's way.
_CARRIED = (
    select(func.coalesce(func.sum(schema.carriage.c.microusd_per_h), 0))
    .where(schema.carriage.c.job_id.in_(select(_nodes.job_id).where(NOT_GONE)))
    .scalar_subquery()
)
_USE = (
    select(
        func.count().label("nodes"),
        (func.coalesce(func.sum(_nodes.rate_microusd_per_h), 0) + _CARRIED).label("rate"),
        _version("market"),
        _version("offers"),
    )
    .select_from(schema.nodes)
    .where(NOT_GONE)
)
_OFFERS_VERSION = select(_version("offers"))
_ON_SALE = select(_offers.data).order_by(_offers.provider, _offers.key)
_SOLD_BY = select(_offers.key, _offers.data).where(_offers.provider == bindparam("provider"))
_HOLD_OFFERS = (
    select(schema.counters.c.value).where(schema.counters.c.name == "offers").with_for_update()
)
_PROVIDER = select(schema.providers).where(schema.providers.c.name == bindparam("provider"))
_WAITING = select(schema.jobs.c.id).where(
    schema.jobs.c.outcome.is_(None),
    schema.jobs.c.desired == Desired.RUN.value,
    ~select(_nodes.id).where(_nodes.job_id == schema.jobs.c.id, NOT_GONE).exists(),
)


def committed_use(conn: Connection) -> Row[Any, Any, Any, Any]:
    """Return (nodes, rate, market, offers): nodes not gone, including launching and unknown ones,
    their cost per hour including storage, and the versions of the data that `Markets` caches."""
    return conn.execute(_USE).one()


def _limits_of(row: Row[Any]) -> Limits:
    """The limits in the deployment's row."""
    projects = json.loads(row.projects) if row.projects else {}
    return Limits(row.max_nodes, row.max_microusd_per_h, projects)


class Markets:
    """Loads the market.

    Offers, and refusals with limits and providers, are read again only when their version changes;
    committed use is read every time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offers: tuple[int, tuple[Offer, ...]] = (-1, ())
        self._rest: tuple[int, Market] = (-1, Market(()))
        self._used: tuple[int, queue_snapshot.Used] = (-1, {})

    def offers(self, conn: Connection) -> tuple[Offer, ...]:
        """All offers; the same object until something changes."""
        return self._offers_at(conn, conn.execute(_OFFERS_VERSION).scalar_one())

    def _offers_at(self, conn: Connection, version: int) -> tuple[Offer, ...]:
        with self._lock:
            known, offers = self._offers
        if known != version:
            offers = tuple(all_offers(conn))
            with self._lock:
                self._offers = (version, offers)
        return offers

    def used(self, conn: Connection, now_us: int) -> queue_snapshot.Used:
        """Recent use of projects and users, as of this minute."""
        at_us = now_us - now_us % queue_snapshot.SHARES_US
        with self._lock:
            known, used = self._used
        if known != at_us:
            used = queue_snapshot.used_of_late(conn, at_us)
            with self._lock:
                self._used = (at_us, used)
        return used

    def held_use(self, conn: Connection, now_us: int) -> limits.LimitUse:
        """The use that limits are compared with; others wait for it until this transaction ends."""
        allowed = _limits_of(conn.execute(schema.deployment.select().with_for_update()).one())
        use = committed_use(conn)
        there = queue_snapshot.load(conn, allowed, now_us, lambda: self.used(conn, now_us))
        return limits.LimitUse(allowed, use.nodes, int(use.rate), there)

    def load(self, conn: Connection, now_us: int) -> Market:
        """The market now."""
        use = committed_use(conn)
        with self._lock:
            known, rest = self._rest
        if known != use.market:
            rest = _read(conn, now_us)
            with self._lock:
                self._rest = (use.market, rest)
        allowed = rest.use.limits
        snapshot = queue_snapshot.load(conn, allowed, now_us, lambda: self.used(conn, now_us))
        requests: tuple[WaitingRequest, ...] = ()
        if rest.refusals:
            requests = queue_snapshot.askers(conn, now_us, lambda: self.used(conn, now_us))
        return replace(
            rest,
            offers=self._offers_at(conn, use.offers),
            use=CommittedUse(limits=allowed, nodes=use.nodes, microusd_per_h=int(use.rate)),
            queue=LaunchQueue(snapshot=snapshot, requests=requests),
        )


class MarketRepository(Repository):
    """Offers, prices, refusals and limits."""

    def __init__(self, session: Session, markets: Markets) -> None:
        super().__init__(session)
        self._markets = markets

    @write
    def record_offers(
        self, tx: Transaction, provider: str, offers: Sequence[Offer], at_us: int
    ) -> None:
        """Replace a provider's offers and make waiting jobs due.

        Appends to the price history where a price moved, and splits open segments whose price, list
        price or cheapest on-demand price changed. An unchanged list changes nothing.
        """
        conn = tx.conn
        where = _offers.provider == provider
        sold = conn.execute(_SOLD_BY, {"provider": provider})
        old = {row.key: decode_offer(row.data) for row in sold}
        new = on_sale(offers)
        if new == old:
            return
        # Who pays another price now may reach max_cost_usd earlier.
        paying = ledger.repriced_jobs(conn, provider, new)
        tx.touch(dict.fromkeys([*_waiting_jobs(conn), *paying], at_us))
        hold_offers(tx)
        conn.execute(delete(schema.offers).where(where))
        if new:
            rows = [{"provider": provider, "key": k, "data": encode(o)} for k, o in new.items()]
            conn.execute(schema.offers.insert(), rows)
        _keep_history(conn, moved(old, new), at_us)
        ledger.reprice(tx, all_offers(conn), at_us)
        tx.offers_moved()

    @write
    def record_provider(self, tx: Transaction, provider: str, disabled: str, at_us: int) -> None:
        """Record that a provider cannot be used (`disabled` is the reason) or is used again ("").

        Alerts once if that lasts.
        """
        table = schema.providers
        where = table.c.name == provider
        row = tx.conn.execute(_PROVIDER, {"provider": provider}).one_or_none()
        was = None if row is None else ProviderStatus(row.disabled, row.at_us, row.told_at_us)
        now, event = judge(was, provider, disabled, at_us)
        if now == was:
            return
        values = {"disabled": now.disabled, "at_us": now.at_us, "told_at_us": now.told_at_us}
        if row is None:
            tx.conn.execute(table.insert().values(name=provider, **values))
        else:
            tx.conn.execute(update(table).where(where).values(**values))
        if event is not None:
            tx.event("", event, at_us)
        if now.disabled != (was.disabled if was else ""):
            tx.touch(dict.fromkeys(_waiting_jobs(tx.conn), at_us))
            tx.market_moved()

    @read
    def price_history(
        self, conn: Connection, offer_keys: Collection[str], since_us: int
    ) -> list[PricePoint]:
        """Prices by offer and time since `since_us`, and of each offer the one in force then."""
        row = schema.price_history.c
        wanted = row.offer_key.in_(sorted(set(offer_keys)))
        older = (
            select(row.offer_key, func.max(row.at_us).label("at_us"))
            .where(wanted, row.at_us <= since_us)
            .group_by(row.offer_key)
            .subquery()
        )
        in_force = exists().where(older.c.offer_key == row.offer_key, older.c.at_us == row.at_us)
        query = select(schema.price_history).where(wanted, or_(row.at_us > since_us, in_force))
        return sorted(PricePoint(*one) for one in conn.execute(query))

    @write
    def lift_refusals(
        self, tx: Transaction, code: str, offer_keys: Collection[str], at_us: int
    ) -> int:
        """Delete refusals of these offers with `code`, because the cause is fixed; return their
        number.

        Waiting jobs become due if there were any.
        """
        here = _refusals.offer_key.in_(sorted(set(offer_keys)))
        lifted = tx.conn.execute(
            delete(schema.refusals).where(_refusals.code == code, here)
        ).rowcount
        if lifted:
            tx.touch(dict.fromkeys(_waiting_jobs(tx.conn), at_us))
            tx.market_moved()
        return lifted

    @write
    def set_limits(self, tx: Transaction, limits: Limits) -> None:
        """Set the deployment's limits."""
        row = tx.conn.execute(schema.deployment.select().with_for_update()).one()
        if _limits_of(row) != limits:
            projects = encode(limits.projects) if limits.projects else ""
            values = {**vars(limits), "projects": projects}
            tx.conn.execute(update(schema.deployment).values(values))
            tx.market_moved()

    @read
    def load(self, conn: Connection, now_us: int) -> Market:
        """Offers, recent refusals, limits and committed use.

        Refusals are the recorded ones of the last 6 h, and those that follow from nodes: one that
        left as preempted, lost or boot_timeout refuses its offer with the code "Preempted", "Lost"
        or "BootTimeout" and the scope OFFER, at `left_at_us`, and when it is gone, at `gone_at_us`.
        """
        return self._markets.load(conn, now_us)


def _read(conn: Connection, now_us: int) -> Market:
    """Everything but offers and use."""
    newest = (
        select(schema.refusals)
        .where(_refusals.at_us > now_us - int(REMEMBERED_S * S))
        .order_by(_refusals.at_us.desc(), _refusals.node_id, _refusals.code)
        .limit(MOST_REFUSALS)
    )
    refused = [
        Refusal(row.offer_key, Scope(row.scope), row.code, row.at_us, row.node_id)
        for row in conn.execute(newest)
    ]
    out = select(schema.providers).where(schema.providers.c.disabled != "")
    deployment = conn.execute(schema.deployment.select()).one()
    return Market(
        offers=(),
        refusals=tuple(reversed(refused)),
        deployment=deployment.name,
        images=images.baked(conn),
        use=CommittedUse(limits=_limits_of(deployment)),
        launch=LaunchPermission(disabled={row.name: row.disabled for row in conn.execute(out)}),
    )


def all_offers(conn: Connection) -> list[Offer]:
    """All offers, in a fixed order."""
    return [decode_offer(text) for text in conn.execute(_ON_SALE).scalars()]


def on_sale(offers: Iterable[Offer]) -> dict[str, Offer]:
    """Offers by key; the cheaper one of two with the same key."""
    by_key: dict[str, Offer] = {}
    for offer in sorted(offers, key=lambda item: item.price_microusd_per_h):
        by_key.setdefault(offer.key, offer)
    return by_key


def moved(old: Mapping[str, Offer], new: Mapping[str, Offer]) -> list[Offer]:
    """Offers that are new or whose price or list price changed."""
    return [offer for key, offer in new.items() if _price(old.get(key)) != _price(offer)]


def hold_offers(tx: Transaction) -> None:
    """Keep others from changing a price, or launching at one, until this transaction ends.

    Of two daemons one could launch at a price that the other is just replacing, and nothing would
    correct it.
    """
    tx.conn.execute(_HOLD_OFFERS)


def _price(offer: Offer | None) -> tuple[int, int] | None:
    return None if offer is None else (offer.price_microusd_per_h, offer.list_microusd_per_h)


def _keep_history(conn: Connection, offers: Iterable[Offer], at_us: int) -> None:
    rows = [
        {
            "offer_key": offer.key,
            "at_us": at_us,
            "price_microusd_per_h": offer.price_microusd_per_h,
            "list_microusd_per_h": offer.list_microusd_per_h,
            "price_source": offer.price_source,
        }
        for offer in offers
    ]
    if rows:
        history = schema.price_history
        keys = [row["offer_key"] for row in rows]
        again = (history.c.at_us == at_us) & history.c.offer_key.in_(keys)
        conn.execute(delete(history).where(again))
        conn.execute(history.insert(), rows)


def _waiting_jobs(conn: Connection) -> list[str]:
    """Return jobs whose desired state is to run and that have no machine."""
    return list(conn.execute(_WAITING).scalars())


def refuse(
    tx: Transaction, node_id: str, offer_key: str, code: str, scope: Scope, at_us: int
) -> None:
    """Record why `offer_key` is not to be tried; once per node and code."""
    table = schema.refusals
    where = (_refusals.node_id == node_id) & (_refusals.code == code)
    values = {"offer_key": offer_key, "scope": scope.value, "at_us": at_us}
    if tx.conn.execute(update(table).where(where).values(**values)).rowcount == 0:
        tx.conn.execute(table.insert().values(node_id=node_id, code=code, **values))
    tx.market_moved()
