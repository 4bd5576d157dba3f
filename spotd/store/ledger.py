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
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.money.units import cost_microusd
from spotd.store import schema
from spotd.store.interface import SegmentRow
from spotd.store.rows import ZERO
from spotd.store.transaction import Transaction

COMPUTE = "compute"
UNKNOWN, OPEN, CLOSED, VOID = schema.SEGMENT_STATES
_PRICE = (
    "rate_microusd_per_h",
    "list_rate_microusd_per_h",
    "best_on_demand_microusd_per_h",
    "price_source",
)
_AMOUNTS = _PRICE[:3]
_END = ("state", "end_us", "cost_microusd")

Columns = dict[str, Any]  # by name
Stretch = Row[Any] | SegmentRow  # a segment as it is stored

_segments = schema.segments.c
_nodes = schema.nodes.c
_GONE = select(schema.nodes).where(
    _nodes.provider == bindparam("provider"), _nodes.state == NodeState.GONE.value
)
_STRAYS = _GONE.join(schema.segments, _segments.node_id == _nodes.id).where(
    _segments.end_us == ZERO
)


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


# --- what becomes of a stretch: columns to set, or a row to insert


def intent(node: Node, offers: Sequence[Offer]) -> Columns:
    """The first segment of a node, as its launch is decided."""
    price = _price_of(node.offer, best_on_demand(node.offer, offers))
    return _birth(node.id, node.job_id, node.requested_at_us, UNKNOWN, price)


def _birth(
    node_id: str, job_id: str, start_us: int, state: str, price: Mapping[str, Any]
) -> Columns:
    birth = {"node_id": node_id, "job_id": job_id, "kind": COMPUTE, "start_us": start_us}
    return {**birth, "state": state, **price}


def _price_of(offer: Offer, best_microusd_per_h: int) -> Columns:
    return {
        "rate_microusd_per_h": offer.price_microusd_per_h,
        "list_rate_microusd_per_h": offer.list_microusd_per_h,
        "best_on_demand_microusd_per_h": best_microusd_per_h,
        "price_source": offer.price_source,
    }


def closed(row: Stretch, end_us: int) -> Columns:
    """It ends at `end_us`, and what it has cost is known."""
    cost = cost_microusd(row.rate_microusd_per_h, row.start_us, end_us)
    return {"state": CLOSED, "end_us": end_us, "cost_microusd": cost}


def voided(row: Stretch, at_us: int) -> Columns:
    """It ends, and costs nothing."""
    return {"state": VOID, "end_us": _end_us(row, at_us), "cost_microusd": 0}


def ended(row: Stretch, at_us: int) -> Columns:
    """It ends with its machine."""
    return closed(row, _end_us(row, at_us))


def _end_us(row: Stretch, at_us: int) -> int:
    return max(at_us, row.start_us, 1)


def opened(last: Stretch, launched_at_us: int) -> Columns | None:
    """The machine of a running segment is known to exist; None when that is no news."""
    if last.state != UNKNOWN:
        return None
    return {"state": OPEN, "start_us": max(launched_at_us, last.start_us)}


def reopened(rows: Sequence[Stretch], launched_at_us: int) -> Columns:
    """The segment that follows a node's `rows`, which have all ended: it goes on where the last one
    did, or begins with the machine where that one came to nothing. No hour is counted twice."""
    last = rows[-1]
    counted_us = max((row.end_us for row in rows if row.state != VOID), default=0)
    start_us = max(launched_at_us, counted_us) if last.state == VOID else last.end_us
    price = {name: getattr(last, name) for name in _PRICE}
    return _birth(last.node_id, last.job_id, start_us, OPEN, price)


def backdated(first: Stretch, launched_at_us: int) -> Columns | None:
    """Its machine is older than we knew; None when it is not, or is not known at all."""
    if first.state == UNKNOWN or launched_at_us >= first.start_us:
        return None
    if first.state != CLOSED:
        return {"start_us": launched_at_us}
    cost = cost_microusd(first.rate_microusd_per_h, launched_at_us, first.end_us)
    return {"start_us": launched_at_us, "cost_microusd": cost}


def handed_over(last: Stretch, node: Node) -> Columns:
    """What follows the `last` segment of a machine's row when it goes on as `node`: at the same
    price, from the moment of its move on, so that no hour is counted twice and none is left out."""
    price = {name: getattr(last, name) for name in _PRICE}
    return _birth(node.id, node.job_id, node.moved_at_us, OPEN, price)


