"""Whether to move away from where a job's state and data lie: what the way there costs, and after
how many hours a cheaper machine has paid for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotd.decide.carriage import gb_microusd, goes_to, saves_per_h
from spotd.decide.freight import freight
from spotd.decide.placement import Ranked
from spotd.decide.situating import CARRY_B_PER_S, checkpoint_way, speed_of
from spotd.model import JobSpec, Market, View


@dataclass(frozen=True)
class Move:
    """To `there` from `near`, the cheapest place to which nothing has to be carried. Dollars of the
    way by list, for the checkpoint and for data sets; how long it takes at 10 Gb/s; and what an
    hour of work costs less there, for the whole gang. An hour of work is one on the first kind of
    machine that the job names."""

    near: Ranked
    there: Ranked
    checkpoint_usd: float
    data_usd: float
    seconds: float
    saves_usd_per_h: float

    @property
    def usd(self) -> float:
        return self.checkpoint_usd + self.data_usd

    @property
    def hours(self) -> float | None:
        """Of work, after which the move is paid back; None where it never is."""
        return self.usd / self.saves_usd_per_h if self.saves_usd_per_h > 0 else None


def moves(view: View, market: Market, rows: Sequence[Ranked]) -> list[Move]:
    """To every free offer that something has to be carried to for money, the soonest paid back
    first; none where nothing lies near to any offer, or all does."""
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
    found = []
    for row in free:
        state_usd, data_usd, seconds = ways[row.offer.key]
        if state_usd + data_usd > 0:
            saves = here - _usd_per_h(row, spec, market)
            found.append(Move(near, row, state_usd, data_usd, seconds, saves))
    return sorted(found, key=_order)


def _order(move: Move) -> tuple[bool, float, str]:
    hours = move.hours
    return hours is None, move.usd if hours is None else hours, move.there.offer.key


def _usd_per_h(row: Ranked, spec: JobSpec, market: Market) -> float:
    """Of an hour of work: the machines, and saves that leave their cloud. The way back, which is in
    a row's own score, is a move by itself."""
    offer, size_gb = row.offer, spec.checkpoint.size_bytes / 1e9
    gb = gb_microusd(offer, goes_to(offer, spec, market), market.leaving) or 0
    saved = size_gb * gb * saves_per_h(offer, spec, market)
    return (offer.price_microusd_per_h * spec.num_nodes + saved) / 1e6 / speed_of(spec, offer)


def _way(row: Ranked, view: View, market: Market) -> tuple[float, float, float]:
    """Dollars for the checkpoint, dollars for the data, and seconds for both."""
    state_usd, state_s = checkpoint_way(view, row.offer, market)
    data = freight(view.job.spec, row.offer, market)
    return state_usd, data.usd, state_s + data.size_bytes / CARRY_B_PER_S
