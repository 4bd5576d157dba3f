"""How a machine comes by a data set: from beside it, by its region's own copy, or from afar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from providers.base import Offer
from spotd.decide.carriage import HERE, Place, place_among
from spotd.wire import Bucket


@dataclass(frozen=True)
class DataSet:
    """Declared once. `copies` are stores that it may be brought to, for no more than `max_microusd`
    each; `microusd_per_gb` is what somebody has said that a GB costs which leaves `url`."""

    url: str
    copies: Sequence[str]
    max_microusd: int
    leaving: Mapping[str, int]
    microusd_per_gb: int | None = None


def way_of(data: DataSet, offer: Offer, places: Mapping[str, tuple[str, str]]) -> Bucket:
    """What the offer's machine copies, and of what it may make a copy in its region first."""
    here = (offer.cloud or offer.provider, offer.region)
    at = place_among(data.url, places)
    if at == here or at.cloud == HERE or offer.local:
        return Bucket("", data.url)
    near = next((url for url in data.copies if place_among(url, places) == here), "")
    price = data.microusd_per_gb
    if price is None:
        price = _price(at, here[0], data.leaving)
    return Bucket("", data.url, {}, near, {}, price, data.max_microusd)


def _price(at: Place, cloud: str, leaving: Mapping[str, int]) -> int | None:
    """Of a GB to a machine of `cloud` elsewhere; between regions of one cloud none is on file."""
    return None if at.cloud == cloud else leaving.get(at.cloud)
