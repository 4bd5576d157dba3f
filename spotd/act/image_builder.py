"""The calls of an image build: clean a machine's disk, and advance its image by one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Protocol

from providers.base import AuthError, Provider, QuotaError, RejectedError, UnpreparedError
from providers.images import Image, ImageMaker, ImageState
from spotd.base.clock import Clock
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.plan import Effect
from spotd.planner.core.image_build import setup_digest, vendor_name
from spotd.security.secrets import JobKeys
from spotd.store.images import ImageRow
from spotd.store.interface import Store

NAME_TAG, SETUP_TAG, NODE_TAG = "spotd-baked", "spotd-setup", "spotd-node"
VERSION_TAG = "spotd-version"

Record = Callable[[], None]


class UncleanDiskError(Exception):
    """Something that no image may contain could not be removed from the disk."""


class Cleaner(Protocol):
    """A part of `act.node_link.NodeLink`."""

    def clean(self, node: Node, keys: JobKeys, prepared_file: str, deadline_s: float) -> None:
        """Stop the agent and remove from the disk everything that no image may contain.

        Nobody can log in afterwards. Raises LinkError, after which the disk may be clean or not,
        and UncleanDiskError if it is not and never will be.
        """
        ...


def row_of(job: Job, node: Node) -> ImageRow:
    """Return the row that is recorded before the image is requested."""
    return ImageRow(
        node_id=node.id,
        job_id=job.id,
        name=job.spec.program.bake,
        provider=node.offer.provider,
        region=node.offer.region,
        vendor_name=vendor_name(job.spec, node),
        setup=setup_digest(job.spec),
        base=node.startup.image_id or job.spec.resources.image_id,
        version=version("spotd"),
    )


def tags_of(row: ImageRow) -> dict[str, str]:
    """Return the image's tags, for a database that does not know it."""
    return {
        "spotd-job": row.job_id,
        NODE_TAG: row.node_id,
        NAME_TAG: row.name,
        SETUP_TAG: row.setup,
        VERSION_TAG: row.version,
    }


def row_found(provider: str, image: Image, now_us: int) -> ImageRow | None:
    """Return the row of an image that exists but is not recorded; None without our tags.

    If its cloud does not say since when it exists, it counts from now.
    """
    tags = image.tags
    if not all(tags.get(name) for name in (NODE_TAG, NAME_TAG)):
        return None
    return ImageRow(
        node_id=tags[NODE_TAG],
        job_id=tags.get("spotd-job", ""),
        name=tags[NAME_TAG],
        provider=provider,
        region=image.region,
        vendor_name=image.name,
        setup=tags.get(SETUP_TAG, ""),
        version=tags.get(VERSION_TAG, ""),
        asked_at_us=image.made_at_us or now_us,
        image_id=image.image_id,
        size_gib=image.size_gib,
        made_at_us=image.made_at_us or now_us,
    )


class BuildContext(Protocol):
    """The part of `act.effects.EffectContext` that an image build needs."""

    @property
    def link(self) -> Cleaner: ...
    @property
    def keys(self) -> Callable[[str], JobKeys]: ...
    @property
    def store(self) -> Store: ...
    @property
    def clock(self) -> Clock: ...


def take_step(effect: Effect, provider: Provider, world: BuildContext, left_s: float) -> Record:
    """Clean the disk, and once that is recorded, have the image made.

    Raises LinkError, ProviderError.
    """
    job, node = effect.job, effect.node
    if node.bake.cleaned_at_us:
        return _make_image(job, node, provider, world)
    return _clean(job, node, provider, world, left_s)


def _clean(job: Job, node: Node, provider: Provider, world: BuildContext, left_s: float) -> Record:
    store, clock = world.store, world.clock
    try:
        world.link.clean(node, world.keys(job.id), provider.prepared_file, left_s)
    except UncleanDiskError as error:
        text = str(error)
        return lambda: _record_never(store, node, text, clock.now_us())

    def record() -> None:
        now_us = clock.now_us()
        store.nodes.record_cleaned(replace(row_of(job, node), asked_at_us=now_us), now_us)

    return record


def _make_image(job: Job, node: Node, provider: Provider, world: BuildContext) -> Record:
    """Start the image, or poll its progress.

    Raises ProviderError for errors that may pass. A permanent error ends this build and no other
    job, because missing rights here concern images alone.
    """
    store, clock = world.store, world.clock
    if not isinstance(provider, ImageMaker):
        text = f"{provider.name} cannot make images of machines"
        return lambda: _record_never(store, node, text, clock.now_us())
    row = row_of(job, node)
    try:
        image = provider.make_image(node.instance_id, row.vendor_name, tags_of(row))
    except (AuthError, QuotaError, RejectedError, UnpreparedError) as refused:
        text = f"{provider.name} makes no image: {refused}"
        return lambda: _record_never(store, node, text, clock.now_us())
    return lambda: store.nodes.record_image(node.id, image, clock.now_us())


def _record_never(store: Store, node: Node, text: str, at_us: int) -> None:
    there = node.offer.region
    store.nodes.record_image(
        node.id, Image("", "", ImageState.FAILED, there, {}, error=text), at_us
    )
