"""The cost of transferring a job's data sets to a machine whose region lacks them."""

from __future__ import annotations

from dataclasses import dataclass

from providers.base import Offer
from providers.dollars import format_usd
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.planner.core.shard_stores import way_of
from spotd.wire import MountMode

_SCHEME = "dataset://"


@dataclass(frozen=True)
class TransferCost:
    """Dollars and bytes of a transfer.

    `once_usd` is for data that stays in the region's copy, `each_usd` for data that every start
    copies from afar. `refused` is why the job would end there, or "".
    """

    once_usd: float = 0.0
    each_usd: float = 0.0
    size_bytes: int = 0
    refused: str = ""

    @property
    def usd(self) -> float:
        return self.once_usd + self.each_usd


NONE = TransferCost()


def freight(spec: JobSpec, offer: Offer, market: Market) -> TransferCost:
    """Return the transfer cost of the data sets whose size is declared.

    No price is known between two regions of one cloud; it counts as 0 unless the configuration has
    one. A data set without a size is checked for one thing only: it must not be mounted from
    another region or cloud, where each read costs.
    """
    if not market.stores.datasets:
        return NONE
    once = each = 0.0
    carried, refused = 0, ""
    for mount in spec.files.buckets:
        name = mount.url.removeprefix(_SCHEME)
        data = market.stores.datasets.get(name)
        if data is None:
            continue
        way = way_of(data, offer, market.stores.places)
        crosses = bool(way.near or way.max_microusd or way.microusd_per_gb)
        if crosses and not way.near and mount.mode is not MountMode.COPY:
            refused = refused or f"data set {name} is mounted, and has no copy in that region"
        if not data.size_bytes:
            continue
        if not crosses or way.near in data.staged:
            continue
        gb = data.size_bytes / 1e9
        usd = gb * (way.microusd_per_gb or 0) / 1e6
        carried += data.size_bytes
        if way.near:
            once += usd
        else:
            each += usd * spec.resources.num_nodes
        if not way.near or way.near in data.missing:  # else it may be there for all we know
            refused = refused or _refused(name, gb, usd, way.microusd_per_gb, way.max_microusd)
    return TransferCost(once, each, carried, refused)


def _refused(name: str, gb: float, usd: float, price: int | None, most_microusd: int) -> str:
    """Return the error that the rented machine would report, or ""."""
    what = f"{gb:,.4g} GB of data set {name}"
    if price is None:
        return f"the price of copying {what} there is not listed; set usd_per_gb"
    if usd > most_microusd / 1e6:
        return f"copying {what} there would cost {format_usd(usd)}, above its max_usd"
    return ""
