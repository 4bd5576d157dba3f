"""Verbs that not every provider has: images of machines, which later machines start from."""

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

# What every cloud takes for a name of an image and of its snapshot, and as the value of a tag.
NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,60}[a-z0-9])?")
NAME_TAG = "spotd-image"
NAME_PREFIX = "spotd-"


class ImageState(str, Enum):
    """How far an image is."""

    MAKING = "making"
    AVAILABLE = "available"
    FAILED = "failed"


@dataclass(frozen=True)
class Image:
    """One of ours. `image_id` is what `LaunchRequest.image_id` takes; `region` is where that is
    good for machines, "" for everywhere. `made_at_us` is 0 where the cloud does not say."""

    image_id: str
    name: str
    state: ImageState
    region: str
    tags: Mapping[str, str]
    made_at_us: int = 0
    error: str = ""  # the vendor's text, of one that failed
    size_gib: int = 0  # of the disk that it is of; 0 where the cloud does not say


@runtime_checkable
class ImageMaker(Protocol):
    """What a provider can also do. Every verb may raise any `ProviderError`."""

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """Take the image of that name one step on, from the disk that a machine started from, as it
        is at the first call: called until the state is another than MAKING. Idempotent on `name`
        (see `check_name`); once it is AVAILABLE the machine is not needed. The machine is neither
        stopped nor marked. Raises RejectedError for a name of somebody else's image."""
        ...

    def images(self) -> Sequence[Image]:
        """Every image that carries our deployment's tag, complete, or an error."""
        ...

    def remove_image(self, image_id: str) -> None:
        """Remove an image of ours and all that is billed for it. An unknown id, and one that is not
        ours, is left alone and is success; machines that started from it live on."""
        ...


def check_name(name: str) -> None:
    """Raises RejectedError for what not every cloud takes for a name."""
    if not name.startswith(NAME_PREFIX) or not NAME.fullmatch(name):
        raise RejectedError(
            f"{name!r} is no name of an image: {NAME_PREFIX!r}, then small letters, digits and "
            "hyphens, 62 in all, no hyphen last"
        )


def not_ours(name: str, where: str) -> RejectedError:
    """Of a name that is taken."""
    return RejectedError(
        f"{where} has an image {name} already that is not of this deployment: take another name"
    )


@cache
def month_prices() -> Mapping[str, int]:
    """Micro-USD for a GiB of disk and month at the most, by make of cloud; those with no figure are
    missing. From providers/catalogs/image_prices.toml, which has the sources."""
    document = tomllib.loads(files("providers.catalogs").joinpath("image_prices.toml").read_text())
    return {cloud: round(one["usd_per_gib_month"] * 1e6) for cloud, one in document.items()}
