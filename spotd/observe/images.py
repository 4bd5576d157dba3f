"""The sweep of images: remove half-made and unwanted ones, and keep the record correct.

An image that was removed elsewhere leaves the record; one that a restored record lacks is adopted
from its tags. Only images that are on record and no longer needed are removed: all jobs may start
from an unknown one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import structlog

from providers.base import Provider, ProviderError
from providers.images import Image, ImageMaker, ImageState
from spotd.act.image_builder import row_found
from spotd.base.clock import Clock
from spotd.domain.events import Event, Severity
from spotd.domain.node import EffectKind
from spotd.domain.units import S
from spotd.planner.core.next_effect import CALL_DEADLINE_S
from spotd.store.images import ImageRow
from spotd.store.interface import Store

log = structlog.get_logger(__name__)

LOOK_S = 600.0  # between looks at images that nothing is to be done about
# A machine that was given up may have been asked for its image just before: the image of such a
# call can show up until then.
SURE_S = CALL_DEADLINE_S[EffectKind.IMAGE] + 300.0
MISSED = 2  # looks in a row that lack an image before it counts as removed by somebody else


class ImageSweep:
    """The periodic task of one provider, with its holder's fenced store."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._looked_s: float | None = None
        self._unseen_us: dict[str, int] = {}  # of one to be removed: since when no look shows it
        self._missed: dict[str, int] = {}  # looks in a row that lack one that should be there

    def run(self, store: Store) -> None:
        """Sweep once.

        Raises ProviderError, StoreError, and LostLeaseError before anything is done.
        """
        provider, now_s = self._provider, self._clock.monotonic_s()
        if not isinstance(provider, ImageMaker):
            return
        rows = [row for row in store.images.rows() if row.provider == provider.name]
        doomed = [row for row in rows if row.unwanted_at_us or row.half_made]
        late = self._looked_s is None or now_s - self._looked_s >= LOOK_S
        if not doomed and not (late and (rows or self._looked_s is None)):
            return
        self._looked_s = now_s
        images = {image.name: image for image in provider.images()}
        doubted = bool(store.deployment.quarantine())
        if not doubted:
            tried = [row for row in doomed if self._remove(store, provider, row, images)]
            after = {image.name for image in provider.images()} if tried else set()
            for row in tried:
                self._forget(store, row, seen=row.vendor_name in after)
        self._note_missing(store, [row for row in rows if row.good], images)
        # A record of before an image was there calls it half made, and would remove it later.
        sure = [row for row in rows if not doubted or row.made_at_us or row.unwanted_at_us]
        self._adopt(store, {row.vendor_name for row in sure}, images.values())

    def _remove(
        self, store: Store, maker: ImageMaker, row: ImageRow, images: Mapping[str, Image]
    ) -> bool:
        """Remove an image, also one that is not listed: its parts may still exist.

        A failure is retried next time and delays no other.
        """
        store.leases.check(self._clock.now_us())
        image = images.get(row.vendor_name)
        try:
            maker.remove_image(image.image_id if image is not None else row.image_id)
        except ProviderError as error:
            log.warning("image not removed", image=row.vendor_name, error=str(error))
            return False
        return True

    def _forget(self, store: Store, row: ImageRow, *, seen: bool) -> None:
        """Remove an image from the record when it is gone and cannot appear any more."""
        now_us = self._clock.now_us()
        if seen:
            self._unseen_us.pop(row.node_id, None)
            return
        since_us = self._unseen_us.setdefault(row.node_id, now_us)
        if not row.made_at_us and now_us - since_us < SURE_S * S:
            return
        del self._unseen_us[row.node_id]
        store.images.record_gone(row.node_id, now_us)
        if row.image_id:
            what = "half-made image" if row.half_made else "image"
            self._tell(store, row, f"{what} {row.name} ({row.vendor_name}) is removed")

    def _note_missing(
        self, store: Store, rows: Sequence[ImageRow], images: Mapping[str, Image]
    ) -> None:
        for row in rows:
            if row.vendor_name in images:
                self._missed.pop(row.node_id, None)
                continue
            self._missed[row.node_id] = self._missed.get(row.node_id, 0) + 1
            if self._missed[row.node_id] >= MISSED:
                del self._missed[row.node_id]
                store.images.record_gone(row.node_id, self._clock.now_us())
                text = f"image {row.name} ({row.vendor_name}) was removed by somebody else"
                self._tell(store, row, f"{text}: jobs that name it start from the plain image")

    def _adopt(self, store: Store, known: set[str], images: Iterable[Image]) -> None:
        for image in images:
            row = row_found(self._provider.name, image, self._clock.now_us())
            if image.name in known or image.state is not ImageState.AVAILABLE or row is None:
                continue
            store.images.adopt(row)
            text = f"image {row.name} ({row.vendor_name}) was not on record, and is now"
            self._tell(store, row, text)

    def _tell(self, store: Store, row: ImageRow, text: str) -> None:
        event = Event("image", f"{row.provider}: {text}", severity=Severity.WARNING)
        store.events.add("", event, self._clock.now_us())
