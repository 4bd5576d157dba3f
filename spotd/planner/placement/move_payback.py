"""Estimate a move away from a job's checkpoint and data: its cost, and when it pays back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.domain.view import View
from spotd.planner.core.dataset_transfer import freight
from spotd.planner.core.shard_stores import gb_microusd, goes_to, saves_per_h
from spotd.planner.placement.build_situation import CARRY_B_PER_S, checkpoint_way, speed_of
from spotd.planner.placement.rank import RankedOffer


@dataclass(frozen=True)
class MoveEstimate:
    """A move to `there`, compared with `near`, the cheapest place that needs no transfer.

    Dollars by list price for the checkpoint and the data sets; seconds at 10 Gb/s; and the saving
    per hour of work there, for the whole gang. An hour of work is one on the job's first kind of
    machine.
    """

    near: RankedOffer
    there: RankedOffer
    checkpoint_usd: float
    data_usd: float
    seconds: float
    saves_usd_per_h: float

    @property
    def usd(self) -> float:
        return self.checkpoint_usd + self.data_usd

    @property
    def hours(self) -> float | None:
        """Return the hours of work after which the move has paid back, or None if never."""
        return self.usd / self.saves_usd_per_h if self.saves_usd_per_h > 0 else None


def moves(view: View, market: Market, rows: Sequence[RankedOffer]) -> list[MoveEstimate]:
    """Return the moves to every available offer that needs a paid transfer, the soonest paid back
    first.

    Empty if no offer, or every offer, is near.
    """
    spec, free = view.job.spec, [row for row in rows if not row.excluded]
    ways = {row.offer.key: _way(row, view, market) for row in free}
    near = min(
        (row for row in free if not sum(ways[row.offer.key][:2])),
        key=lambda row: (_usd_per_h(row, spec, market), row.offer.key),
        default=None,
    )
    if near is None:
        return []
    here = _usd_per_h(near, spec, market)
    result = []
    for row in free:
        state_usd, data_usd, seconds = ways[row.offer.key]
        if state_usd + data_usd > 0:
            saves = here - _usd_per_h(row, spec, market)
            result.append(MoveEstimate(near, row, state_usd, data_usd, seconds, saves))
    return sorted(result, key=_order)


def _order(move: MoveEstimate) -> tuple[bool, float, str]:
    hours = move.hours
    return hours is None, move.usd if hours is None else hours, move.there.offer.key


def _usd_per_h(row: RankedOffer, spec: JobSpec, market: Market) -> float:
    """Return the cost of an hour of work: machines, and saves that leave their cloud.

    The transfer back, which is part of a row's own score, counts as a separate move.
    """
    offer, size_gb = row.offer, spec.checkpoint.size_bytes / 1e9
    gb = gb_microusd(offer, goes_to(offer, spec, market), market.stores.egress_microusd_per_gb) or 0
    saved = size_gb * gb * saves_per_h(offer, spec, market)
    return (
        (offer.price_microusd_per_h * spec.resources.num_nodes + saved)
        / 1e6
        / speed_of(spec, offer)
    )


def _way(row: RankedOffer, view: View, market: Market) -> tuple[float, float, float]:
    """Dollars for the checkpoint, dollars for the data, and seconds for both."""
    state_usd, state_s = checkpoint_way(view, row.offer, market)
    data = freight(view.job.spec, row.offer, market)
    return state_usd, data.usd, state_s + data.size_bytes / CARRY_B_PER_S
