"""Choose among all options what to do now."""

from __future__ import annotations

from collections.abc import Iterable

from providers.base import CapacityType
from providers.dollars import format_usd
from spotd.planner.spot_policy.choice import Action, Choice, Option
from spotd.planner.spot_policy.cost_estimator import (
    CostEstimator,
    cheapest_on_demand,
    paid_per_done,
    usd_per_work,
)
from spotd.planner.spot_policy.deadline_slack import late_s, must_be_on_demand, spare_looks
from spotd.planner.spot_policy.hazard import HazardScale, fleet_scale, found_age_h, scale
from spotd.planner.spot_policy.pool_record import PoolRecord
from spotd.planner.spot_policy.single_pool import SinglePool, only_place
from spotd.planner.spot_policy.situation import Pool, RunningGang, Situation

# Hours of spot that a move has to gain, at the least. What is best of many is best by luck as well:
# of moves for a hundredth of an hour too many were regretted (docs/measurements.md).
MOVED_FOR = 1.0
RIPER_FOR = 0.01  # the same of a start that is put off until spot has stood for a while
PAUSED_FOR = 0.999  # of what staying costs: a pause in its place has to be cheaper than that
AGAIN_S = 3600.0  # a pool that was refused or taken away is not moved to for that long


def choose(situation: Situation) -> Choice:
    """Return what to do until the next check. Raises ValueError without a pool."""
    if not situation.pools:
        raise ValueError("a situation needs one pool at least")
    if must_be_on_demand(situation):
        return _guarded(situation)
    if not any(pool.spot_usd_per_h is not None for pool in situation.pools):
        return _without_spot(situation)
    if situation.work.deadline_s is None or not any(
        pool.on_demand_usd_per_h is not None for pool in situation.pools
    ):
        return _undated(situation)
    running = situation.running
    if running is not None and running.starting_s > 0:
        return Choice(Action.STAY, why="a machine that is about to train is not left to save money")
    pool = only_place(situation)
    if pool is not None:
        return _in_one_place(SinglePool(situation, pool), running)
    outlook = CostEstimator(situation)
    if running is not None and running.capacity is CapacityType.SPOT:
        if running.pool not in outlook.places:  # nobody says what it costs
            return Choice(Action.STAY, why="the job stays on spot as long as it is available")
        return _on_spot(outlook, running)
    return _off_spot(outlook)


def _guarded(situation: Situation) -> Choice:
    running, late = situation.running, late_s(situation)
    why = "the deadline allows nothing else"
    if running is not None and running.capacity is not CapacityType.SPOT:
        return Choice(Action.STAY, guarded=True, late_s=late, why=why)
    pool = cheapest_on_demand(situation)
    return Choice(Action.ON_DEMAND, pool.key, guarded=True, late_s=late, why=why)


def _without_spot(situation: Situation) -> Choice:
    if situation.running is not None:
        return Choice(Action.STAY, why="no spot is available")
    return Choice(Action.WAIT, why="no spot is available, and there is time")


def _undated(situation: Situation) -> Choice:
    """Choose without a deadline: spot where the work costs least, as soon as it is available."""
    running = situation.running
    if running is not None and running.capacity is CapacityType.SPOT:
        return Choice(Action.STAY, why="the job stays on spot as long as it is available")
    fleet = fleet_scale(one.record for one in situation.pools)
    ranked = _ranked(_undated_option(situation, pool, fleet) for pool in _to_be_had(situation))
    if ranked:
        return Choice(Action.SPOT, ranked[0].pool, options=ranked, why="the cheapest")
    return _without_spot(situation)


