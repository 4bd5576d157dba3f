"""The images of a simulated cloud: each of one machine's disk, made a while after it was begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from providers.base import RejectedError
from providers.images import Image, ImageState, check_name
from tests.sim.kernel import Kernel

if TYPE_CHECKING:
    from tests.sim.cloud import Rented

MAKING_S = 40.0


@dataclass
class Made:
    """One, and whether the disk was clean when it was begun."""

    image: Image
    begun_us: int
    clean: bool


class SimImages:
    """What `providers.images.ImageMaker` asks of a cloud."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.made: dict[str, Made] = {}

    def make(self, rented: Rented | None, name: str, tags: Mapping[str, str]) -> Image:
        """Begin it at the first call for its name."""
        check_name(name)
        if name not in self.made:
            if rented is None or not rented.alive:
                raise RejectedError("the machine is gone, and no image can be made of it")
            image = Image(f"ami-{name}", name, ImageState.MAKING, rented.request.region, tags)
            clean = bool(getattr(rented.machine, "cleaned", False))
            self.made[name] = Made(image, self._kernel.now_us, clean)
        return self._now(self.made[name])

    def all(self) -> list[Image]:
        return [self._now(made) for made in self.made.values()]

    def remove(self, image_id: str) -> None:
        self.made = {n: made for n, made in self.made.items() if made.image.image_id != image_id}

    def _now(self, made: Made) -> Image:
        there_us = made.begun_us + int(MAKING_S * 1e6)
        if self._kernel.now_us < there_us:
            return made.image
        return replace(made.image, state=ImageState.AVAILABLE, made_at_us=there_us)
