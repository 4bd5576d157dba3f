"""Baked images: what was to be made, is there, and is to go."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row, select, update

from spotd.domain.images import BakedImage
from spotd.domain.states import NodeState
from spotd.store import schema
from spotd.store.image_records import ImageRow
from spotd.store.transaction import Transaction

_images, _nodes = schema.images.c, schema.nodes.c
_COLUMNS = tuple(column.name for column in schema.images.columns)
_ALL = (
    select(schema.images, _nodes.state)
    .join_from(schema.images, schema.nodes, _nodes.id == _images.node_id, isouter=True)
    .where(_images.gone_at_us == 0)
    .order_by(_images.name, _images.asked_at_us, _images.node_id)
)


def images(conn: Connection) -> list[ImageRow]:
    """See ImageRecords.images."""
    return [_row(row) for row in conn.execute(_ALL)]


def _row(row: Row[Any]) -> ImageRow:
    values = {name: getattr(row, name) for name in _COLUMNS}
    return ImageRow(**values, state=None if row.state is None else NodeState(row.state))


def baked(conn: Connection) -> tuple[BakedImage, ...]:
    """Those that machines can start from."""
    return tuple(good(row) for row in images(conn) if row.good)


def good(row: ImageRow) -> BakedImage:
    """As decisions know it."""
    return BakedImage(row.name, row.provider, row.region, row.image_id, row.setup, row.made_at_us)


def adopt(tx: Transaction, image: ImageRow) -> None:
    """See ImageRecords.adopt_image."""
    known = select(_images.node_id).where(_images.node_id == image.node_id)
    if tx.conn.execute(known).first() is None:
        values = {name: getattr(image, name) for name in _COLUMNS}
        tx.conn.execute(schema.images.insert().values(**values))
    else:
        rows = update(schema.images).where(_images.node_id == image.node_id)
        for column in (_images.made_at_us, _images.unwanted_at_us, _images.gone_at_us):
            rows = rows.where(column == 0)
        told = ("image_id", "size_gib", "made_at_us")
        tx.conn.execute(rows.values({name: getattr(image, name) for name in told}))
    tx.market_moved()


def unwant(tx: Transaction, node_ids: Collection[str], at_us: int) -> None:
    """See ImageRecords.unwant_images; the first word counts."""
    rows = update(schema.images).where(_images.node_id.in_(sorted(node_ids)))
    tx.conn.execute(rows.where(_images.unwanted_at_us == 0).values(unwanted_at_us=at_us))
    tx.market_moved()


def record_gone(tx: Transaction, node_id: str, at_us: int) -> None:
    """See ImageRecords.record_image_gone."""
    change(tx, node_id, gone_at_us=at_us)


def change(tx: Transaction, node_id: str, **values: Any) -> None:
    """Set columns of the image of that machine's disk."""
    row = _images.node_id == node_id
    tx.conn.execute(update(schema.images).where(row).values(**values))
    tx.market_moved()
