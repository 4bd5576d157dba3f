"""Spot or not today, for a plan: both sides at the best offers that fit, by this fleet's record."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from providers.base import CapacityType, Offer
from spotd.api.request.request import ApiRequest
from spotd.api.views.resources import offer_data
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.domain.phase import keeps
from spotd.domain.units import S
from spotd.history.spot_value import (
    RESTART_S,
    STARTS,
    Hazard,
    InterruptionCost,
    SpotValue,
    UsefulHourCost,
    compare,
    hazard_of,
    mode_of,
    mode_saving,
)
from spotd.money.formulas import best_pause_h
from spotd.planner.core.checkpoint_interval import WITHIN_S
from spotd.planner.core.shard_stores import LEAST_S, MOST_S, STALL_S
from spotd.planner.placement.build_situation import speed_of
from spotd.planner.placement.explain_blocked import ANY
from spotd.planner.placement.rank import RankedOffer, rank


@dataclass(frozen=True)
class Comparison:
    """What a comparison is made of: the best spot offer and the best on demand, dollars of an hour
    of work on the job's first alternative, of all machines and of what leaves the cloud on each,
    and what an interruption takes. `spots` are all spot offers that fit."""

    spot: Offer
    other: Offer
    rates: tuple[float, float]
    other_rates: tuple[float, float]
    hazard: Hazard
    lasting: float
    habits: InterruptionCost
    starts: int
    spots: tuple[Offer, ...]
    paces: tuple[float, float] = (1.0, 1.0)  # of both, in times of the job's first alternative

    def worth(self, hours: float = 0.0) -> SpotValue | None:
        """Of so many hours of work, else of the job's own; None for a job that keeps nothing, and
        of which it is not known how long it is."""
        habits = replace(self.habits, hours=hours) if hours else self.habits
        if habits.again_h is None and not habits.hours:
            return None
        told = (self.rates, self.other_rates, self.hazard, self.lasting, habits)
        return compare(*told, self.paces)


def with_worth(
    call: ApiRequest, spec: JobSpec, market: Market, data: Mapping[str, Any]
) -> dict[str, Any]:
    """A plan, with `worth`: null where spot or on-demand is not to be had for the job now, or where
    it keeps nothing and does not say how much there is to do."""
    return {**data, "worth": worth_data(weigh(call, spec, market), data)}


def worth_data(weighed: Comparison | None, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """As `with_worth` has it. `data` is the plan, for the model's size."""
    found = weighed.worth() if weighed else None
    return _data(found, weighed, data) if found and weighed else None


def weigh(call: ApiRequest, spec: JobSpec, market: Market) -> Comparison | None:
    """None where spot or on-demand is not to be had for the job now."""
    wider = replace(
        spec,
        alternatives=tuple(replace(want, capacity_types=ANY) for want in spec.alternatives),
        max_hourly_microusd=0,
    )
    ranked = [row for row in rank(wider, market, call.now_us) if not row.excluded]
    spot = _cheapest(ranked, CapacityType.SPOT, spec)
    other = _cheapest(ranked, CapacityType.ON_DEMAND, spec)
    if spot is None or other is None:
        return None
    lives = call.backing.store.lives(call.now_us - int(WITHIN_S * S))
    hazard = hazard_of(spot.offer, lives)
    restart_s, starts = _restart(spot.offer, market)
    again_h, hours = _again_h(spec, hazard), spec.wishes.work_s / 3600
    return Comparison(
        spot.offer,
        other.offer,
        _rates(spot, spec),
        _rates(other, spec),
        hazard,
        hazard_of(other.offer, lives).middle,
        InterruptionCost(spec.num_nodes, restart_s / 3600, again_h, _stall(call, spec), hours),
        starts,
        tuple(row.offer for row in ranked if row.offer.capacity_type is CapacityType.SPOT),
        (speed_of(spec, spot.offer), speed_of(spec, other.offer)),
    )


