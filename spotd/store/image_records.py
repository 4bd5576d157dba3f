"""The part of the store's contract about baked images."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from providers.images import Image
from spotd.domain.states import NodeState


@dataclass(frozen=True)
class ImageRow:
    """An image that was ever to be made of the disk of one machine. `vendor_name` is the cloud's
    name of it, `setup` the digest of what was set up, `base` the image that the machine started
    from ("" for the provider's own), `version` the spotd that baked it. `region` is where it is
    good, "" for all of the provider's. `state` is the machine's: None where the record has none."""

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
        """Its machine left before it was there."""
        over = self.state in (None, NodeState.TERMINATING, NodeState.GONE)
        return not self.made_at_us and over

    @property
    def good(self) -> bool:
        """Machines may start from it."""
        return bool(self.made_at_us and self.image_id) and not self.unwanted_at_us


class ImageRecords(Protocol):
    """A part of `spotd.store.interface.Store`."""

    def record_cleaned(self, image: ImageRow, at_us: int) -> None:
        """The disk of the machine `image.node_id` is clean, and the image about to be asked for: it
        is on record before the first call that could make it."""
        ...

    def record_image(self, node_id: str, image: Image, at_us: int) -> None:
        """How far the image of that machine's disk is. One whose machine is being ended is not
        taken for made any more: whoever sweeps may be removing it."""
        ...

    def images(self) -> list[ImageRow]:
        """All that are not known to be gone, by name and then the oldest first."""
        ...

    def unwant_images(self, node_ids: Collection[str], at_us: int) -> None:
        """No machine starts from these any more, and they are to be removed."""
        ...

    def record_image_gone(self, node_id: str, at_us: int) -> None: ...

    def adopt_image(self, image: ImageRow) -> None:
        """One of ours that was found in a cloud, and that a restored record lacks, or has as not
        yet there. Nothing for one that is there, unwanted or gone by the record."""
        ...
