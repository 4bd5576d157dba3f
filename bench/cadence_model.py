"""The closed form of what preemptions cost: what bench/cadence.py's simulation has to come to.

A machine's life is exponential with mean M, RESTART_S of it pass before it trains. From then on
cycles of T seconds of training and s of standing still follow each other; what was trained in one
is durable u seconds after the next has begun. By memorylessness, where in its cycle the end (or the
notice) meets training does not depend on how many cycles there were.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1

from trainer.hook.spotd_hook.deadline import RESERVE_S, SAFETY_FACTOR

RESTART_S = 240.0  # from the end of one machine to training on the next, restore included
NOTICED = 0.9  # of all ends
LIVE_H = 3000.0


@dataclass(frozen=True)
class Expected:
    """`goodput` is the share of time that became lasting progress; `lost_min` what one preemption
    takes beside the restart: work done again, and time in which the machine trained no more."""

    goodput: float
    lost_min: float


def expect(
    *,
    every_s: float,
    stall_s: float,
    upload_s: float,
    mtbf_s: float,
    notice_s: float,
    step_s: float,
    last_save_s: float = 0.0,
    latest: bool = False,
) -> Expected:
    """`last_save_s` is what a save at a notice takes, 0 where there is none; `latest`: it begins at
    the latest safe moment, and not at once."""
    cycle_s, mean_s = every_s + stall_s, mtbf_s
    ends = -expm1(-cycle_s / mean_s)  # the chance that a cycle is the last one
    trained_s = mean_s * -expm1(-every_s / mean_s) / ends
    # Work of the cycle that is met, and the chance that the one before is not durable yet.
    met_s = (mean_s * -expm1(-every_s / mean_s) - every_s * exp(-cycle_s / mean_s)) / ends

    def again_s(late_s: float) -> float:
        """Work that is lost when what becomes durable within `late_s` of a cycle comes too late."""
        late_s = min(max(late_s, 0.0), cycle_s)
        return met_s + every_s * exp(-cycle_s / mean_s) * -expm1(-late_s / mean_s) / ends

    usable_s = notice_s - RESERVE_S
    if latest:
        if last_save_s <= usable_s:
            kept_s = min(usable_s, SAFETY_FACTOR * last_save_s + step_s / 2) + RESERVE_S
            noticed_s = min(kept_s, notice_s)
        else:
            noticed_s = again_s(upload_s - usable_s) + notice_s
    elif last_save_s:
        noticed_s = notice_s if last_save_s <= notice_s else again_s(upload_s) + notice_s
    else:
        noticed_s = again_s(upload_s)
    lost_s = NOTICED * noticed_s + (1 - NOTICED) * again_s(upload_s)
    alive = exp(-RESTART_S / mean_s)
    return Expected(alive * (trained_s - lost_s) / mean_s, alive * lost_s / 60)
