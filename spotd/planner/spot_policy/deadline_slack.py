"""The slack before a deadline: when on-demand has to be requested whatever else is cheaper.

If on-demand is granted within `granted_s`, a job that keeps to this finishes in time, however spot
behaves. Anything but on-demand is allowed only if on-demand can still be requested one check later,
after a preemption without notice that loses all unsaved work, even if that check is as late as
possible.
"""

from __future__ import annotations

import math

from spotd.planner.spot_policy.situation import RemainingWork, Situation

_EXACT = 1e-9


def spare_looks(situation: Situation) -> float:
    """Return how many checks may pass before on-demand is requested.

    Negative if it is too late; inf without a deadline or without on-demand that could meet it.
    """
    work = situation.work
    if work.deadline_s is None or not _sold(situation):
        return math.inf
    left_s = work.deadline_s - situation.now_s - work.late_s
    left = math.floor(left_s / work.look_s + _EXACT)
    return left - _looks(need_s(situation), work)


def must_be_on_demand(situation: Situation) -> bool:
    """Return whether only on-demand is allowed until the next check."""
    return spare_looks(situation) < 1


def need_s(situation: Situation) -> float:
    """Return the seconds from requesting on-demand to the job's end, all unsaved work lost.

    Some pool has to sell on-demand.
    """
    work = situation.work
    carried_s = max(pool.transfer_s for pool in situation.pools)
    slowest = min(p.speed for p in situation.pools if p.on_demand_usd_per_h is not None)
    training_s = (work.left_s + work.unsaved_s) / slowest
    return work.granted_s + work.restart_s + carried_s + training_s


def late_s(situation: Situation) -> float:
    """Return the seconds by which the deadline is missed with on-demand requested now, or 0."""
    work, running = situation.work, situation.running
    if work.deadline_s is None:
        return 0.0
    if running is not None:
        speed = next(p.speed for p in situation.pools if p.key == running.pool)
        least_s = running.starting_s + work.left_s / speed
    else:
        least_s = need_s(situation)
    return max(0.0, situation.now_s + least_s - work.deadline_s)


def earliest_s(situation: Situation) -> float:
    """The earliest deadline that could be promised now."""
    work = situation.work
    return situation.now_s + need_s(situation) + work.look_s + work.late_s


def _looks(seconds: float, work: RemainingWork) -> int:
    return math.ceil(seconds / work.look_s - _EXACT)


def _sold(situation: Situation) -> bool:
    return any(pool.on_demand_usd_per_h is not None for pool in situation.pools)
