"""Machines that no node wants: whether one ever did, and what a person said about them."""

from __future__ import annotations

from collections.abc import Sequence

from spotd.store.deployment import CONFIRMED, HOME, INTENDED
from spotd.store.orphans import RELEASED, NodeRowTimes, OwnedResource, matched
from tests.sim.memory.columns import NodeColumns
from tests.sim.memory.market import set_quarantine
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction


def asked_for(
    tables: Tables, provider: str, instances: Sequence[OwnedResource]
) -> dict[str, NodeRowTimes]:
    """See Store.orphans.known."""
    nodes = [node for node in tables.nodes.values() if node.offer.provider == provider]
    return matched([NodeColumns(node) for node in nodes], instances)


def record_renewed(tx: Transaction, node_id: str, until_us: int) -> None:
    """See Store.nodes.record_renewed."""
    node = tx.tables.nodes.get(node_id)
    if node is not None and node.lease.renewed_until_us < until_us:
        tx.change_node(node, renewed_until_us=until_us)


def release(tx: Transaction, name: str, at_us: int) -> None:
    """See Store.orphans.release."""
    latest_us = max(released_us(tx.tables, name), at_us)
    tx.put(tx.tables.counters, RELEASED + name, latest_us)


def record_claim(tx: Transaction, confirmed: int, intended: int) -> None:
    """See Store.deployment.record_claim."""
    tx.put(tx.tables.counters, CONFIRMED, confirmed)
    tx.put(tx.tables.counters, INTENDED, intended)


def record_home(tx: Transaction, home: int, moved: str, at_us: int) -> None:
    """See Store.deployment.record_home."""
    if tx.tables.counters.get(HOME, home) != home:
        set_quarantine(tx, moved, at_us)
    tx.put(tx.tables.counters, HOME, home)


def released_us(tables: Tables, name: str) -> int:
    """See Store.orphans.released_us."""
    return tables.counters.get(RELEASED + name, 0)
