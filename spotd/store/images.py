"""Machine images: to be made, made, and to be deleted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select, update

from spotd.domain.images import BakedImage
from spotd.domain.states import NodeState
from spotd.store import schema
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction


@dataclass(frozen=True)
class ImageRow:
    """An image that is, or was, to be made of one machine's disk.

    `vendor_name` is the cloud's name for it, `setup` the digest of the setup, `base` the image the
    machine started from ("": the provider's own), `version` the spotd that made it. `region` is
    where it can be used, "" for all of the provider's. `state` is the machine's; None if the record
    has no such machine.
    """

    node_id: str
    job_id: str
    name: str
    provider: str
    region: str
    vendor_name: str
    setup: str = ""
    base: str = ""
    version: str = ""
    asked_at_us: int = 0
    image_id: str = ""
    size_gib: int = 0  # of the disk; what is billed may be less
    made_at_us: int = 0  # 0: it is not there yet, or never will be
    unwanted_at_us: int = 0  # somebody asked for its end
    gone_at_us: int = 0
    state: NodeState | None = None

    @property
    def half_made(self) -> bool:
        """Whether the machine left before the image was made."""
        over = self.state in (None, NodeState.TERMINATING, NodeState.GONE)
        return not self.made_at_us and over

    @property
    def good(self) -> bool:
        """Whether machines may start from it."""
        return bool(self.made_at_us and self.image_id) and not self.unwanted_at_us


_images, _nodes = schema.images.c, schema.nodes.c
_COLUMNS = tuple(column.name for column in schema.images.columns)
_ALL = (
    select(schema.images, _nodes.state)
    .join_from(schema.images, schema.nodes, _nodes.id == _images.node_id, isouter=True)
    .where(_images.gone_at_us == 0)
    .order_by(_images.name, _images.asked_at_us, _images.node_id)
)


class ImageRepository(Repository):
    """Images made of the disks of nodes."""

    @read
    def rows(self, conn: Connection) -> list[ImageRow]:
        """All images not known to be deleted, by name, then oldest first."""
        return images(conn)

    @write
    def request_removal(self, tx: Transaction, node_ids: Collection[str], at_us: int) -> None:
        """Record that no node may start from these images any more, and that the sweep deletes
        them."""
        rows = update(schema.images).where(_images.node_id.in_(sorted(node_ids)))
        tx.conn.execute(rows.where(_images.unwanted_at_us == 0).values(unwanted_at_us=at_us))
        tx.market_moved()

    @write
    def record_gone(self, tx: Transaction, node_id: str, at_us: int) -> None:
        """Record that the image is deleted."""
        change(tx, node_id, gone_at_us=at_us)

    @write
    def adopt(self, tx: Transaction, image: ImageRow) -> None:
        """Record an image of this deployment found in a cloud that a restored database does not
        know.

        Does nothing for one that is recorded as made, as to be deleted, or as deleted.
        """
        adopt(tx, image)


def images(conn: Connection) -> list[ImageRow]:
    """All images not known to be deleted."""
    return [_row(row) for row in conn.execute(_ALL)]


def _row(row: Row[Any]) -> ImageRow:
    values = {name: getattr(row, name) for name in _COLUMNS}
    return ImageRow(**values, state=None if row.state is None else NodeState(row.state))


def baked(conn: Connection) -> tuple[BakedImage, ...]:
    """Images that machines can start from."""
    return tuple(good(row) for row in images(conn) if row.good)


def good(row: ImageRow) -> BakedImage:
    """The image as decisions see it."""
    return BakedImage(row.name, row.provider, row.region, row.image_id, row.setup, row.made_at_us)


def adopt(tx: Transaction, image: ImageRow) -> None:
    """Record an image that was found in a cloud."""
    known = select(_images.node_id).where(_images.node_id == image.node_id)
    if tx.conn.execute(known).first() is None:
        values = {name: getattr(image, name) for name in _COLUMNS}
        tx.conn.execute(schema.images.insert().values(**values))
    else:
        rows = update(schema.images).where(_images.node_id == image.node_id)
        for column in (_images.made_at_us, _images.unwanted_at_us, _images.gone_at_us):
            rows = rows.where(column == 0)
        names = ("image_id", "size_gib", "made_at_us")
        tx.conn.execute(rows.values({name: getattr(image, name) for name in names}))
    tx.market_moved()


def change(tx: Transaction, node_id: str, **values: Any) -> None:
    """Set columns of the image of that machine's disk."""
    row = _images.node_id == node_id
    tx.conn.execute(update(schema.images).where(row).values(**values))
    tx.market_moved()
