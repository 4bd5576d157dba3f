"""The ledger: what every node costs, as stretches at one price, in integers.

A segment begins "unknown" with the intent to launch, at the intent's time and its highest price:
until the outcome is known, the worst case counts. It becomes "open" when the machine is known,
is closed and followed by another where a price changes, and ends "closed" when the machine is
gone, or "void" when none came of the intent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, literal, null, select, union_all, update

from providers.base import CapacityType, Instance, Offer
from spotd.model import Node
from spotd.states import NodeState
from spotd.store import schema
from spotd.store.base import SegmentRow
from spotd.store.transaction import Transaction

COMPUTE = "compute"
UNKNOWN, OPEN, CLOSED, VOID = schema.SEGMENT_STATES
_US_PER_H = 3_600_000_000

_segments = schema.segments.c
_nodes = schema.nodes.c


def cost_microusd(rate_microusd_per_h: int, start_us: int, end_us: int) -> int:
    """What a stretch costs: the one place where money is rounded, half up, once a segment."""
    spent = rate_microusd_per_h * max(end_us - start_us, 0)
    return (spent + _US_PER_H // 2) // _US_PER_H


def best_on_demand(offer: Offer, offers: Iterable[Offer]) -> int:
    """The cheapest on-demand price, anywhere, of a machine that fits: the same accelerators, or as
    many CPUs and as much memory where there are none. 0 when no price is known."""
    prices = [offer.list_microusd_per_h] if offer.list_microusd_per_h else []
    prices += [
        other.price_microusd_per_h
        for other in offers
        if other.capacity_type is CapacityType.ON_DEMAND and _fits(offer, other)
    ]
    return min(prices, default=0)


def _fits(offer: Offer, other: Offer) -> bool:
    if offer.accelerator != other.accelerator:
        return False
    if offer.accelerator:
        return offer.accelerator_count == other.accelerator_count
    return other.cpus >= offer.cpus and other.memory_gib >= offer.memory_gib


def begin(tx: Transaction, nodes: Sequence[Node], offers: Sequence[Offer]) -> None:
    """Count new intents from now on."""
    if nodes:
        rows = [
            _birth(node.id, node.job_id, node.requested_at_us, UNKNOWN, _price(node.offer, offers))
            for node in nodes
        ]
        _insert(tx, rows)


def _price(offer: Offer, offers: Sequence[Offer]) -> dict[str, Any]:
    return {
        "rate_microusd_per_h": offer.price_microusd_per_h,
        "list_rate_microusd_per_h": offer.list_microusd_per_h,
        "best_on_demand_microusd_per_h": best_on_demand(offer, offers),
        "price_source": offer.price_source,
    }


def _birth(
    node_id: str, job_id: str, start_us: int, state: str, price: Mapping[str, Any]
) -> dict[str, Any]:
    birth = {"node_id": node_id, "job_id": job_id, "kind": COMPUTE, "start_us": start_us}
    return {**birth, "state": state, **price}


def _insert(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    first = tx.take_ids(len(rows))
    tx.conn.execute(
        schema.segments.insert(), [{"id": first + at, **row} for at, row in enumerate(rows)]
    )


def confirm(tx: Transaction, node_id: str, launched_at_us: int) -> None:
    """A machine is known to exist since `launched_at_us`: its segment opens then.

    A node whose segment had ended already (declared absent too early, or missing from one listing)
    goes on where the last one ended, so that no paid time is lost.
    """
    rows = _of_node(tx.conn, node_id)
    if rows and rows[-1].end_us == 0:
        last = rows[-1]
        if last.state == UNKNOWN:
            start_us = max(launched_at_us, last.start_us)
            _set(tx.conn, last.id, state=OPEN, start_us=start_us)
        return
    node = tx.conn.execute(select(schema.nodes).where(_nodes.id == node_id)).one()
    if rows:
        last = rows[-1]
        start_us = launched_at_us if last.state == VOID else last.end_us
        price = {name: getattr(last, name) for name in _PRICE}
    else:
        start_us, price = launched_at_us, {"rate_microusd_per_h": node.rate_microusd_per_h}
    _insert(tx, [_birth(node_id, node.job_id, start_us, OPEN, price)])


_PRICE = (
    *("rate_microusd_per_h", "list_rate_microusd_per_h", "best_on_demand_microusd_per_h"),
    "price_source",
)


def backdate(conn: Connection, node_id: str, launched_at_us: int) -> None:
    """The cloud says that the machine exists for longer than we knew: count from then, at the
    first price that we know of."""
    first = next((row for row in _of_node(conn, node_id) if row.state != VOID), None)
    if first is None or first.state == UNKNOWN or launched_at_us >= first.start_us:
        return
    _set(conn, first.id, start_us=launched_at_us)
    if first.state == CLOSED:
        cost = cost_microusd(first.rate_microusd_per_h, launched_at_us, first.end_us)
        _set(conn, first.id, cost_microusd=cost)


def end(conn: Connection, node_id: str, at_us: int) -> None:
    """The machine is gone: its running segment closes."""
    for row in _of_node(conn, node_id):
        if row.end_us == 0:
            end_us = max(at_us, row.start_us, 1)
            cost = cost_microusd(row.rate_microusd_per_h, row.start_us, end_us)
            _set(conn, row.id, state=CLOSED, end_us=end_us, cost_microusd=cost)


def count_strays(
    tx: Transaction, provider: str, instances: Iterable[Instance], asked_at_us: int, at_us: int
) -> None:
    """Machines of nodes that we took for gone: one that is listed as alive costs money until it no
    longer is. `instances` are those alive that no node wants, as asked for at `asked_at_us`."""
    alive = {instance.token: instance for instance in instances}
    gone = select(schema.nodes).where(
        _nodes.provider == provider, _nodes.state == NodeState.GONE.value
    )
    running = gone.join(schema.segments, _segments.node_id == _nodes.id)
    for row in tx.conn.execute(running.where(_segments.end_us == 0)).all():
        if row.token not in alive:
            end(tx.conn, row.id, at_us)
    if not alive:
        return
    for row in tx.conn.execute(gone.where(_nodes.token.in_(sorted(alive)))).all():
        if asked_at_us > row.gone_at_us:
            launched_at_us = alive[row.token].launched_at_us
            confirm(tx, row.id, max(launched_at_us, row.requested_at_us))


def void(conn: Connection, node_id: str, at_us: int) -> None:
    """No machine came of the intent: its segment costs nothing."""
    for row in _of_node(conn, node_id):
        if row.end_us == 0:
            _set(conn, row.id, state=VOID, end_us=max(at_us, row.start_us, 1), cost_microusd=0)


def _of_node(conn: Connection, node_id: str) -> Sequence[Row[Any]]:
    query = select(schema.segments).where(_segments.node_id == node_id).order_by(_segments.id)
    return conn.execute(query).all()


def _set(conn: Connection, number: int, **values: object) -> None:
    conn.execute(update(schema.segments).where(_segments.id == number).values(**values))


def reprice(tx: Transaction, offers: Sequence[Offer], at_us: int) -> None:
    """Split running segments whose price, list price or best on-demand price is another one now.

    An offer that is no longer on sale keeps its last price. An intent whose outcome is unknown is
    not split: it takes the higher price for the whole of its stretch.
    """
    by_key = {offer.key: offer for offer in offers}
    best: dict[tuple[object, ...], int] = {}
    query = (
        select(schema.segments, _nodes.offer_key, _nodes.offer)
        .join(schema.nodes, _nodes.id == _segments.node_id)
        .where(_segments.end_us == 0)
        .order_by(_segments.node_id)
    )
    closed, opened, raised, rates = [], [], [], []
    for row in tx.conn.execute(query):
        offer = by_key.get(row.offer_key)
        if offer is None:
            continue
        shape = (
            *(offer.accelerator, offer.accelerator_count, offer.cpus, offer.memory_gib),
            offer.list_microusd_per_h,
        )
        if shape not in best:
            best[shape] = best_on_demand(offer, offers)
        price = {**_price_of(offer), "best_on_demand_microusd_per_h": best[shape]}
        if all(price[name] == getattr(row, name) for name in _AMOUNTS):
            continue
        if row.state == UNKNOWN:
            rate = max(row.rate_microusd_per_h, offer.price_microusd_per_h)
            raised.append({**price, "rate_microusd_per_h": rate, "segment": row.id})
        elif row.start_us < at_us:
            cost = cost_microusd(row.rate_microusd_per_h, row.start_us, at_us)
            closed.append({"segment": row.id, "end_us": at_us, "cost_microusd": cost})
            opened.append(_birth(row.node_id, row.job_id, at_us, OPEN, price))
            rate = offer.price_microusd_per_h
        else:
            rate = offer.price_microusd_per_h
            raised.append({**price, "segment": row.id})
        rates.append({"node": row.node_id, "rate_microusd_per_h": rate})
    _write_prices(tx, closed, opened, raised, rates)


_AMOUNTS = _PRICE[:3]


def _price_of(offer: Offer) -> dict[str, Any]:
    return {
        "rate_microusd_per_h": offer.price_microusd_per_h,
        "list_rate_microusd_per_h": offer.list_microusd_per_h,
        "price_source": offer.price_source,
    }


def _write_prices(
    tx: Transaction,
    closed: list[dict[str, Any]],
    opened: list[dict[str, Any]],
    raised: list[dict[str, Any]],
    rates: list[dict[str, Any]],
) -> None:
    where = _segments.id == bindparam("segment")
    if closed:
        tx.conn.execute(
            update(schema.segments)
            .where(where)
            .values(
                state=CLOSED, end_us=bindparam("end_us"), cost_microusd=bindparam("cost_microusd")
            ),
            closed,
        )
        _insert(tx, opened)
    if raised:
        values: dict[str, Any] = {name: bindparam(name) for name in _PRICE}
        tx.conn.execute(update(schema.segments).where(where).values(values), raised)
    if rates:
        tx.conn.execute(
            update(schema.nodes)
            .where(_nodes.id == bindparam("node"))
            .values(rate_microusd_per_h=bindparam("rate_microusd_per_h")),
            rates,
        )


# A job's ended segments as one sum, and each running one by itself: rate * time would overflow
# 64 bits in SQL.
_SPENT = union_all(
    select(
        _segments.job_id,
        func.sum(_segments.cost_microusd).label("cost"),
        literal(0).label("rate"),
        literal(0).label("start_us"),
    )
    .where(_segments.job_id.in_(bindparam("jobs", expanding=True)), _segments.end_us > 0)
    .group_by(_segments.job_id),
    select(_segments.job_id, null(), _segments.rate_microusd_per_h, _segments.start_us).where(
        _segments.job_id.in_(bindparam("jobs", expanding=True)), _segments.end_us == 0
    ),
)


def spent_microusd(conn: Connection, jobs: Sequence[str], now_us: int) -> dict[str, int]:
    """What each job has cost up to `now_us`; a job without segments is left out."""
    spent: dict[str, int] = {}
    for row in conn.execute(_SPENT, {"jobs": jobs}):
        cost = row.cost if row.cost is not None else cost_microusd(row.rate, row.start_us, now_us)
        spent[row.job_id] = spent.get(row.job_id, 0) + int(cost)
    return spent


def repriced_jobs(conn: Connection, provider: str, offers: Mapping[str, Offer]) -> list[str]:
    """The jobs that pay another price for a machine of `provider` than its `offers`, by key, say
    now: what `reprice` will split."""
    query = (
        select(_segments.job_id, _segments.rate_microusd_per_h, _nodes.offer_key)
        .join(schema.nodes, _nodes.id == _segments.node_id)
        .where(_segments.end_us == 0, _nodes.provider == provider)
    )
    return [
        row.job_id
        for row in conn.execute(query)
        if row.offer_key in offers
        and offers[row.offer_key].price_microusd_per_h != row.rate_microusd_per_h
    ]


def segments(conn: Connection, job_id: str | None) -> list[SegmentRow]:
    """In the order in which they began to be counted."""
    query = select(schema.segments).order_by(_segments.id)
    if job_id is not None:
        query = query.where(_segments.job_id == job_id)
    names = SegmentRow.__dataclass_fields__
    return [
        SegmentRow(**{name: row[name] for name in names}) for row in conn.execute(query).mappings()
    ]
