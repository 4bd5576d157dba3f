"""Advise which phases of a project to run on spot, and what each costs there and on-demand.

At what a useful hour costs today (spot_value.py), never at what guides promise. The phases are
those of a case study: a search for hyper-parameters (72 h of its 312), the training run (216 h) and
validation (24 h). Validation is never on spot: its results are compared, so its machines must not
be taken away or replaced half-way.
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

# What guides promise to save, by mode, whatever the prices: shown beside what is computed.
PROMISED = {SPOT.name: (0.5, 0.7), HYBRID.name: (0.6, 0.75), SEARCH.name: (0.3, 0.5)}
# "5 to 15 %" is what guides have a workload bear, without a unit: here of the time that is paid.
TOLERATED = 0.15
# Of the requests for spot in a pool, what may be refused: beyond it a machine takes more than two
# requests on average, and each that is refused is waited for.
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
    PhaseRequest.SEARCH: "trials bear it to be begun again",
    PhaseRequest.TRAIN: "it goes on from its checkpoints",
    PhaseRequest.VALIDATE: "its figures are compared: nobody may take its machines away",
}


@dataclass(frozen=True)
class Dollars:
    """`usd` of a plan and `on_demand_usd` of the same work on demand; `priced_usd` and `listed_usd`
    are the machines' prices alone of each, for the discount."""

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
    """`hours` are of useful work; `takes_h` those that are paid for, interruptions included."""

    part: PhaseRequest
    spot: bool
    why: str
    hours: float
    takes_h: float
    dollars: Dollars


def on_spot(mode: Mode, part: PhaseRequest) -> bool:
    """Return whether guides run that phase on spot."""
    return part in _ON_SPOT.get(mode.name, ())


def phase(mode: Mode, part: PhaseRequest, hours: float, worth: SpotValue) -> Phase:
    """Return one phase at today's prices; on-demand as well if spot does not pay today."""
    wanted, pays = on_spot(mode, part), worth.verdict is not SpotDecision.NO
    spot = wanted and pays
    side, other = worth.spot if spot else worth.on_demand, worth.on_demand
    dollars = Dollars(
        side.usd * hours,
        other.usd * hours,
        side.machines_usd * hours,
        other.machines_usd * hours,
    )
    paid = side.machines_usd + side.egress_usd
    takes_h = hours * side.usd / paid if paid else hours
    return Phase(part, spot, _why(mode, part, wanted=wanted, pays=pays), hours, takes_h, dollars)


def _why(mode: Mode, part: PhaseRequest, *, wanted: bool, pays: bool) -> str:
    if wanted and not pays:
        return "spot does not pay today"
    if wanted or part is PhaseRequest.VALIDATE:
        return _WHY[part]
    return mode.text


def phases(
    mode: Mode, hours: Mapping[PhaseRequest, float], worth_of: Callable[[float], SpotValue | None]
) -> list[Phase]:
    """Return the phases whose hours are known, in order.

    `worth_of` is the value of spot for so many hours of work: work that is saved nowhere costs more
    the longer it is.
    """
    found = []
    for part in PhaseRequest:
        worth = worth_of(hours[part]) if hours.get(part) else None
        if worth is not None:
            found.append(phase(mode, part, hours[part], worth))
    return found


def together(found: Iterable[Phase]) -> Dollars:
    """Return the sum over phases."""
    rows = [one.dollars for one in found]
    return Dollars(
        sum(one.usd for one in rows),
        sum(one.on_demand_usd for one in rows),
        sum(one.priced_usd for one in rows),
        sum(one.listed_usd for one in rows),
    )


def usual_hours(train_h: float) -> dict[PhaseRequest, tuple[float, float]]:
    """Return the hours, from and to, that guides expect beside so many hours of training.

    A search that is a fifth of search and training together is a quarter of the training.
    """
    low, high = (train_h * share / (1 - share) for share in _SEARCH_SHARE)
    validation = train_h * _VALIDATION
    return {PhaseRequest.SEARCH: (low, high), PhaseRequest.VALIDATE: (validation, validation)}


def lost_share(per_machine_h: float, habits: InterruptionCost) -> float:
    """Return the share of paid time that interruptions take from a job that keeps its work."""
    return min(per_machine_h * habits.num_nodes * habits.loss_h, 1.0)


def to_be_had(refusals: Interval | None) -> bool | None:
    """Return whether a pool grants machines, by the share of refused requests.

    None if more than REFUSED of a few were refused and their interval includes less. A pool that
    was never asked counts as available while it is offered.
    """
    if refusals is None or refusals.middle <= REFUSED:
        return True
    return False if refusals.low > REFUSED else None


class Recommendation(str, Enum):
    """The result of the conditions."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"
    UNKNOWN = "unknown"  # nothing speaks against spot, and nobody knows whether it pays


def advised(holds: Sequence[bool | None], *, pays: bool | None) -> Recommendation:
    """Spot where it pays and no condition fails; those that are not known decide nothing."""
    if pays is False or any(one is False for one in holds):
        return Recommendation.ON_DEMAND
    return Recommendation.UNKNOWN if pays is None else Recommendation.SPOT
