"""What every node costs: `spotd.store.ledger` says what becomes of a stretch, this keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from providers.base import Instance, Offer
from spotd.domain.fast_replace import changed
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.money.units import cost_microusd
from spotd.store import ledger
from spotd.store.ledger import Columns, SegmentRow
from tests.sim.memory.tables import Segment, Tables
from tests.sim.memory.transaction import Transaction

_ROW = tuple(SegmentRow.__dataclass_fields__)


def begin(tx: Transaction, nodes: Sequence[Node], offers: Sequence[Offer]) -> None:
    """Count new intents from now on."""
    if nodes:
        _insert(tx, [ledger.intent(node, offers) for node in nodes])


def _insert(tx: Transaction, rows: Sequence[Columns]) -> None:
    unset = {"end_us": 0, "list_rate_microusd_per_h": 0, "best_on_demand_microusd_per_h": 0}
    for number, row in enumerate(rows, start=tx.take_ids(len(rows))):
        segment = Segment(**{**unset, **row}, id=number)
        tables = tx.tables
        tx.put(tables.segments, number, segment)
        numbers = tables.stretches.get(segment.node_id, ())
        tx.put(tables.stretches, segment.node_id, (*numbers, number))
        running = tables.running.get(segment.job_id, ())
        tx.put(tables.running, segment.job_id, (*running, number))


def _set(tx: Transaction, was: Segment, values: Columns | None) -> None:
    if not values:
        return
    tables = tx.tables
    now = changed(was, **values)
    tx.put(tables.segments, was.id, now)
    if now.end_us and not was.end_us:
        left = tuple(number for number in tables.running[was.job_id] if number != was.id)
        if left:
            tx.put(tables.running, was.job_id, left)
        else:
            tx.drop(tables.running, was.job_id)
    more = now.cost_microusd - was.cost_microusd
    if more:
        total = tables.ended_microusd.get(was.job_id, 0) + more
        tx.put(tables.ended_microusd, was.job_id, total)


def _of_node(tables: Tables, node_id: str) -> list[Segment]:
    return [tables.segments[number] for number in tables.stretches.get(node_id, ())]


def _running(tables: Tables) -> list[tuple[Segment, Node]]:
    """All that have not ended, by node."""
    found = [tables.segments[number] for numbers in tables.running.values() for number in numbers]
    found.sort(key=lambda segment: segment.node_id)
    return [(segment, tables.nodes[segment.node_id]) for segment in found]


def confirm(tx: Transaction, node_id: str, launched_at_us: int) -> None:
    """A machine is known to exist since `launched_at_us`: its segment opens then, or goes on."""
    rows = _of_node(tx.tables, node_id)
    if rows[-1].end_us:
        _insert(tx, [ledger.reopened(rows, launched_at_us)])
    else:
        _set(tx, rows[-1], ledger.opened(rows[-1], launched_at_us))


def backdate(tx: Transaction, node_id: str, launched_at_us: int) -> None:
    """The cloud says that the machine exists for longer than we knew."""
    rows = _of_node(tx.tables, node_id)
    first = next((row for row in rows if row.state != ledger.VOID), None)
    if first is not None:
        _set(tx, first, ledger.backdated(first, launched_at_us))


def end(tx: Transaction, node_id: str, at_us: int) -> None:
    """The machine is gone: its running segment closes."""
    for row in _of_node(tx.tables, node_id):
        if row.end_us == 0:
            _set(tx, row, ledger.ended(row, at_us))


def void(tx: Transaction, node_id: str, at_us: int) -> None:
    """No machine came of the intent: its segment costs nothing."""
    for row in _of_node(tx.tables, node_id):
        if row.end_us == 0:
            _set(tx, row, ledger.voided(row, at_us))


def hand_over(tx: Transaction, old_id: str, node: Node) -> None:
    """The machine goes on in another attempt, and the ledger with it."""
    last = _of_node(tx.tables, old_id)[-1]
    end(tx, old_id, node.moved_at_us)
    _insert(tx, [ledger.handed_over(last, node)])


def count_strays(
    tx: Transaction, provider: str, instances: Iterable[Instance], asked_at_us: int, at_us: int
) -> None:
    """Machines of nodes that we took for gone cost money as long as they are listed as alive."""
    tables = tx.tables
    alive = {instance.token: instance for instance in instances}
    for _, node in _running(tables):
        if _is_gone(node, provider) and node.token not in alive:
            end(tx, node.id, at_us)
    for node_id in sorted(tables.tokens[token] for token in alive if token in tables.tokens):
        node = tables.nodes[node_id]
        if _is_gone(node, provider) and asked_at_us > node.machine.gone_at_us:
            launched_at_us = alive[node.token].launched_at_us
            confirm(tx, node_id, max(launched_at_us, node.requested_at_us))


def _is_gone(node: Node, provider: str) -> bool:
    return node.state is NodeState.GONE and node.offer.provider == provider


def reprice(tx: Transaction, offers: Sequence[Offer], at_us: int) -> None:
    """Split running segments whose price is another one now."""
    prices = ledger.Prices(offers)
    following: list[Columns] = []
    for row, node in _running(tx.tables):
        price = prices.of(node.offer.key)
        change = price and ledger.repriced(row, price, at_us)
        if not change:
            continue
        becomes, follows = change
        _set(tx, row, becomes)
        following += [follows] if follows else []
        rate = (follows or becomes)["rate_microusd_per_h"]
        tx.change_node(node, offer=changed(node.offer, price_microusd_per_h=rate))
    if following:
        _insert(tx, following)


def repriced_jobs(tables: Tables, provider: str, offers: Mapping[str, Offer]) -> list[str]:
    """The jobs that pay another price for a machine of `provider` than its `offers` say now."""
    return [
        row.job_id
        for row, node in _running(tables)
        if node.offer.provider == provider
        and node.offer.key in offers
        and offers[node.offer.key].price_microusd_per_h != row.rate_microusd_per_h
    ]


def spent_microusd(tables: Tables, job_id: str, now_us: int) -> int:
    """What a job has cost up to `now_us`."""
    spent = tables.ended_microusd.get(job_id, 0)
    for number in tables.running.get(job_id, ()):
        row = tables.segments[number]
        spent += cost_microusd(row.rate_microusd_per_h, row.start_us, now_us)
    return spent + sum(
        row.microusd for (owner, _), row in tables.carriage.items() if owner == job_id
    )


def segments(tables: Tables, job_id: str | None) -> list[SegmentRow]:
    """In the order in which they began to be counted."""
    return [
        SegmentRow(**{name: getattr(row, name) for name in _ROW})
        for row in tables.segments.values()
        if job_id is None or row.job_id == job_id
    ]
