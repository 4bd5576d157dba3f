"""Advise which phases of a project to run on spot, with the cost of each there and on-demand.

Costs are computed from today's cost of a useful hour (spot_value.py), never from savings that
guides promise. The phases are those of a case study: a search for hyper-parameters (72 of 312 h),
the training run (216 h) and validation (24 h). Validation is never on spot: its results are
compared, so its machines must not be preempted or replaced half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from spotd.history.intervals import Interval
from spotd.history.spot_value import (
    HYBRID,
    SEARCH,
    SPOT,
    InterruptionCost,
    Mode,
    SpotDecision,
    SpotValue,
)

# Savings that guides promise by mode, whatever the prices; shown next to the computed ones.
PROMISED = {SPOT.name: (0.5, 0.7), HYBRID.name: (0.6, 0.75), SEARCH.name: (0.3, 0.5)}
# Guides let a workload tolerate "5 to 15 %" without a unit; applied to paid time here.
TOLERATED = 0.15
# Maximum share of refused spot requests in a pool: above it a machine takes more than two requests
# on average, each with a wait.
REFUSED = 0.5
# A search is 20 to 40 % of a project's compute; validation 24 h beside 216 h of training.
_SEARCH_SHARE = (0.2, 0.4)
_VALIDATION = 24 / 216


class PhaseRequest(str, Enum):
    """A phase of a project."""

    SEARCH = "search"
    TRAIN = "train"
    VALIDATE = "validate"


_ON_SPOT = {
    SPOT.name: (PhaseRequest.SEARCH, PhaseRequest.TRAIN),
    HYBRID.name: (PhaseRequest.SEARCH, PhaseRequest.TRAIN),
    SEARCH.name: (PhaseRequest.SEARCH,),
}
_WHY = {
    PhaseRequest.SEARCH: "trials can be restarted",
    PhaseRequest.TRAIN: "it continues from its checkpoints",
    PhaseRequest.VALIDATE: "its figures are compared, so its machines must not be preempted",
}


@dataclass(frozen=True)
class Dollars:
    """The cost of a plan, and `on_demand_usd` of the same work on-demand.

    `priced_usd` and `listed_usd` are the prices of the machines alone, for the discount.
    """

    usd: float = 0.0
    on_demand_usd: float = 0.0
    priced_usd: float = 0.0
    listed_usd: float = 0.0

    @property
    def discount(self) -> float:
        """Return the discount of the prices, weighted by the hours at each."""
        return 1 - self.priced_usd / self.listed_usd if self.listed_usd else 0.0

    @property
    def saving(self) -> float:
        """A fraction, never above the discount."""
        if not self.on_demand_usd:
            return 0.0
        return min(1 - self.usd / self.on_demand_usd, self.discount)

    @property
    def saved_usd(self) -> float:
        return self.saving * self.on_demand_usd


@dataclass(frozen=True)
class Phase:
    """A phase's plan. `hours` is useful work, `takes_h` the paid time including interruptions."""

    part: PhaseRequest
    spot: bool
    why: str
    hours: float
    takes_h: float
    dollars: Dollars


def on_spot(mode: Mode, part: PhaseRequest) -> bool:
    """Return whether guides run that phase on spot."""
    return part in _ON_SPOT.get(mode.name, ())


def phase(mode: Mode, part: PhaseRequest, hours: float, value: SpotValue) -> Phase:
    """Return one phase at today's prices; on-demand as well if spot does not pay today."""
    recommended, pays = on_spot(mode, part), value.verdict is not SpotDecision.NO
    spot = recommended and pays
    side, other = value.spot if spot else value.on_demand, value.on_demand
    dollars = Dollars(
        side.usd * hours,
        other.usd * hours,
        side.machines_usd * hours,
        other.machines_usd * hours,
    )
    paid = side.machines_usd + side.egress_usd
    takes_h = hours * side.usd / paid if paid else hours
    return Phase(
        part, spot, _why(mode, part, recommended=recommended, pays=pays), hours, takes_h, dollars
    )


def _why(mode: Mode, part: PhaseRequest, *, recommended: bool, pays: bool) -> str:
    if recommended and not pays:
        return "spot does not pay today"
    if recommended or part is PhaseRequest.VALIDATE:
        return _WHY[part]
    return mode.text


def phases(
    mode: Mode, hours: Mapping[PhaseRequest, float], value_of: Callable[[float], SpotValue | None]
) -> list[Phase]:
    """Return the phases whose hours are known, in order.

    `value_of` returns the value of spot for a number of hours of work: work without checkpoints
    costs more per hour the longer it is.
    """
    result = []
    for part in PhaseRequest:
        value = value_of(hours[part]) if hours.get(part) else None
        if value is not None:
            result.append(phase(mode, part, hours[part], value))
    return result


def total_dollars(phases_: Iterable[Phase]) -> Dollars:
    """Return the sum over phases."""
    rows = [phase.dollars for phase in phases_]
    return Dollars(
        sum(dollars.usd for dollars in rows),
        sum(dollars.on_demand_usd for dollars in rows),
        sum(dollars.priced_usd for dollars in rows),
        sum(dollars.listed_usd for dollars in rows),
    )


def usual_hours(train_h: float) -> dict[PhaseRequest, tuple[float, float]]:
    """Return the hours, from and to, that guides expect beside so many hours of training.

    A search that is a fifth of search and training together is a quarter of the training.
    """
    low, high = (train_h * share / (1 - share) for share in _SEARCH_SHARE)
    validation = train_h * _VALIDATION
    return {PhaseRequest.SEARCH: (low, high), PhaseRequest.VALIDATE: (validation, validation)}


def lost_share(per_machine_h: float, cost: InterruptionCost) -> float:
    """Return the share of paid time that interruptions take from a job that keeps its work."""
    return min(per_machine_h * cost.num_nodes * cost.loss_h, 1.0)


def is_available(refusals: Interval | None) -> bool | None:
    """Return whether a pool grants machines, by the share of refused requests.

    None if more than REFUSED were refused, but their interval includes a lower share. A pool
    without requests counts as available while it is offered.
    """
    if refusals is None or refusals.middle <= REFUSED:
        return True
    return False if refusals.low > REFUSED else None


class Recommendation(str, Enum):
    """The result of the conditions."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"
    UNKNOWN = "unknown"  # no condition fails, but whether spot pays is not known


def recommend(conditions: Sequence[bool | None], *, pays: bool | None) -> Recommendation:
    """Return spot if it pays and no condition fails; unknown conditions (None) are ignored."""
    if pays is False or any(condition is False for condition in conditions):
        return Recommendation.ON_DEMAND
    return Recommendation.UNKNOWN if pays is None else Recommendation.SPOT