def _undated_option(situation: Situation, pool: Pool, fleet: HazardScale) -> Option:
    """Return the option with the cost of failed starts and of work lost at each end."""
    work, price = situation.work, pool.spot_usd_per_h or 0.0
    hours, restart_h = work.left_s / 3600 / pool.speed, work.restart_s / 3600
    gone_h = restart_h + work.lost_s / 7200
    again = paid_per_done(round(scale(pool.record, fleet).ends, 1), round(gone_h, 2)) - 1
    return Option(
        Action.SPOT,
        pool.key,
        here_usd=price * hours,
        start_usd=price * restart_h,
        lost_usd=price * hours * min(again, 10.0),
        egress_usd=pool.egress_usd,
    )


def _on_spot(outlook: CostEstimator, running: RunningGang) -> Choice:
    """Stay, or move to where the rest including the move costs less."""
    situation, stay = outlook.situation, outlook.stay(running)
    most = stay.score_usd - MOVED_FOR * outlook.hourly
    options = _ranked(outlook.found(key) for key in _candidates(outlook) if key != running.pool)
    ranked = _ranked([stay, *options])
    for option in options:
        record = outlook.places[option.pool].pool.record
        if option.score_usd >= most:
            break
        if record.up is False and situation.now_s - record.seen_s < AGAIN_S:
            continue
        why = f"the rest costs {format_usd(stay.score_usd - option.score_usd)} less there"
        return Choice(Action.SPOT, option.pool, options=ranked, why=why)
    why = "no available offer costs less than staying"
    return Choice(Action.STAY, options=ranked, why=why)


def _off_spot(outlook: CostEstimator) -> Choice:
    """Take spot, take or keep on-demand, or wait."""
    situation, running = outlook.situation, outlook.situation.running
    otherwise = [outlook.lasts(running)] if running else [outlook.wait(), outlook.on_demand()]
    if usd_per_work(outlook.lasting) <= min(p.usd_per_h for p in outlook.places.values()):
        why, ranked = "on-demand costs no more than spot", _ranked(otherwise)
        if running:
            return Choice(Action.STAY, options=ranked, why=why)
        return Choice(Action.ON_DEMAND, outlook.lasting.key, options=ranked, why=why)
    best = min(otherwise, key=lambda option: option.score_usd)
    options = _ranked(outlook.found(key) for key in _candidates(outlook))
    ranked = _ranked([*otherwise, *options])
    riper: float | None = None
    for option in options:
        if option.score_usd >= best.score_usd:
            break
        later = _riper(outlook, option, best)
        if later is None:
            why = f"{format_usd(best.score_usd - option.score_usd)} less than without spot"
            return Choice(Action.SPOT, option.pool, options=ranked, why=why)
        if not _seen_now(situation, outlook.places[option.pool].pool.record):
            why = "it may have just returned, and may end again"
            action = Action.STAY if running else Action.WAIT
            return Choice(action, probes=(option.pool,), options=ranked, why=why)
        riper = later if riper is None else min(later, riper)
    return _without(outlook, otherwise, riper, ranked)


def _in_one_place(alone: SinglePool, running: RunningGang | None) -> Choice:
    """Spot, on-demand or neither, where there is no other place to go to."""
    situation, record = alone.situation, alone.pool.record
    if running is not None and running.capacity is CapacityType.SPOT:
        why = "the job stays on spot as long as it is available"
        return Choice(Action.STAY, options=(alone.stay(),), why=why)
    seen = _seen_now(situation, record)
    available = not (seen and record.up is False)
    # Young spot is passed by where it can be watched; where nobody sees it, to do without is to
    # do without any.
    watched = available and (seen or situation.probe_s is not None)
    wait = alone.wait(there=watched)
    on_demand = alone.on_demand(running, there=watched)
    ranked = _ranked([wait, on_demand, *([alone.spot()] if available else [])])
    least, over = ranked[0], ranked[1].score_usd - ranked[0].score_usd
    keeps = Action.STAY if running else Action.WAIT
    if least.action is Action.SPOT:
        why = f"{format_usd(over)} less than without spot"
        return Choice(Action.SPOT, least.pool, options=ranked, why=why)
    if watched and not seen:
        why = "it may have just returned, and may end again"
        return Choice(keeps, probes=(alone.pool.key,), options=ranked, why=why)
    if least.action is Action.ON_DEMAND:
        why = f"{format_usd(wait.score_usd - least.score_usd)} less than waiting for spot"
        return Choice(Action.ON_DEMAND, least.pool, options=ranked, why=why)
    if running is None:
        over = on_demand.score_usd - wait.score_usd
        why = f"{format_usd(over)} less than on-demand now, and there is time"
        return Choice(Action.WAIT, options=ranked, why=why)
    if least.action is Action.WAIT and _may_pause(situation):
        why = "spot is expected back soon, and there is time"
        return Choice(Action.WAIT, options=ranked, why=why)
    return Choice(Action.STAY, options=ranked, why="no spot is worth it")


