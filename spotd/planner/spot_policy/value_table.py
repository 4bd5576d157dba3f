"""Expected remaining cost by time left and work left, while spot comes and goes by the law.

A table is the solution by backward induction of a Markov decision process over steps of `step_h`.
The pools are one pool in it, with the mean price and scale of those that would be used. Its states
are running on spot (`on`), on-demand while spot is gone (`lasting`) or available (`tempted`), and
nothing while spot is available (`there`) or gone (`gone`). All but the price of on-demand know the
age of the newest run, in five classes. Each step takes the cheapest action; when the time is just
enough for a start and the work left, on-demand until the end. Dollars are in units of an hour of
spot there. Arrays are [steps of time left, age class, steps of work left].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spotd.planner.spot_policy.pool_record import expected

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float32]

AGES_H = (0.0, 0.5, 2.0, 6.0, 24.0, 72.0)  # edges of the classes; the last is open
# How old spot is that is found at once elsewhere, by class.
FOUND = (0.3, 0.3, 0.2, 0.15, 0.05)
WORK_STEPS, TIME_STEPS = 96, 192
_KEPT = 64  # tables of 1.3 MB


@dataclass(frozen=True)
class ValueParameters:
    """The parameters of a table.

    `on_demand` is the price in units of spot's, `restart_h` a start, `loss_h` the checkpoint
    interval, half of which is lost at each end. `ends` and `returns` are multiples of the law,
    `elsewhere` is the chance that other spot is available at once, `egress` the cost of a start
    somewhere else in hours of spot.
    """

    on_demand: float
    restart_h: float
    loss_h: float
    ends: float
    returns: float
    elsewhere: float
    egress: float
    step_h: float


class ValueTable:
    """The solved table; `kind` below is one of its arrays as memory.

    numpy takes ten times as long to return a single number.
    """

    def __init__(self, habits: ValueParameters) -> None:
        self.habits, self.step_h = habits, habits.step_h
        solved = map(_memory, _Solver(habits).solve())
        self.on, self.lasting, self.there, self.gone, self.after = solved

    def at(
        self, kind: memoryview, time_h: float, work_h: float, age_h: float | None = None
    ) -> float:
        """Return the cost, linear between steps; beyond the table its edge.

        `age_h` is for kinds that have ages.
        """
        time = min(max(time_h / self.step_h, 0.0), TIME_STEPS - 1e-6)
        work = min(max(work_h / self.step_h, 0.0), WORK_STEPS - 1e-6)
        t, w = int(time), int(work)
        x, y = time - t, work - w
        values: Any = kind
        if age_h is None:
            below = values[t, w] * (1 - y) + values[t, w + 1] * y
            above = values[t + 1, w] * (1 - y) + values[t + 1, w + 1] * y
        else:
            age = age_class(age_h)
            below = values[t, age, w] * (1 - y) + values[t, age, w + 1] * y
            above = values[t + 1, age, w] * (1 - y) + values[t + 1, age, w + 1] * y
        return float(below * (1 - x) + above * x)


def _memory(values: Any) -> memoryview:
    return memoryview(values)


def age_class(age_h: float) -> int:
    """Return the index in AGES_H."""
    for number, edge in enumerate(AGES_H[1:-1]):
        if age_h < edge:
            return number
    return len(AGES_H) - 2


@lru_cache(maxsize=_KEPT)
def table(habits: ValueParameters) -> ValueTable:
    """Return the table; about 15 ms on one core, the last ones are cached."""
    return ValueTable(habits)


class _Solver:
    """The induction; one array for each state, filled from no time left upwards."""

    def __init__(self, habits: ValueParameters) -> None:
        import numpy as np  # noqa: PLC0415  not loaded by a daemon without deadlines

        self.np, self.habits = np, habits
        spans = list(pairwise(AGES_H))
        law = np.array([expected(a, b - a) / (b - a) for a, b in spans])
        step_h = habits.step_h

        def chance(rates: Any, hours: Any) -> Any:
            return (1 - np.exp(-rates * hours))[:, None]

        self.ends = chance(law * habits.ends, step_h)
        self.returns = chance(law * habits.returns, step_h)
        self.fails = chance(law * habits.ends, habits.restart_h)  # gone before it trains
        width = np.array([b - a for a, b in spans])
        self.older = chance(1 / width, step_h)[:-1]
        self.steps = np.arange(WORK_STEPS + 1)
        self.work = self.steps * step_h
        self.behind = np.minimum(self.steps + habits.loss_h / 2 / step_h, WORK_STEPS)
        self.forced = habits.on_demand * (self.work + habits.restart_h)
        self.mixed = np.array(FOUND)[:, None]
        self.whole, self.part = divmod(habits.restart_h / step_h, 1.0)
        shape = (TIME_STEPS + 1, len(spans), WORK_STEPS + 1)
        self.on, self.lasting, self.tempted, self.there, self.gone = (
            np.empty(shape, np.float32) for _ in range(5)
        )
        self.found = np.empty((TIME_STEPS + 1, WORK_STEPS + 1), np.float32)
        for one in (self.on, self.there, self.gone, self.found):
            one[0] = self.forced
        for one in (self.lasting, self.tempted):
            one[0] = habits.on_demand * self.work

    def solve(self) -> tuple[Values, Values, Values, Values, Values]:
        """on, lasting, there, gone by age class, and of none what comes after an end."""
        for t in range(1, TIME_STEPS + 1):
            self._step(t)
            for one in (self.on, self.lasting, self.tempted, self.there, self.gone):
                one[t, :, 0] = 0.0
            self.found[t] = (self.mixed * self.there[t]).sum(0)
        # What is there is only ever asked of when it has just come back.
        young = self.there[:, :1].copy()
        elsewhere = self.np.float32(self.habits.elsewhere)
        after = elsewhere * self.found + (1 - elsewhere) * self.gone[:, 0]
        return self.on, self.lasting, young, self.gone, after

    def _step(self, t: int) -> None:
        np, h = self.np, self.habits
        on, lasting, tempted = self.on, self.lasting, self.tempted
        there, gone = self.there, self.gone
        enough = t * h.step_h - self.work >= h.restart_h + h.step_h - 1e-9
        lost = h.elsewhere * self.found[t - 1] + (1 - h.elsewhere) * gone[t - 1, 0]
        after = np.interp(self.behind, self.steps, lost) if h.loss_h else lost
        trains = self._worked(1.0, on[t - 1], after[None], self.ends)
        on[t] = np.where(enough, trains, self.forced)
        lasting[t] = self._worked(h.on_demand, lasting[t - 1], tempted[t - 1, :1], self.returns)
        stays = self._worked(h.on_demand, tempted[t - 1], lasting[t - 1, :1], self.ends)
        starts = (1 - self.fails) * self._started(on, t) + self.fails * lost[None]
        to_spot = h.restart_h + h.egress + starts
        tempted[t] = np.where(enough, np.minimum(stays, to_spot), stays)
        paid = h.restart_h * h.on_demand
        waits = (1 - self.ends) * self._aged(there[t - 1]) + self.ends * gone[t - 1, :1]
        best = np.minimum(np.minimum(waits, to_spot), paid + self._started(tempted, t))
        there[t] = np.where(enough, best, self.forced)
        waits = (1 - self.returns) * self._aged(gone[t - 1]) + self.returns * there[t - 1, :1]
        best = np.minimum(waits, paid + self._started(lasting, t))
        gone[t] = np.where(enough, best, self.forced)

    def _aged(self, values: Values) -> Any:
        result = values.copy()
        result[:-1] += (values[1:] - values[:-1]) * self.older
        return result

    def _worked(self, price: float, goes_on: Values, else_: Any, share: Any) -> Any:
        """A step of training: paid, one step of work less."""
        result = self.np.zeros(goes_on.shape)
        after = (1 - share) * self._aged(goes_on) + share * else_
        result[:, 1:] = price * self.habits.step_h + after[:, :-1]
        return result

    def _started(self, values: Values, t: int) -> Any:
        """Return the values that a start in this step leads to."""
        early = t - int(self.whole)
        if early < 1:
            return values[max(early, 0)]
        return (1 - self.part) * values[early] + self.part * values[early - 1]
