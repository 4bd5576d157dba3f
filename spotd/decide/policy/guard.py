"""What the deadline leaves: when on-demand has to be asked for, whatever else would be cheaper.

As long as on-demand is granted within `granted_s`, a job that keeps to this is done in time,
however spot behaves: what is not on-demand is allowed only where it can still be asked for a look
later, after a preemption without notice that loses all that is not saved, even if that look comes
as late as one may.
"""

from __future__ import annotations

import math

from spotd.decide.policy.situation import Situation, Work

_EXACT = 1e-9


def spare_looks(situation: Situation) -> float:
    """How many looks may pass before on-demand is asked for; negative: it is too late. inf: there
    is no deadline, or no on-demand that could keep it."""
    work = situation.work
    if work.deadline_s is None or not _sold(situation):
        return math.inf
    left_s = work.deadline_s - situation.now_s - work.late_s
    left = math.floor(left_s / work.look_s + _EXACT)
    return left - _looks(need_s(situation), work)


def must_be_on_demand(situation: Situation) -> bool:
    """Whether nothing but on-demand is allowed for the coming look."""
    return spare_looks(situation) < 1


def need_s(situation: Situation) -> float:
    """From asking for on-demand to the end of the job, with all unsaved work lost before; some
    pool has to sell it."""
    work = situation.work
    carried_s = max(pool.transfer_s for pool in situation.pools)
    slowest = min(p.speed for p in situation.pools if p.on_demand_usd_per_h is not None)
    training_s = (work.left_s + work.unsaved_s) / slowest
    return work.granted_s + work.restart_s + carried_s + training_s


def late_s(situation: Situation) -> float:
    """By how much the deadline is missed though on-demand is asked for now; 0: it is kept."""
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


def _looks(seconds: float, work: Work) -> int:
    return math.ceil(seconds / work.look_s - _EXACT)


def _sold(situation: Situation) -> bool:
    return any(pool.on_demand_usd_per_h is not None for pool in situation.pools)
