"""What is left to pay, by time left and work left, where spot comes and goes as the law says.

A table is the solution by backward induction of a Markov decision process over steps of `step_h`.
The pools are one pool in it, with the mean price and habits of those that would be used. Its states
are running on spot (`on`), on demand while spot is gone (`lasting`) or there (`tempted`), having
nothing while spot is there (`there`) or gone (`gone`); all but the price of on-demand know the age
of the newest run, in five classes. In each step what is cheapest is done, and where time is just
enough for a start and the work left, on-demand until the end. Dollars are in units of an hour of
spot there; arrays are [steps of time left, age class, steps of work left].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spotd.decide.policy.record import expected

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float32]

AGES_H = (0.0, 0.5, 2.0, 6.0, 24.0, 72.0)  # edges of the classes; the last is open
# How old spot is that is found at once elsewhere, by class.
FOUND = (0.3, 0.3, 0.2, 0.15, 0.05)
WORK_STEPS, TIME_STEPS = 96, 192
_KEPT = 96  # tables of 1.3 MB


@dataclass(frozen=True)
class Habits:
    """What a table is made for. `on_demand` is the price in units of spot's; `restart_h` a start,
    `loss_h` the pause between saves, of which half is lost with each end. `ends` and `returns` are
    times the law, `elsewhere` is the chance that other spot is there at once, and `egress` the cost
    of a start somewhere else, in hours of spot."""

    on_demand: float
    restart_h: float
    loss_h: float
    ends: float
    returns: float
    elsewhere: float
    egress: float
    step_h: float


class Table:
    """See the module; `kind` below is one of its arrays."""

    def __init__(self, habits: Habits) -> None:
        self.habits, self.step_h = habits, habits.step_h
        self.on, self.lasting, self.there, self.gone, self.found = _solved(habits)

    def at(self, kind: Values, time_h: float, work_h: float, age_h: float | None = None) -> float:
        """Of that much time and work left, between the steps linearly; beyond the table, its edge.
        `age_h` where the kind knows ages."""
        time = min(max(time_h / self.step_h, 0.0), TIME_STEPS - 1e-6)
        work = min(max(work_h / self.step_h, 0.0), WORK_STEPS - 1e-6)
        t, w = int(time), int(work)
        x, y = time - t, work - w
        values: Any = kind if age_h is None else kind[:, age_class(age_h)]
        early, late = values[t], values[t + 1]
        below = early[w] * (1 - y) + early[w + 1] * y
        above = late[w] * (1 - y) + late[w + 1] * y
        return float(below * (1 - x) + above * x)


def age_class(age_h: float) -> int:
    """Of AGES_H."""
    for number, edge in enumerate(AGES_H[1:-1]):
        if age_h < edge:
            return number
    return len(AGES_H) - 2


@lru_cache(maxsize=_KEPT)
def table(habits: Habits) -> Table:
    """Made in about 15 ms on one core; the last ones are kept."""
    return Table(habits)


def _solved(h: Habits) -> tuple[Values, Values, Values, Values, Values]:
    """on, lasting, there, gone by age class, and found of none."""
    import numpy as np  # noqa: PLC0415  not loaded by a daemon without deadlines

    spans = list(pairwise(AGES_H))
    law = np.array([expected(a, b - a) / (b - a) for a, b in spans])
    width = np.array([b - a for a, b in spans])
    older = 1 - np.exp(-h.step_h / width)
    older[-1] = 0.0
    ends = (1 - np.exp(-law * h.ends * h.step_h))[:, None]
    returns = (1 - np.exp(-law * h.returns * h.step_h))[:, None]
    fails = (1 - np.exp(-law * h.ends * h.restart_h))[:, None]  # gone before it trains
    work = np.arange(WORK_STEPS + 1) * h.step_h
    forced = h.on_demand * (work + h.restart_h)
    shape = (TIME_STEPS + 1, len(spans), WORK_STEPS + 1)
    on, lasting, tempted, there, gone = (np.empty(shape, np.float32) for _ in range(5))
    found = np.empty((TIME_STEPS + 1, WORK_STEPS + 1), np.float32)
    for one in (on, there, gone, found):
        one[0] = forced
    for one in (lasting, tempted):
        one[0] = h.on_demand * work
    behind = np.minimum(np.arange(WORK_STEPS + 1) + h.loss_h / 2 / h.step_h, WORK_STEPS)
    mixed = np.array(FOUND)[:, None]

    def aged(values: Values) -> Any:
        told = values.copy()
        told[:-1] += (values[1:] - values[:-1]) * older[:-1, None]
        return told

    def worked(price: float, goes_on: Any, else_: Any, share: Any) -> Any:
        """A step of training: paid, one step of work less."""
        told = np.zeros(shape[1:])
        told[:, 1:] = price * h.step_h + ((1 - share) * goes_on + share * else_)[:, :-1]
        return told

    whole, part = divmod(h.restart_h / h.step_h, 1.0)

    def started(values: Values, t: int) -> Any:
        """What a start that is begun now leads to."""
        early = t - int(whole)
        if early < 1:
            return values[max(early, 0)]
        return (1 - part) * values[early] + part * values[early - 1]

    for t in range(1, TIME_STEPS + 1):
        enough = t * h.step_h - work >= h.restart_h + h.step_h - 1e-9
        lost = h.elsewhere * found[t - 1] + (1 - h.elsewhere) * gone[t - 1, 0]
        after = np.interp(behind, np.arange(WORK_STEPS + 1), lost) if h.loss_h else lost
        on[t] = np.where(enough, worked(1.0, aged(on[t - 1]), after[None], ends), forced)
        lasting[t] = worked(h.on_demand, aged(lasting[t - 1]), tempted[t - 1, :1], returns)
        stays = worked(h.on_demand, aged(tempted[t - 1]), lasting[t - 1, :1], ends)
        to_spot = h.restart_h + h.egress + (1 - fails) * started(on, t) + fails * lost[None]
        tempted[t] = np.where(enough, np.minimum(stays, to_spot), stays)
        to_last = h.restart_h * h.on_demand
        waits = (1 - ends) * aged(there[t - 1]) + ends * gone[t - 1, :1]
        best = np.minimum(np.minimum(waits, to_spot), to_last + started(tempted, t))
        there[t] = np.where(enough, best, forced)
        waits = (1 - returns) * aged(gone[t - 1]) + returns * there[t - 1, :1]
        gone[t] = np.where(enough, np.minimum(waits, to_last + started(lasting, t)), forced)
        found[t] = (mixed * there[t]).sum(0)
        for one in (on, lasting, tempted, there, gone):
            one[t, :, 0] = 0.0
        found[t, 0] = 0.0
    return on, lasting, there, gone, found
