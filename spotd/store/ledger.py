"""The ledger: each node's cost, as segments at one price, in integers.

A segment is "unknown" from the intent to launch, at its time and its highest price: until the
outcome is known the worst case counts. It becomes "open" when the machine is known, is closed and
followed by another when a price changes, and ends "closed" when the machine is gone, or "void" if
none was created.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    bindparam,
    func,
    literal,
    null,
    select,
    union_all,
    update,
)

from providers.base import PREPAID, CapacityType, Instance, Offer
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.money.hour_breakdown import Segment
from spotd.money.units import cost_microusd
from spotd.store import schema
from spotd.store.rows import ZERO
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction


@dataclass(frozen=True)
class SegmentRow:
    """A period of one node at one price. `end_us` is 0 while it runs.

    `state` is "unknown" (launch in flight, counted at its worst case), "open", "closed", or "void"
    (no instance was created: costs nothing). `invoiced_microusd` is the amount of an invoice for
    it, known since `reconciled_at_us` (0: not known).
    """

    node_id: str
    job_id: str
    kind: str
    start_us: int
    end_us: int
    rate_microusd_per_h: int
    list_rate_microusd_per_h: int
    best_on_demand_microusd_per_h: int
    price_source: str
    state: str
    id: int = 0
    reconciled_at_us: int = 0
    invoiced_microusd: int = 0


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
    """The lowest on-demand price, anywhere, of an equivalent machine; 0 if no price is known.

    Equivalent: the same accelerators, or as many CPUs and as much memory if there are none.
    """
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


def intent(node: Node, offers: Sequence[Offer]) -> Columns:
    """The first segment of a node whose launch is decided."""
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
    """The columns of a segment that ends at `end_us`; its cost is known."""
    cost = cost_microusd(row.rate_microusd_per_h, row.start_us, end_us)
    return {"state": CLOSED, "end_us": end_us, "cost_microusd": cost}


def voided(row: Stretch, at_us: int) -> Columns:
    """The columns of a segment that ends and costs nothing."""
    return {"state": VOID, "end_us": _end_us(row, at_us), "cost_microusd": 0}


def ended(row: Stretch, at_us: int) -> Columns:
    """The columns of a segment that ends with its machine."""
    return closed(row, _end_us(row, at_us))


def _end_us(row: Stretch, at_us: int) -> int:
    return max(at_us, row.start_us, 1)


def opened(last: Stretch, launched_at_us: int) -> Columns | None:
    """Return the columns of a running segment whose machine is known to exist; None if
    unchanged."""
    if last.state != UNKNOWN:
        return None
    return {"state": OPEN, "start_us": max(launched_at_us, last.start_us)}


def reopened(rows: Sequence[Stretch], launched_at_us: int) -> Columns:
    """The segment that follows a node's ended `rows`.

    It starts where the last one ended, or with the machine if that one was void. No hour counts
    twice.
    """
    last = rows[-1]
    counted_us = max((row.end_us for row in rows if row.state != VOID), default=0)
    start_us = max(launched_at_us, counted_us) if last.state == VOID else last.end_us
    price = {name: getattr(last, name) for name in _PRICE}
    return _birth(last.node_id, last.job_id, start_us, OPEN, price)


def backdated(first: Stretch, launched_at_us: int) -> Columns | None:
    """The columns of a segment whose machine is older than recorded; None if it is not."""
    if first.state == UNKNOWN or launched_at_us >= first.start_us:
        return None
    if first.state != CLOSED:
        return {"start_us": launched_at_us}
    cost = cost_microusd(first.rate_microusd_per_h, launched_at_us, first.end_us)
    return {"start_us": launched_at_us, "cost_microusd": cost}


def handed_over(last: Stretch, node: Node) -> Columns:
    """The segment after `last` when a machine continues as `node`: at the same price, from the move
    on, so that no hour counts twice and none is left out."""
    price = {name: getattr(last, name) for name in _PRICE}
    return _birth(node.id, node.job_id, node.moved_at_us, OPEN, price)


class Prices:
    """The prices of machines at today's `offers`."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = offers
        self._by_key = {offer.key: offer for offer in offers}
        self._best: dict[tuple[object, ...], int] = {}

    def of(self, offer_key: str) -> Columns | None:
        """The price of that offer; None if it is no longer on sale."""
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
    """The columns of a running segment at a new price, and the segment that follows it, if any;
    None if no price changed.

    An intent of unknown outcome is not split: it takes the higher price for its whole period.
    """
    if all(price[name] == getattr(row, name) for name in _AMOUNTS):
        return None
    if row.state == UNKNOWN:
        rate = max(row.rate_microusd_per_h, price["rate_microusd_per_h"])
        return {**price, "rate_microusd_per_h": rate}, None
    if row.start_us < at_us:
        return closed(row, at_us), _birth(row.node_id, row.job_id, at_us, OPEN, price)
    return price, None


