"""Optional provider capability: create machine images, from which later machines start."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Protocol, runtime_checkable

from providers.base import RejectedError

# Valid on every cloud as the name of an image and of its snapshot, and as a tag value.
NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,60}[a-z0-9])?")
NAME_TAG = "spotd-image"
NAME_PREFIX = "spotd-"


class ImageState(str, Enum):
    MAKING = "making"
    AVAILABLE = "available"
    FAILED = "failed"


@dataclass(frozen=True)
class Image:
    """An image of this deployment.

    `image_id` is valid in `LaunchRequest.image_id`; `region` is where, "" for everywhere.
    `made_at_us` is 0 where the cloud does not report it.
    """

    image_id: str
    name: str
    state: ImageState
    region: str
    tags: Mapping[str, str]
    made_at_us: int = 0
    error: str = ""  # the vendor's message, for FAILED
    size_gib: int = 0  # of the disk; 0 where the cloud does not report it


@runtime_checkable
class ImageMaker(Protocol):
    """A provider that can create images. Every verb may raise any `ProviderError`."""

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """Create an image of a machine's boot disk, one step per call; call it until the state is
        not MAKING.

        The image has the content of the disk at the first call. Idempotent on `name` (see
        `check_name`). The machine is neither stopped nor changed, and is not needed once the image
        is AVAILABLE. Raises RejectedError when an image of another deployment has the name.
        """
        ...

    def images(self) -> Sequence[Image]:
        """Return every image with this deployment's tag: the complete list, or an error."""
        ...

    def remove_image(self, image_id: str) -> None:
        """Delete an image of this deployment and everything that is billed for it.

        An unknown id, and an image of another deployment, are left alone and are success. Machines
        that started from the image are not affected.
        """
        ...


class HasImages:
    """A provider whose images another object makes. Its verbs are those of `ImageMaker`."""

    _images: ImageMaker

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """See ImageMaker.make_image."""
        return self._images.make_image(instance_id, name, tags)

    def images(self) -> Sequence[Image]:
        """See ImageMaker.images."""
        return self._images.images()

    def remove_image(self, image_id: str) -> None:
        """See ImageMaker.remove_image."""
        self._images.remove_image(image_id)


def check_name(name: str) -> None:
    """Raises RejectedError for a name that not every cloud accepts."""
    if not name.startswith(NAME_PREFIX) or not NAME.fullmatch(name):
        raise RejectedError(
            f"{name!r} is not a valid image name: use {NAME_PREFIX!r}, then lower-case letters, "
            "digits and hyphens, at most 62 characters, no hyphen last"
        )


def name_taken(name: str, where: str) -> RejectedError:
    """The error for a name that an image of another deployment has."""
    return RejectedError(
        f"{where} already has an image {name} of another deployment: use another name"
    )


@cache
def monthly_prices() -> Mapping[str, int]:
    """Return the maximum price of a GiB of image storage per month in micro-USD, by cloud.

    Clouds without a figure are missing. providers/catalogs/image_prices.toml has the sources.
    """
    document = tomllib.loads(files("providers.catalogs").joinpath("image_prices.toml").read_text())
    return {cloud: round(row["usd_per_gib_month"] * 1e6) for cloud, row in document.items()}
