"""Offers, refusals and limits: what the market is known to be."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from providers.base import Offer
from spotd.domain.fast_replace import changed
from spotd.domain.job import Desired
from spotd.domain.market import (
    CommittedUse,
    LaunchPermission,
    LaunchQueue,
    Market,
    Refusal,
)
from spotd.domain.queue import Limits
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.store import deployment
from spotd.store.columns import clean
from spotd.store.market import MOST_REFUSALS, REMEMBERED_S, PricePoint, moved
from spotd.store.market import on_sale as by_key
from spotd.store.provider_status import judge
from tests.sim.memory import images, ledger, line, views
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction


def committed_use(tables: Tables) -> tuple[int, int]:
    """Machines not gone, launching and unknown ones included, and what they cost an hour, with what
    their jobs' checkpoints do."""
    held = [tables.nodes[node_id] for node_id in tables.active]
    jobs = {node.job_id for node in held}
    carried = (row.microusd_per_h for row in tables.carriage.values() if row.job_id in jobs)
    return len(held), sum(node.offer.price_microusd_per_h for node in held) + sum(carried)


def on_sale(tables: Tables) -> tuple[Offer, ...]:
    """Everything on sale, in a fixed order; the same object until something changes."""
    if tables.on_sale is None:
        by_provider = sorted(tables.offers.items())
        found = (offers[key] for _, offers in by_provider for key in sorted(offers))
        tables.on_sale = tuple(found)
    return tables.on_sale


def load_market(tables: Tables, now_us: int) -> Market:
    """See Store.market.load. What is remembered is looked up again only when it changed."""
    if tables.market is None:
        tables.market = _read(tables, now_us)
    nodes, rate = committed_use(tables)
    requests = line.askers(tables, now_us) if tables.market.refusals else ()
    return changed(
        tables.market,
        offers=on_sale(tables),
        nodes=nodes,
        microusd_per_h=rate,
        queue=LaunchQueue(snapshot=line.load(tables, now_us), requests=requests),
    )


def _read(tables: Tables, now_us: int) -> Market:
    """Everything but offers and use."""
    since_us = now_us - int(REMEMBERED_S * S)
    recent = [refusal for refusal in tables.refusals.values() if refusal.at_us > since_us]
    recent.sort(key=lambda refusal: (-refusal.at_us, refusal.node_id, refusal.code))
    return Market(
        offers=(),
        refusals=tuple(reversed(recent[:MOST_REFUSALS])),
        deployment=tables.deployment,
        images=images.baked(tables),
        use=CommittedUse(limits=tables.limits),
        launch=LaunchPermission(
            disabled={
                name: found.disabled for name, found in tables.providers.items() if found.disabled
            }
        ),
    )


def record_offers(tx: Transaction, provider: str, offers: Sequence[Offer], at_us: int) -> None:
    """See Store.market.record_offers. An unchanged list changes nothing and wakes nobody."""
    tables = tx.tables
    old, new = tables.offers.get(provider, {}), by_key(offers)
    if new == old:
        return
    paying = ledger.repriced_jobs(tables, provider, new)
    tx.touch(dict.fromkeys([*_waiting_jobs(tables), *paying], at_us))
    tx.put(tables.offers, provider, new)
    for offer in moved(old, new):
        tx.put(tables.price_history, (offer.key, at_us), offer)
    tables.on_sale = None
    ledger.reprice(tx, on_sale(tables), at_us)


def _waiting_jobs(tables: Tables) -> list[str]:
    """Wanted jobs without a machine."""
    return [
        job_id
        for job_id in tables.unfinished.values()
        if tables.jobs[job_id].desired is Desired.RUN and not _has_machine(tables, job_id)
    ]


def _has_machine(tables: Tables, job_id: str) -> bool:
    return any(node.state is not NodeState.GONE for node in views.shown_nodes(tables, job_id))


def record_provider(tx: Transaction, provider: str, disabled: str, at_us: int) -> None:
    """See Store.market.record_provider."""
    was = tx.tables.providers.get(provider)
    now, event = judge(was, provider, disabled, at_us)
    if now == was:
        return
    tx.put(tx.tables.providers, provider, now)
    if event is not None:
        tx.event("", event, at_us)
    if now.disabled != (was.disabled if was else ""):
        tx.touch(dict.fromkeys(_waiting_jobs(tx.tables), at_us))
        tx.market_moved()


def refuse(tx: Transaction, said: Refusal) -> None:
    """Remember why an offer is not to be tried; once per node and code."""
    tx.put(tx.tables.refusals, (said.node_id, said.code), said)
    tx.market_moved()


def set_limits(tx: Transaction, limits: Limits) -> None:
    """See Store.market.set_limits."""
    if tx.tables.limits != limits:
        tx.put(vars(tx.tables), "limits", limits)
        tx.market_moved()


def set_quarantine(tx: Transaction, reason: str, at_us: int) -> None:
    """See Store.deployment.set_quarantine."""
    event = deployment.news(tx.tables.quarantine, reason)
    if event is not None:
        tx.put(vars(tx.tables), "quarantine", clean(reason))
        tx.event("", event, at_us)


def price_history(tables: Tables, offer_keys: Collection[str], since_us: int) -> list[PricePoint]:
    """See Store.market.price_history."""
    found = []
    for key in set(offer_keys):
        times = [at_us for of, at_us in tables.price_history if of == key]
        first_us = max((at_us for at_us in times if at_us <= since_us), default=since_us + 1)
        for at_us in times:
            if at_us >= first_us:
                offer = tables.price_history[key, at_us]
                price, listed = offer.price_microusd_per_h, offer.list_microusd_per_h
                found.append(PricePoint(key, at_us, price, listed, offer.price_source))
    return sorted(found)


def lift_refusals(tx: Transaction, code: str, offer_keys: Collection[str], at_us: int) -> int:
    """See Store.market.lift_refusals."""
    lifted = [
        key
        for key, said in tx.tables.refusals.items()
        if said.code == code and said.offer_key in offer_keys
    ]
    for key in lifted:
        tx.drop(tx.tables.refusals, key)
    if lifted:
        tx.touch(dict.fromkeys(_waiting_jobs(tx.tables), at_us))
        tx.market_moved()
    return len(lifted)
