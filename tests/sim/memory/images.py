"""Baked images."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from spotd.domain.images import BakedImage
from spotd.store.images import ImageRow, good
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction


def images(tables: Tables) -> list[ImageRow]:
    """See Store.images.rows."""
    rows = [row for row in tables.images.values() if not row.gone_at_us]
    rows.sort(key=lambda row: (row.name, row.asked_at_us, row.node_id))
    nodes = tables.nodes
    return [
        replace(row, state=nodes[row.node_id].state if row.node_id in nodes else None)
        for row in rows
    ]


def baked(tables: Tables) -> tuple[BakedImage, ...]:
    """Those that machines can start from."""
    return tuple(good(row) for row in images(tables) if row.good)


def adopt(tx: Transaction, image: ImageRow) -> None:
    """See Store.images.adopt."""
    known = tx.tables.images.get(image.node_id)
    if known is None:
        tx.put(tx.tables.images, image.node_id, image)
    elif not (known.made_at_us or known.unwanted_at_us or known.gone_at_us):
        told = {name: getattr(image, name) for name in ("image_id", "size_gib", "made_at_us")}
        tx.put(tx.tables.images, image.node_id, replace(known, **told))
    tx.market_moved()


def change(tx: Transaction, node_id: str, **new: object) -> None:
    """Set fields of the image of that machine's disk."""
    row = tx.tables.images.get(node_id)
    if row is not None:
        tx.put(tx.tables.images, node_id, replace(row, **new))  # type: ignore[arg-type]
    tx.market_moved()


def unwant(tx: Transaction, node_ids: Collection[str], at_us: int) -> None:
    """See Store.images.request_removal; the first word counts."""
    for node_id in sorted(node_ids):
        row = tx.tables.images.get(node_id)
        if row is not None and not row.unwanted_at_us:
            change(tx, node_id, unwanted_at_us=at_us)
    tx.market_moved()


def record_gone(tx: Transaction, node_id: str, at_us: int) -> None:
    """See Store.images.record_gone."""
    change(tx, node_id, gone_at_us=at_us)
