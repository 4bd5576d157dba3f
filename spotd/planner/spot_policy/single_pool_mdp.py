"""Expected remaining cost with one spot pool, by time left, work left, and ages.

A Markov decision process as in value_table.py, closer to reality in three ways, which pays if there
is nowhere else to go: its steps are as short as the checks (10 min for two days of work), ages fall
into nine classes of which five are within the first two hours, and a start is modelled step by
step. On-demand may be given up for a wait at each step. Dollars are in units of an hour of spot
there. Arrays are [steps of slack, age class, steps of work left], where slack is the time left
beyond the work; it never grows, so no more of it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spotd.planner.spot_policy.grid import doubled
from spotd.planner.spot_policy.pool_record import expected

if TYPE_CHECKING:
    from spotd.planner.spot_policy.value_table import Values

AGES_H = (0.0, 1 / 6, 1 / 3, 0.5, 1.0, 2.0, 6.0, 12.0, 24.0, 48.0)  # the last class is open
WORK_STEPS, SLACK_STEPS = 288, 288
TIME_STEPS = WORK_STEPS + SLACK_STEPS
STEP_H = 1 / 6
START_STEPS = 9  # of a start, about: each is lived through in each state
_KEPT = 8  # tables of 24 MB


@dataclass(frozen=True)
class MdpParameters:
    """The parameters of a table.

    `on_demand` is its price in units of spot's, `restart_h` a start, `loss_h` the checkpoint
    interval, half of which is lost at each end. `ends` and `returns` are multiples of the law.
    """

    on_demand: float
    restart_h: float
    loss_h: float
    ends: float
    returns: float
    step_h: float


class MdpTable:
    """The cost of each action in each state; `*_up` while spot is available, `*_down` while not."""

    def __init__(self, place: MdpParameters) -> None:
        import numpy as np  # noqa: PLC0415  not loaded by a daemon without deadlines

        self.place, self.step_h = place, place.step_h
        shape = (SLACK_STEPS + 1, len(AGES_H) - 1, WORK_STEPS + 1)
        self.kinds: list[Values] = [np.zeros(shape, np.float32) for _ in range(8)]
        self.wait_up, self.wait_down, self.goes_on, self.lasts_up, self.lasts_down = self.kinds[:5]
        self.spot, self.on_demand_up, self.on_demand_down = self.kinds[5:]
        _Solver(place, self).solve()

    def at(self, kind: Values, time_h: float, work_h: float, age_h: float) -> float:
        """Return the cost, linear between steps; beyond the table its edge."""
        work = min(max(work_h / self.step_h, 0.0), WORK_STEPS - 1e-6)
        most = int(work) + SLACK_STEPS - 1e-6
        time = min(max(time_h / self.step_h, int(work) + 1.0), most)
        t, w, age = int(time), int(work), age_class(age_h)
        x, y, slack = time - t, work - w, t - w
        a, b = kind[slack, age, w], kind[slack - 1, age, w + 1]
        c, d = kind[slack + 1, age, w], kind[slack, age, w + 1]
        return float((a * (1 - y) + b * y) * (1 - x) + (c * (1 - y) + d * y) * x)


def age_class(age_h: float) -> int:
    """Return the index in AGES_H."""
    return sum(age_h >= edge - 1e-9 for edge in AGES_H[1:-1])


def step_h(work_h: float, restart_h: float, look_h: float) -> float:
    """Return the step: STEP_H times a power of two.

    The table then holds all of the work, steps are not shorter than checks, and a start has at most
    START_STEPS. Slack beyond the table counts as its edge.
    """
    need = max(work_h / WORK_STEPS, restart_h / START_STEPS, min(look_h, STEP_H))
    return doubled(need, STEP_H)


@lru_cache(maxsize=_KEPT)
def exact(place: MdpParameters) -> MdpTable:
    """Return the table; about 0.1 s on one core, the last ones are cached."""
    return MdpTable(place)


class _Solver:
    """The induction, from no time left upwards."""

    def __init__(self, place: MdpParameters, table: MdpTable) -> None:
        import numpy as np  # noqa: PLC0415

        self.np, self.place, self.table = np, place, table
        step = place.step_h
        spans = list(pairwise(AGES_H))
        law = np.array([expected(a, b - a) / (b - a) for a, b in spans])
        self.ends = self._chance(law * place.ends * step)
        self.returns = self._chance(law * place.returns * step)
        width = np.array([b - a for a, b in spans])
        self.older = self._chance(np.minimum(1 / width * step, 50.0))[:-1]
        steps = np.arange(WORK_STEPS + 1)
        self.forced = (place.on_demand * (steps * step + place.restart_h)).astype(np.float32)
        self.finish = (place.on_demand * steps * step).astype(np.float32)
        self.need = steps * step + place.restart_h + step - 1e-9
        lost = place.loss_h / 2 / step
        self.whole_lost, self.part_lost = int(lost), lost - int(lost)
        whole, part = divmod(place.restart_h / step, 1.0)
        # How much of each step of a start is work already; a start of no time is a step of work.
        rest = [1 - part] if part > 1e-6 or not whole else []
        self.works = [0.0] * int(whole) + rest

    def _chance(self, rate: Any) -> Any:
        return (1 - self.np.exp(-rate)).astype(self.np.float32)[:, None]

    def solve(self) -> None:
        np, shape = self.np, (len(AGES_H) - 1, WORK_STEPS + 1)
        # Nothing but on-demand until the end is left, late though it may be.
        self.there = self.gone = self.on = np.broadcast_to(self.forced, shape)
        self.lasting = self.tempted = np.broadcast_to(self.finish, shape)
        # What has been started, by how many steps ago: on spot, on demand with spot there, or gone.
        self.begun = [(self.there, self.lasting, self.lasting)] * len(self.works)
        for t in range(1, TIME_STEPS + 1):
            self._step(t)

    def _step(self, t: int) -> None:
        """Compute each action's cost in this step, then each state's value."""
        np, step = self.np, self.place.step_h
        wait_up = self._while_up(self.there, self.gone)
        wait_down = self._while_down(self.gone, self.there)
        goes_on = step + self._worked(self._while_up(self.on, self._behind(self.gone)), 1.0)
        lasts_up, lasts_down = self._on_demand(self.tempted, self.lasting, 1.0)
        begun = []
        after = [*self.begun[1:], (self.on, self.tempted, self.lasting)]
        for works, (on, up, down) in zip(self.works, after, strict=True):
            spot = step + self._worked(self._while_up(on, self.gone), works)
            begun.append((spot, *self._on_demand(up, down, works)))
        self.begun = begun
        spot, on_demand_up, on_demand_down = begun[0]
        self._keep(t, (wait_up, wait_down, goes_on, lasts_up, lasts_down, *begun[0]))
        enough = t * step >= self.need
        taken = np.minimum(wait_up, spot)
        self.there = self._now(enough, np.minimum(taken, on_demand_up), self.forced)
        self.gone = self._now(enough, np.minimum(wait_down, on_demand_down), self.forced)
        self.on = self._now(enough, goes_on, self.forced)
        self.tempted = self._now(enough, np.minimum(taken, lasts_up), lasts_up)
        self.lasting = self._now(enough, np.minimum(wait_down, lasts_down), lasts_down)

    def _keep(self, t: int, values: tuple[Any, ...]) -> None:
        """Store the values whose slack is in the table, in the order of MdpTable.kinds."""
        work = self.np.arange(max(t - SLACK_STEPS, 0), min(t, WORK_STEPS) + 1)
        for kind, value in zip(self.table.kinds, values, strict=True):
            kind[t - work, :, work] = value[:, work].T

    def _on_demand(self, up: Any, down: Any, works: float) -> tuple[Any, Any]:
        """A step on demand, with spot there, or gone."""
        paid = self.place.on_demand * self.place.step_h
        return (
            paid + self._worked(self._while_up(up, down), works),
            paid + self._worked(self._while_down(down, up), works),
        )

    def _while_up(self, still: Any, ended: Any) -> Any:
        aged = self._aged(still)
        return aged + self.ends * (ended[:1] - aged)

    def _while_down(self, still: Any, back: Any) -> Any:
        aged = self._aged(still)
        return aged + self.returns * (back[:1] - aged)

    def _aged(self, values: Any) -> Any:
        result = values.copy()
        result[:-1] += (values[1:] - values[:-1]) * self.older
        return result

    def _worked(self, values: Any, share: float) -> Any:
        """After that share of a step of work."""
        result = values * (1 - share)
        result[:, 1:] += share * values[:, :-1]
        result[:, 0] += share * values[:, 0]
        return result

    def _behind(self, values: Any) -> Any:
        """Return the values with the work that an end loses."""
        whole, part = self.whole_lost, self.part_lost
        if not whole and not part:
            return values
        index = self.np.minimum(self.np.arange(WORK_STEPS + 1) + whole, WORK_STEPS)
        more = self.np.minimum(index + 1, WORK_STEPS)
        return values[:, index] * (1 - part) + values[:, more] * part

    def _now(self, enough: Any, best: Any, late: Any) -> Any:
        """The best where there is time enough for it; without work left nothing is paid."""
        result = self.np.where(enough, best, late)
        result[:, 0] = 0.0
        return result
