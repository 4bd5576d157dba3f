"""Which clouds make machine images, and where the configuration names one."""

from __future__ import annotations

from collections.abc import Mapping

from providers.base import Provider
from providers.images import ImageMaker
from spotd.config.config import Config


def makers_of(config: Config, providers: Mapping[str, Provider]) -> dict[str, str]:
    """Return the cloud make of every provider that makes images."""
    return {
        name: entry.kind
        for name, entry in config.file.providers.items()
        if isinstance(providers.get(name), ImageMaker)
    }


def configured_images(config: Config) -> dict[str, str]:
    """Image id -> where it is named."""
    named = {name: getattr(entry, "image", "") for name, entry in config.file.providers.items()}
    return {image: f"[providers.{name}] image" for name, image in named.items() if image}
