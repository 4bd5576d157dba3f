"""Decide by an exact table if only one pool sells spot.

Only the time is chosen: spot, on-demand in the same place, or neither. The table
(single_pool_mdp.py) knows each of them at each age, so no stretch is estimated by itself as among
several pools (cost_estimator.py).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from spotd.planner.spot_policy.choice import Action, Option
from spotd.planner.spot_policy.cost_estimator import (
    DEAR,
    YOUNG_H,
    cheapest_on_demand,
    paid_per_done,
)
from spotd.planner.spot_policy.grid import rounded
from spotd.planner.spot_policy.hazard import fleet_scale, found_age_h
from spotd.planner.spot_policy.single_pool_mdp import MdpParameters, exact, step_h
from spotd.planner.spot_policy.situation import Pool, RunningGang, Situation

if TYPE_CHECKING:
    from spotd.planner.spot_policy.value_table import Values


def only_place(situation: Situation) -> Pool | None:
    """Return the only pool that sells spot, and the cheapest on-demand; None otherwise.

    None as well if the checkpoint has to be moved there.
    """
    sold = [pool for pool in situation.pools if pool.spot_usd_per_h is not None]
    if len(sold) != 1 or cheapest_on_demand(situation) is not sold[0]:
        return None
    pool = sold[0]
    spot, on_demand = pool.spot_usd_per_h or 0.0, pool.on_demand_usd_per_h or 0.0
    near = pool.egress_usd == 0 and pool.transfer_s == 0
    return pool if near and 0 < spot < DEAR * on_demand else None


class SinglePool:
    """The options of a situation with such a pool and a deadline, in dollars of the whole gang.

    `there`: spot is known to be available now; otherwise it counts as gone.
    """

    def __init__(self, situation: Situation, pool: Pool) -> None:
        work, record = situation.work, pool.record
        self.situation, self.pool = situation, pool
        self.spot_usd = pool.spot_usd_per_h or 0.0
        self.time_h = ((work.deadline_s or inf) - situation.now_s) / 3600
        self.work_h = work.left_s / 3600 / pool.speed
        self.restart_h = work.restart_s / 3600
        self.found_h = found_age_h(record, situation.now_s)
        down = record.up is False
        self.gone_h = max(record.age_h(situation.now_s) if down else 0.0, YOUNG_H)
        self.table = exact(self._place())

    def _place(self) -> MdpParameters:
        """Rounded, so that like situations share a table."""
        situation, work = self.situation, self.situation.work
        # A fleet of one: what it says of itself is heard once.
        one = fleet_scale(pool.record for pool in situation.pools)
        ratio = (self.pool.on_demand_usd_per_h or 0.0) / self.spot_usd
        lost_h = work.lost_s / 3600
        return MdpParameters(
            on_demand=min(round(ratio * 4) / 4, 100.0),
            restart_h=rounded(self.restart_h, 1.1),
            loss_h=rounded(lost_h, 1.25) if lost_h else 0.0,
            ends=rounded(one.ends, 1.5),
            returns=rounded(one.returns, 1.5),
            step_h=step_h(self.work_h, self.restart_h, work.look_s / 3600),
        )

    def spot(self) -> Option:
        starts_usd = self.restart_h * self.spot_usd
        return self._option(Action.SPOT, self.table.spot, self.found_h, starts_usd, self._lost_h())

    def stay(self) -> Option:
        """Continue on the running spot machine."""
        return self._option(Action.STAY, self.table.goes_on, self.found_h, lost_h=self._lost_h())

    def wait(self, *, there: bool) -> Option:
        kind = self.table.wait_up if there else self.table.wait_down
        return Option(Action.WAIT, rest_usd=self._usd(kind, self._age_h(there=there)))

    def on_demand(self, running: RunningGang | None, *, there: bool) -> Option:
        """Request on-demand, or continue on it."""
        table, age_h = self.table, self._age_h(there=there)
        if running is not None:
            kind = table.lasts_up if there else table.lasts_down
            return self._option(Action.STAY, kind, age_h)
        kind = table.on_demand_up if there else table.on_demand_down
        starts_usd = self.restart_h * (self.pool.on_demand_usd_per_h or 0.0)
        return self._option(Action.ON_DEMAND, kind, age_h, starts_usd)

    def _age_h(self, *, there: bool) -> float:
        return self.found_h if there else self.gone_h

    def _option(
        self,
        action: Action,
        kind: Values,
        age_h: float,
        starts_usd: float = 0.0,
        lost_h: float = 0.0,
    ) -> Option:
        """Return an option whose total is the table's; a start and losses are parts of it."""
        whole = self._usd(kind, age_h)
        start = min(starts_usd, whole)
        lost = min(lost_h * self.spot_usd, whole - start)
        return Option(action, self.pool.key, 0.0, start, lost, 0.0, whole - start - lost)

    def _lost_h(self) -> float:
        """Hours paid for work that ends lose, of one who always comes back to spot at once."""
        ends, again_h = self.table.place.ends, self.situation.work.lost_s / 7200
        starts = paid_per_done(ends, round(self.restart_h, 2))
        more = paid_per_done(ends, round(self.restart_h + again_h, 2)) - starts
        return self.work_h * min(more, 10.0)

    def _usd(self, kind: Values, age_h: float) -> float:
        return self.table.at(kind, self.time_h, self.work_h, age_h) * self.spot_usd