class Prices:
    """What machines cost at the `offers` of today."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = offers
        self._by_key = {offer.key: offer for offer in offers}
        self._best: dict[tuple[object, ...], int] = {}

    def of(self, offer_key: str) -> Columns | None:
        """The price of that offer; None when it is no longer on sale."""
        offer = self._by_key.get(offer_key)
        if offer is None:
            return None
        shape = (
            offer.accelerator,
            offer.accelerator_count,
            offer.cpus,
            offer.memory_gib,
            offer.list_microusd_per_h,
        )
        if shape not in self._best:
            self._best[shape] = best_on_demand(offer, self._offers)
        return _price_of(offer, self._best[shape])


def repriced(row: Stretch, price: Columns, at_us: int) -> tuple[Columns, Columns | None] | None:
    """What a running segment becomes, and the one that follows it, if any; None when its price,
    list price and best on-demand price are those of before. An intent whose outcome is unknown is
    not split: it takes the higher price for the whole of its stretch."""
    if all(price[name] == getattr(row, name) for name in _AMOUNTS):
        return None
    if row.state == UNKNOWN:
        rate = max(row.rate_microusd_per_h, price["rate_microusd_per_h"])
        return {**price, "rate_microusd_per_h": rate}, None
    if row.start_us < at_us:
        return closed(row, at_us), _birth(row.node_id, row.job_id, at_us, OPEN, price)
    return price, None


# --- the table


def begin(tx: Transaction, nodes: Sequence[Node], offers: Sequence[Offer]) -> None:
    """Count new intents from now on."""
    if nodes:
        _insert(tx, [intent(node, offers) for node in nodes])


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
    if not rows:
        node = tx.conn.execute(select(schema.nodes).where(_nodes.id == node_id)).one()
        price = {"rate_microusd_per_h": node.rate_microusd_per_h}
        _insert(tx, [_birth(node_id, node.job_id, launched_at_us, OPEN, price)])
    elif rows[-1].end_us:
        _insert(tx, [reopened(rows, launched_at_us)])
    else:
        _set(tx.conn, rows[-1].id, opened(rows[-1], launched_at_us))


def backdate(conn: Connection, node_id: str, launched_at_us: int) -> None:
    """The cloud says that the machine exists for longer than we knew: count from then, at the
    first price that we know of."""
    first = next((row for row in _of_node(conn, node_id) if row.state != VOID), None)
    if first is not None:
        _set(conn, first.id, backdated(first, launched_at_us))


def end(conn: Connection, node_id: str, at_us: int) -> None:
    """The machine is gone: its running segment closes."""
    for row in _of_node(conn, node_id):
        if row.end_us == 0:
            _set(conn, row.id, ended(row, at_us))


def hand_over(tx: Transaction, old_id: str, node: Node) -> None:
    """The machine goes on in another attempt, and the ledger with it."""
    last = _of_node(tx.conn, old_id)[-1]
    end(tx.conn, old_id, node.moved_at_us)
    _insert(tx, [handed_over(last, node)])


def count_strays(
    tx: Transaction, provider: str, instances: Iterable[Instance], asked_at_us: int, at_us: int
) -> None:
    """Machines of nodes that we took for gone: one that is listed as alive costs money until it no
    longer is. `instances` are those alive that no node wants, as asked for at `asked_at_us`."""
    alive = {instance.token: instance for instance in instances}
    for row in tx.conn.execute(_STRAYS, {"provider": provider}).all():
        if row.token not in alive:
            end(tx.conn, row.id, at_us)
    if not alive:
        return
    back = _GONE.where(_nodes.token.in_(sorted(alive))).order_by(_nodes.id)
    for row in tx.conn.execute(back, {"provider": provider}).all():
        if asked_at_us > row.gone_at_us:
            launched_at_us = alive[row.token].launched_at_us
            confirm(tx, row.id, max(launched_at_us, row.requested_at_us))


def void(conn: Connection, node_id: str, at_us: int) -> None:
    """No machine came of the intent: its segment costs nothing."""
    for row in _of_node(conn, node_id):
        if row.end_us == 0:
            _set(conn, row.id, voided(row, at_us))


def _of_node(conn: Connection, node_id: str) -> Sequence[Row[Any]]:
    query = select(schema.segments).where(_segments.node_id == node_id).order_by(_segments.id)
    return conn.execute(query).all()


def _set(conn: Connection, number: int, values: Columns | None) -> None:
    if values:
        conn.execute(update(schema.segments).where(_segments.id == number).values(**values))


def reprice(tx: Transaction, offers: Sequence[Offer], at_us: int) -> None:
    """Split running segments whose price is another one now. An offer that is no longer on sale
    keeps its last price."""
    prices = Prices(offers)
    query = (
        select(schema.segments, _nodes.offer_key)
        .join(schema.nodes, _nodes.id == _segments.node_id)
        .where(_segments.end_us == 0)
        .order_by(_segments.node_id)
    )
    ending: list[Columns] = []
    raised: list[Columns] = []
    following, rates = [], []
    for row in tx.conn.execute(query):
        price = prices.of(row.offer_key)
        change = price and repriced(row, price, at_us)
        if not change:
            continue
        becomes, follows = change
        (ending if follows else raised).append({"segment": row.id, **becomes})
        following += [follows] if follows else []
        rate = (follows or becomes)["rate_microusd_per_h"]
        rates.append({"node": row.node_id, "rate_microusd_per_h": rate})
    _write_prices(tx, ending, following, raised, rates)


def _write_prices(
    tx: Transaction,
    ending: list[Columns],
    following: list[Columns],
    raised: list[Columns],
    rates: list[Columns],
) -> None:
    where = _segments.id == bindparam("segment")
    for rows, names in ((ending, _END), (raised, _PRICE)):
        if rows:
            values: dict[str, Any] = {name: bindparam(name) for name in names}
            tx.conn.execute(update(schema.segments).where(where).values(values), rows)
    if following:
        _insert(tx, following)
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
    select(schema.carriage.c.job_id, func.sum(schema.carriage.c.microusd), literal(0), literal(0))
    .where(schema.carriage.c.job_id.in_(bindparam("jobs", expanding=True)))
    .group_by(schema.carriage.c.job_id),
)


def spent_microusd(conn: Connection, jobs: Sequence[str], now_us: int) -> dict[str, int]:
    """What each job has cost up to `now_us`, its checkpoints as far as that was recorded; a job
    that has cost nothing is left out."""
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
