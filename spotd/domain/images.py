"""Images made by `spotctl image bake`, as jobs name them: `image_id: baked:NAME`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from providers.base import Offer

PREFIX = "baked:"
MOST = 40  # characters of a name: a cloud's own name of the image has the machine's hash behind it
_NAME = re.compile(rf"[a-z](?:[a-z0-9-]{{0,{MOST - 2}}}[a-z0-9])?")


@dataclass(frozen=True)
class BakedImage:
    """An image that machines can start from.

    `region` is "" if it is available in all of the provider's regions. `setup` is the digest of
    its setup (`planner.core.image_build.setup_digest`).
    """

    name: str
    provider: str
    region: str
    image_id: str
    setup: str
    made_at_us: int


def check_name(name: str) -> None:
    """Raise ValueError if this cannot name a baked image."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:100]!r} is not a name of a baked image; write small letters, digits and "
            f"hyphens, a letter first, no hyphen last, {MOST} at most"
        )


def baked_of(image_id: str) -> str:
    """The name in a job's `image_id`; "" where that is the vendor's or a container's."""
    return image_id.removeprefix(PREFIX) if image_id.startswith(PREFIX) else ""


def image_for(name: str, offer: Offer, images: Iterable[BakedImage]) -> BakedImage | None:
    """The newest of that name which a machine of `offer` can start from."""
    fitting = [
        image
        for image in images
        if image.name == name
        and image.provider == offer.provider
        and image.region in ("", offer.region)
    ]
    return max(fitting, key=lambda one: (one.made_at_us, one.image_id), default=None)
