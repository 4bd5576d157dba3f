"""The part of SqlStore about baked images; see `spotd.store.image_records`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from providers.images import Image
from spotd.store import images, nodes
from spotd.store.image_records import ImageRow
from spotd.store.sql_market import SqlMarket


class SqlImages(SqlMarket, Protocol):
    """A part of `spotd.store.sql_store.SqlStore`, which has what it works on."""

    def record_cleaned(self, image: ImageRow, at_us: int) -> None:
        self._write(lambda tx: nodes.record_cleaned(tx, image, at_us))

    def record_image(self, node_id: str, image: Image, at_us: int) -> None:
        self._write(lambda tx: nodes.record_image(tx, node_id, image, at_us))

    def images(self) -> list[ImageRow]:
        return self._database.read(images.images)

    def unwant_images(self, node_ids: Collection[str], at_us: int) -> None:
        self._write(lambda tx: images.unwant(tx, node_ids, at_us))

    def record_image_gone(self, node_id: str, at_us: int) -> None:
        self._write(lambda tx: images.record_gone(tx, node_id, at_us))

    def adopt_image(self, image: ImageRow) -> None:
        self._write(lambda tx: images.adopt(tx, image))