def begin(tx: Transaction, nodes: Sequence[Node], offers: Sequence[Offer]) -> None:
    """Start to count new intents."""
    if nodes:
        _insert(tx, [intent(node, offers) for node in nodes])


def _insert(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    first = tx.take_ids(len(rows))
    tx.conn.execute(
        schema.segments.insert(), [{"id": first + at, **row} for at, row in enumerate(rows)]
    )


def confirm(tx: Transaction, node_id: str, launched_at_us: int) -> None:
    """Open the segment of a machine that is known to exist since `launched_at_us`.

    A node whose segment had ended already (declared absent too early, or missing from one listing)
    continues where the last one ended, so that no paid time is lost.
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
    """The cloud reports that the machine is older than recorded: count from then, at the first
    known price."""
    first = next((row for row in _of_node(conn, node_id) if row.state != VOID), None)
    if first is not None:
        _set(conn, first.id, backdated(first, launched_at_us))


def end(conn: Connection, node_id: str, at_us: int) -> None:
    """The machine is gone: its running segment closes."""
    for row in _of_node(conn, node_id):
        if row.end_us == 0:
            _set(conn, row.id, ended(row, at_us))


def hand_over(tx: Transaction, old_id: str, node: Node) -> None:
    """The machine continues in another attempt, and the ledger with it."""
    last = _of_node(tx.conn, old_id)[-1]
    end(tx.conn, old_id, node.moved_at_us)
    _insert(tx, [handed_over(last, node)])


def count_strays(
    tx: Transaction, provider: str, instances: Iterable[Instance], asked_at_us: int, at_us: int
) -> None:
    """Count machines of nodes that were taken for gone while a listing shows them alive.

    `instances` are live ones without a node, as requested at `asked_at_us`.
    """
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
    """The intent created no machine: its segment costs nothing."""
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
    """Split running segments whose price changed. An offer no longer on sale keeps its last
    price."""
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


class LedgerRepository(Repository):
    """The cost of nodes, as segments at one price."""

    @write
    def record_invoiced(self, tx: Transaction, amounts: Mapping[int, int], at_us: int) -> None:
        """Record what an invoice charges for segments, in micro-USD by segment id.

        The newest amount counts. Sums that limits are compared with stay by price and time.
        """
        if not amounts:
            return
        rows = [{"segment": number, "amount": amounts[number]} for number in sorted(amounts)]
        values = {"invoiced_microusd": bindparam("amount"), "reconciled_at_us": at_us}
        where = _segments.id == bindparam("segment")
        tx.conn.execute(update(schema.segments).where(where).values(values), rows)

    @read
    def segments(self, conn: Connection, job_id: str | None = None) -> list[SegmentRow]:
        """Segments of one job or of all, oldest first."""
        query = select(schema.segments).order_by(_segments.id)
        if job_id is not None:
            query = query.where(_segments.job_id == job_id)
        names = SegmentRow.__dataclass_fields__
        return [
            SegmentRow(**{name: row[name] for name in names})
            for row in conn.execute(query).mappings()
        ]


def spent_microusd(conn: Connection, jobs: Sequence[str], now_us: int) -> dict[str, int]:
    """Each job's cost up to `now_us`, with recorded storage costs; jobs without cost are left
    out."""
    spent: dict[str, int] = {}
    for row in conn.execute(_SPENT, {"jobs": jobs}):
        cost = row.cost if row.cost is not None else cost_microusd(row.rate, row.start_us, now_us)
        spent[row.job_id] = spent.get(row.job_id, 0) + int(cost)
    return spent


def repriced_jobs(conn: Connection, provider: str, offers: Mapping[str, Offer]) -> list[str]:
    """Jobs that pay another price for a machine of `provider` than its new `offers`, by key: those
    that `reprice` will split."""
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


def stretch_of(row: SegmentRow, now_us: int) -> Segment:
    """Convert a segment for the cost functions, up to now while it runs. Not for void ones."""
    return Segment(
        row.start_us,
        row.end_us or max(now_us, row.start_us),
        row.rate_microusd_per_h,
        row.list_rate_microusd_per_h,
        row.best_on_demand_microusd_per_h,
        price_source=row.price_source,
        running=not row.end_us,
        prepaid=row.price_source == PREPAID,
        reconciled=bool(row.reconciled_at_us),
        invoiced_microusd=row.invoiced_microusd,
    )
