"""Spot or on-demand today, for a plan: the best offers of both, compared by this fleet's record."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from providers.base import CapacityType, Offer
from spotd.api.request.request import ApiRequest
from spotd.api.views.resources import offer_data
from spotd.domain.fast_replace import changed
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
    """The inputs of a comparison between the best spot offer and the best on-demand offer.

    `rates` and `other_rates` are dollars of an hour of work on the job's first alternative, each
    for all machines and for egress. `habits` is the cost of an interruption. `spots` are all spot
    offers that fit.
    """

    spot: Offer
    other: Offer
    rates: tuple[float, float]
    other_rates: tuple[float, float]
    hazard: Hazard
    lasting: float
    interruption_cost: InterruptionCost
    starts: int
    spots: tuple[Offer, ...]
    paces: tuple[float, float] = (
        1.0,
        1.0,
    )  # speeds of both, relative to the job's first alternative

    def evaluate(self, hours: float = 0.0) -> SpotValue | None:
        """Compare for that many hours of work, otherwise for the job's own.

        None for a job that stores nothing and whose length is not known.
        """
        habits = replace(self.interruption_cost, hours=hours) if hours else self.interruption_cost
        if habits.again_h is None and not habits.hours:
            return None
        return compare(self.rates, self.other_rates, self.hazard, self.lasting, habits, self.paces)


def with_spot_value(
    call: ApiRequest, spec: JobSpec, market: Market, data: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the plan with `worth` added.

    It is null where spot or on-demand is not available for the job now, or where the job keeps
    nothing and does not say how much work there is.
    """
    return {**data, "worth": spot_value_data(compare_spot(call, spec, market), data)}


def spot_value_data(
    comparison: Comparison | None, data: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the comparison as JSON, null as in `with_spot_value`.

    `data` is the plan, which gives the size of the model.
    """
    value = comparison.evaluate() if comparison else None
    return _data(value, comparison, data) if value and comparison else None


def compare_spot(call: ApiRequest, spec: JobSpec, market: Market) -> Comparison | None:
    """Return the comparison; None where spot or on-demand is not available for the job now."""
    any_capacity = changed(
        spec,
        alternatives=tuple(
            replace(want, capacity_types=ANY) for want in spec.resources.alternatives
        ),
        max_hourly_microusd=0,
    )
    ranked = [row for row in rank(any_capacity, market, call.now_us) if not row.excluded]
    spot = _cheapest(ranked, CapacityType.SPOT, spec)
    other = _cheapest(ranked, CapacityType.ON_DEMAND, spec)
    if spot is None or other is None:
        return None
    lives = call.context.store.node_history.observed_lifetimes(call.now_us - int(WITHIN_S * S))
    hazard = hazard_of(spot.offer, lives)
    restart_s, starts = _restart(spot.offer, market)
    again_h, work_h = _repeated_h(spec, hazard), spec.preferences.work_s / 3600
    return Comparison(
        spot.offer,
        other.offer,
        _rates(spot, spec),
        _rates(other, spec),
        hazard,
        hazard_of(other.offer, lives).middle,
        InterruptionCost(
            spec.resources.num_nodes, restart_s / 3600, again_h, _stall(call, spec), work_h
        ),
        starts,
        tuple(row.offer for row in ranked if row.offer.capacity_type is CapacityType.SPOT),
        (speed_of(spec, spot.offer), speed_of(spec, other.offer)),
    )


def _cheapest(
    ranked: list[RankedOffer], capacity: CapacityType, spec: JobSpec
) -> RankedOffer | None:
    """Return the offer with the lowest cost of the same work.

    An offer that is twice as fast may cost twice as much an hour.
    """
    rows = [row for row in ranked if row.offer.capacity_type is capacity]
    return min(
        rows, key=lambda row: row.score_microusd_per_h / speed_of(spec, row.offer), default=None
    )


def _rates(row: RankedOffer, spec: JobSpec) -> tuple[float, float]:
    """Return dollars per hour of work of the first alternative: for all machines, and egress."""
    work = 1e6 * speed_of(spec, row.offer)
    price = row.offer.price_microusd_per_h * spec.resources.num_nodes / work
    return price, (row.egress_microusd_per_h or 0) / work


def _restart(offer: Offer, market: Market) -> tuple[float, int]:
    """Return the median seconds from request to first step, and the number of starts on record.

    For machines of the offer's instance type. RESTART_S and 0 where too few are on record.
    """
    durations_s = [
        (stay.trained_at_us - stay.asked_at_us) / S
        for stay in market.history.stays
        if stay.trained_at_us and stay.offer_key.split("/")[3:4] == [offer.instance_type]
    ]
    return (
        (statistics.median(durations_s), len(durations_s))
        if len(durations_s) >= STARTS
        else (RESTART_S, 0)
    )


def _repeated_h(spec: JobSpec, hazard: Hazard) -> float | None:
    """Return the hours of work that an interruption repeats, assuming no notice comes in time.

    Half of the interval between two saves; half an hour when the interval is given in steps alone.
    None if nothing is stored: then all work is repeated.
    """
    if not keeps(spec.checkpoint):
        return None
    pause_s = spec.checkpoint.every_s or MOST_S
    if spec.checkpoint.auto:
        young_s = 3600 * best_pause_h(hazard.middle * spec.resources.num_nodes, STALL_S / 3600)
        pause_s = min(max(young_s, LEAST_S), MOST_S)
    return pause_s / 3600 / 2


def _stall(call: ApiRequest, spec: JobSpec) -> float:
    """Return the share of time in which training stopped for saves, in the last job of that name.

    0.0 where nothing was measured.
    """
    before = call.context.store.jobs.find(spec.name)
    rows = call.context.store.checkpoints.rows(before.id) if before else []
    measured = [row for row in rows if row.stage_s > 0]
    if len(measured) < STARTS:
        return 0.0
    between_s = (measured[-1].committed_at_us - measured[0].committed_at_us) / S
    stalled_s = sum(row.stage_s for row in measured[1:])
    return min(stalled_s / between_s, 0.5) if between_s > 0 else 0.0


def _data(value: SpotValue, comparison: Comparison, plan: Mapping[str, Any]) -> dict[str, Any]:
    habits, hazard = value.interruption_cost, value.hazard
    model = plan.get("model") or {}
    parameters = float(model.get("parameters") or 0)
    guide = None
    if parameters or habits.hours:
        mode = mode_of(parameters, habits.hours)
        low, high = mode_saving(mode, value)
        guide = {"mode": mode.name, "text": mode.text, "saving_low": _finite_or_none(low)}
        guide |= {"saving_high": _finite_or_none(high), "parameters": parameters or None}
    return {
        "verdict": value.verdict.value,
        "spot": {**_side(value.spot), "low_usd": _finite_or_none(value.low_usd)}
        | {"high_usd": _finite_or_none(value.high_usd), "offer": offer_data(comparison.spot)},
        "on_demand": {**_side(value.on_demand), "offer": offer_data(comparison.other)},
        "hazard": asdict(hazard),
        "break_even_hazard": value.break_even,
        "discount": value.discount,
        "saving": _finite_or_none(value.saving),
        "hours": habits.hours or None,
        "restart_s": habits.restart_h * 3600,
        "starts_on_record": comparison.starts,
        "again_s": None if habits.again_h is None else habits.again_h * 3600,
        "stall": habits.stall or None,
        "guides": guide,
    }


def _side(side: UsefulHourCost) -> dict[str, Any]:
    """Return the costs of a useful hour; null for a job that would never end."""
    return {name: _finite_or_none(value) for name, value in vars(side).items()}


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
