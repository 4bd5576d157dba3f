"""Which data sets to copy ahead of a job to its next likely regions, and for how much."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from providers.base import Offer
from providers.dollars import format_microusd
from spotd.domain.datasets import DataSet
from spotd.domain.fast_replace import changed
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.domain.view import View
from spotd.planner.core.shard_stores import GIB, HERE, PART_BYTES, place_among, way_of
from spotd.planner.rules.spot_policy_rule import compared

_SCHEME = "dataset://"


@dataclass(frozen=True)
class PlannedCopy:
    """A copy that would be made.

    `gb_microusd` is the price of a GB that leaves the store of `source`, and of a GB that leaves
    the control box. `microusd` is the expected total: egress, writes, and storage for a month.
    `refused` is why it is not made, or "".
    """

    name: str
    source: str
    copy: str
    size_bytes: int
    gb_microusd: int = 0
    microusd: int = 0
    staged: bool = False
    refused: str = ""


def legs(
    spec: JobSpec, market: Market, offers: Iterable[Offer], paid: Mapping[str, int]
) -> list[PlannedCopy]:
    """Return the copies for the first `regions` regions of `offers` that declare one, in that
    order.

    Completed copies are included. `paid` are copies begun for this job, with their cost in
    micro-USD: they count, and their regions come first, because an incomplete copy is worthless.
    Copies beyond the cap are refused.
    """
    wanted = spec.preferences.ahead
    sets = _sets(spec, market)
    copies: dict[str, PlannedCopy] = {}
    begun = {place_among(url, market.stores.places)[:2] for url in paid}
    regions = dict.fromkeys(sorted(begun)[: wanted.regions])
    ordered = list(offers)
    ordered.sort(key=lambda offer: _region(offer) not in begun)  # stable
    left = wanted.max_microusd - sum(paid.values())
    for offer in ordered:
        here = _region(offer)
        ways = {name: way_of(data, offer, market.stores.places).near for name, data in sets.items()}
        if not any(ways.values()) or (here not in regions and len(regions) == wanted.regions):
            continue
        regions[here] = None
        for name, copy in ways.items():
            if copy and copy not in copies:
                leg = _leg(name, sets[name], copy, market)
                more = max(0, leg.microusd - paid.get(copy, 0))
                if not leg.staged and not leg.refused and more > left:
                    leg = replace(leg, refused=_beyond(leg, wanted.max_microusd))
                left -= more if not leg.staged and not leg.refused else 0
                copies[copy] = leg
    return list(copies.values())


def within(
    planned: Iterable[PlannedCopy], paid: Mapping[str, int], left_microusd: int | None
) -> list[PlannedCopy]:
    """Return the copies; refuse those that exceed `left_microusd`; None: no limit."""
    left, copies = left_microusd, []
    for leg in planned:
        adds = 0 if leg.staged or leg.refused else max(0, leg.microusd - paid.get(leg.copy, 0))
        if left is None or not adds or adds <= left:
            copies.append(leg)
            left = None if left is None else left - adds
        else:
            copies.append(replace(leg, refused=beyond_job(adds)))
    return copies


def left_of(view: View) -> int | None:
    """Micro-USD that the job may spend yet; None without max_cost_usd."""
    most = view.job.spec.limits.max_cost_microusd
    return most - view.spent_microusd if most else None


def beyond_job(adds_microusd: int) -> str:
    return f"it would cost {format_microusd(adds_microusd)}, beyond the job's max_cost_usd"


def next_offers(
    view: View, market: Market, now_us: int, here: Collection[tuple[str, str]] = ()
) -> list[Offer]:
    """Return where the job would go next, the best first, if its data were everywhere it may be.

    Regions (cloud, region) in `here` are left out: their machines copy the data themselves.
    """
    sets = {
        name: replace(data, staged=frozenset(data.copies), missing=frozenset())
        for name, data in market.stores.datasets.items()
    }
    compared_costs = compared(view, changed(market, datasets=sets), now_us)
    rows: Sequence[Offer] = [row.offer for row in compared_costs.rows if not row.excluded]
    if compared_costs.costs:
        best = sorted(compared_costs.costs, key=lambda cost: (cost.total_usd, cost.row.offer.key))
        rows = [one.row.offer for one in best]
    return [offer for offer in rows if _region(offer) not in here]


def region_of(offer: Offer) -> tuple[str, str]:
    """Return the offer's region as store places name it."""
    return offer.cloud or offer.provider, offer.region


_region = region_of


def _sets(spec: JobSpec, market: Market) -> dict[str, DataSet]:
    names = [
        bucket.url.removeprefix(_SCHEME)
        for bucket in spec.files.buckets
        if bucket.url.startswith(_SCHEME)
    ]
    return {name: market.stores.datasets[name] for name in names if name in market.stores.datasets}


def _leg(name: str, data: DataSet, copy: str, market: Market) -> PlannedCopy:
    leg = PlannedCopy(name, data.url, copy, data.size_bytes, staged=copy in data.staged)
    if leg.staged:
        return leg
    if not data.size_bytes:
        return replace(leg, refused=f"the size of data set {name} is not declared")
    at = place_among(data.url, market.stores.places)
    out = data.microusd_per_gb
    if out is None:
        out = 0 if at.cloud == HERE else data.leaving.get(at.cloud)
    gb = data.size_bytes / 1e9
    if out is None:
        text = f"the price of data that leaves {data.url} is not listed; set usd_per_gb of {name}"
        return replace(leg, refused=text)
    if data.box_microusd_per_gb is None:
        text = (
            "the price per GB that leaves the control box is not configured ([staging] usd_per_gb)"
        )
        return replace(leg, refused=text)
    cloud = place_among(copy, market.stores.places).cloud
    month, writes = market.stores.storage_prices.get(cloud, (0, 0))
    each = out + data.box_microusd_per_gb
    egress = round(gb * each)
    requests = round(-(-data.size_bytes // PART_BYTES) * writes / 1000)
    leg = replace(leg, gb_microusd=each)
    leg = replace(leg, microusd=egress + requests + round(data.size_bytes / GIB * month))
    if egress > data.max_microusd:
        text = f"its transfer costs {format_microusd(egress)}, above max_usd of data set {name}"
        return replace(leg, refused=text)
    return leg


def _beyond(leg: PlannedCopy, most_microusd: int) -> str:
    return (
        f"{leg.size_bytes / 1e9:,.4g} GB would cost {format_microusd(leg.microusd)}, which "
        "together with the other copies exceeds stage_ahead.max_usd of "
        f"{format_microusd(most_microusd)}"
    )