def _riper(outlook: CostEstimator, option: Option, best: Option) -> float | None:
    """Return the cost of taking that spot when it has lasted for a while, or None.

    None if that is not cheaper than taking it now, or if it cannot be watched meanwhile.
    """
    situation = outlook.situation
    if not situation.signalled and situation.probe_s is None:
        return None
    age_h = found_age_h(outlook.places[option.pool].pool.record, situation.now_s)
    later = outlook.ripen(option.pool, age_h, best)
    return later if later < option.score_usd - RIPER_FOR * outlook.hourly else None


def _without(
    outlook: CostEstimator,
    otherwise: list[Option],
    riper: float | None,
    ranked: tuple[Option, ...],
) -> Choice:
    situation = outlook.situation
    if situation.running is not None:
        there = riper is not None
        if not there and _pauses(outlook, otherwise[0]):
            why = "spot is expected back soon, and there is time"
            return Choice(Action.WAIT, options=ranked, why=why)
        why = (
            "spot is observed until it has been available for a while"
            if there
            else "no spot is worth it"
        )
        return Choice(Action.STAY, options=ranked, why=why)
    wait, on_demand = otherwise
    waited_usd = wait.score_usd if riper is None else riper
    if on_demand.score_usd < waited_usd:
        why = f"{format_usd(waited_usd - on_demand.score_usd)} less than waiting for spot"
        return Choice(Action.ON_DEMAND, on_demand.pool, options=ranked, why=why)
    why = (
        f"{format_usd(on_demand.score_usd - waited_usd)} less than on-demand now, and there is time"
    )
    return Choice(Action.WAIT, options=ranked, why=why)


def _pauses(outlook: CostEstimator, lasts: Option) -> bool:
    """Return whether to give on-demand back.

    A pause must cost less than continuing, and a wait must be the choice without it, or on-demand
    would be bought again at once. The time to save and stop does not come from the slack, and one
    check later on-demand may be requested again.
    """
    if not _may_pause(outlook.situation):
        return False
    if outlook.pause() >= lasts.score_usd * PAUSED_FOR:
        return False
    return outlook.wait().score_usd < outlook.on_demand().score_usd


def _may_pause(situation: Situation) -> bool:
    """Return whether there is time to save and stop, and for two more checks."""
    work = situation.work
    return spare_looks(situation) * work.look_s >= work.stop_s + 2 * work.look_s


def _candidates(outlook: CostEstimator) -> list[str]:
    had = {pool.key for pool in _to_be_had(outlook.situation)}
    return [key for key in outlook.places if key in had]


def _to_be_had(situation: Situation) -> list[Pool]:
    """Pools that were not refused just now."""
    return [
        pool
        for pool in situation.pools
        if pool.spot_usd_per_h is not None
        and not (pool.record.up is False and _seen_now(situation, pool.record))
    ]


def _seen_now(situation: Situation, record: PoolRecord) -> bool:
    return record.up is not None and record.seen_s >= situation.now_s


def _ranked(options: Iterable[Option]) -> tuple[Option, ...]:
    return tuple(sorted(options, key=lambda option: (option.score_usd, option.pool)))
