"""The part of MemoryStore about baked images; see `spotd.store.image_records`."""

from __future__ import annotations

from collections.abc import Collection

from providers.images import Image
from spotd.store.image_records import ImageRow
from tests.sim.memory import images, nodes
from tests.sim.memory.access import MemoryAccess


class MemoryImages(MemoryAccess):
    """A part of `tests.sim.memory_store.MemoryStore`, which has what it works on."""

    def record_cleaned(self, image: ImageRow, at_us: int) -> None:
        self._write(nodes.record_cleaned, image, at_us)

    def record_image(self, node_id: str, image: Image, at_us: int) -> None:
        self._write(nodes.record_image, node_id, image, at_us)

    def images(self) -> list[ImageRow]:
        return images.images(self._here())

    def unwant_images(self, node_ids: Collection[str], at_us: int) -> None:
        self._write(images.unwant, node_ids, at_us)

    def record_image_gone(self, node_id: str, at_us: int) -> None:
        self._write(images.record_gone, node_id, at_us)

    def adopt_image(self, image: ImageRow) -> None:
        self._write(images.adopt, image)
