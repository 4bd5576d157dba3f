"""The policy: what to do now, of all that could be done."""

from __future__ import annotations

from providers.base import CapacityType
from spotd.decide.policy.choice import Action, Choice, Option
from spotd.decide.policy.guard import late_s, must_be_on_demand
from spotd.decide.policy.situation import Pool, Situation


def choose(situation: Situation) -> Choice:
    """What to do until the next look. Raises ValueError where no pool is given."""
    if not situation.pools:
        raise ValueError("a situation needs one pool at least")
    until_s = situation.now_s + situation.work.look_s
    if must_be_on_demand(situation):
        return _guarded(situation, until_s)
    running = situation.running
    if running is not None and running.capacity is CapacityType.SPOT:
        return Choice(Action.STAY, until_s, why="spot goes on as long as it is there")
    ranked = sorted(_spot_options(situation), key=lambda option: (option.score_usd, option.pool))
    if ranked:
        best = ranked[0]
        return Choice(Action.SPOT, until_s, best.pool, options=tuple(ranked), why="the cheapest")
    if running is not None:
        return Choice(Action.STAY, until_s, why="no spot is to be had")
    return Choice(Action.WAIT, until_s, why="no spot is to be had, and there is time")


def _guarded(situation: Situation, until_s: float) -> Choice:
    running, late = situation.running, late_s(situation)
    why = "the deadline leaves nothing else"
    if running is not None and running.capacity is not CapacityType.SPOT:
        return Choice(Action.STAY, until_s, guarded=True, late_s=late, why=why)
    pool = _on_demand(situation)
    return Choice(Action.ON_DEMAND, until_s, pool.key, guarded=True, late_s=late, why=why)


def _on_demand(situation: Situation) -> Pool:
    """The cheapest on-demand until the job is done, the move there counted."""

    def costs(pool: Pool) -> tuple[float, str]:
        hours = _hours(situation, pool)
        return (pool.on_demand_usd_per_h or 0.0) * hours + pool.egress_usd, pool.key

    return min((p for p in situation.pools if p.on_demand_usd_per_h is not None), key=costs)


def _hours(situation: Situation, pool: Pool) -> float:
    """Of training there until the job is done."""
    return situation.work.left_s / 3600 / pool.speed


def _spot_options(situation: Situation) -> list[Option]:
    return [
        Option(
            Action.SPOT,
            pool.key,
            here_usd=pool.spot_usd_per_h * _hours(situation, pool),
            start_usd=pool.spot_usd_per_h * situation.work.restart_s / 3600,
            egress_usd=pool.egress_usd,
        )
        for pool in situation.pools
        if pool.spot_usd_per_h is not None and not _refused_now(situation, pool)
    ]


def _refused_now(situation: Situation, pool: Pool) -> bool:
    """Nothing was to be had there just now."""
    return pool.record.up is False and pool.record.seen_s >= situation.now_s