def _cheapest(
    ranked: list[RankedOffer], capacity: CapacityType, spec: JobSpec
) -> RankedOffer | None:
    """By what the same work costs: one that is twice as fast may cost twice as much an hour."""
    rows = [row for row in ranked if row.offer.capacity_type is capacity]
    return min(
        rows, key=lambda row: row.score_microusd_per_h / speed_of(spec, row.offer), default=None
    )


def _rates(row: RankedOffer, spec: JobSpec) -> tuple[float, float]:
    """Dollars of an hour's work of the first alternative: of all machines, and of what leaves the
    cloud."""
    work = 1e6 * speed_of(spec, row.offer)
    price = row.offer.price_microusd_per_h * spec.num_nodes / work
    return price, (row.egress_microusd_per_h or 0) / work


def _restart(offer: Offer, market: Market) -> tuple[float, int]:
    """Seconds from the request for such a machine to its first step: the median of what is on
    record, and of how many; RESTART_S and 0 where that are too few."""
    took = [
        (stay.trained_at_us - stay.asked_at_us) / S
        for stay in market.past.stays
        if stay.trained_at_us and stay.offer_key.split("/")[3:4] == [offer.instance_type]
    ]
    return (statistics.median(took), len(took)) if len(took) >= STARTS else (RESTART_S, 0)


def _again_h(spec: JobSpec, hazard: Hazard) -> float | None:
    """Hours of work that an interruption has done again, as if no notice came in time: half of what
    lies between two saves, and all of it where nothing is kept. By steps alone, half an hour."""
    if not keeps(spec.checkpoint):
        return None
    pause_s = spec.checkpoint.every_s or MOST_S
    if spec.checkpoint.auto:
        young_s = 3600 * best_pause_h(hazard.middle * spec.num_nodes, STALL_S / 3600)
        pause_s = min(max(young_s, LEAST_S), MOST_S)
    return pause_s / 3600 / 2


def _stall(call: ApiRequest, spec: JobSpec) -> float:
    """The share of time in which training stood for saves, in the last job of that name; 0.0 where
    nothing was measured."""
    before = call.backing.store.find_job(spec.name)
    rows = call.backing.store.checkpoints(before.id) if before else []
    measured = [row for row in rows if row.stage_s > 0]
    if len(measured) < STARTS:
        return 0.0
    between_s = (measured[-1].committed_at_us - measured[0].committed_at_us) / S
    stood_s = sum(row.stage_s for row in measured[1:])
    return min(stood_s / between_s, 0.5) if between_s > 0 else 0.0


def _data(found: SpotValue, weighed: Comparison, plan: Mapping[str, Any]) -> dict[str, Any]:
    habits, hazard = found.habits, found.hazard
    model = plan.get("model") or {}
    parameters = float(model.get("parameters") or 0)
    rule = None
    if parameters or habits.hours:
        mode = mode_of(parameters, habits.hours)
        low, high = mode_saving(mode, found)
        rule = {"mode": mode.name, "text": mode.text, "saving_low": _known(low)}
        rule |= {"saving_high": _known(high), "parameters": parameters or None}
    return {
        "verdict": found.verdict.value,
        "spot": {**_side(found.spot), "low_usd": _known(found.low_usd)}
        | {"high_usd": _known(found.high_usd), "offer": offer_data(weighed.spot)},
        "on_demand": {**_side(found.on_demand), "offer": offer_data(weighed.other)},
        "hazard": asdict(hazard),
        "break_even_hazard": found.break_even,
        "discount": found.discount,
        "saving": _known(found.saving),
        "hours": habits.hours or None,
        "restart_s": habits.restart_h * 3600,
        "starts_on_record": weighed.starts,
        "again_s": None if habits.again_h is None else habits.again_h * 3600,
        "stall": habits.stall or None,
        "guides": rule,
    }


def _side(side: UsefulHourCost) -> dict[str, Any]:
    """Of a useful hour; null for a job that would never end."""
    return {name: _known(value) for name, value in vars(side).items()}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
