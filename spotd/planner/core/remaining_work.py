"""Estimate a job's remaining work, the time of its starts, and the loss at a machine's end.

In seconds, from measurements of the job, otherwise of this fleet, otherwise from the job file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import quantiles

from providers.base import Offer
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.phase import keeps
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.shard_stores import longest_pause_s

# From the request to the first new step, before any start was seen: machines of clouds come up
# within 2 to 5 minutes, and a setup and the reading of a checkpoint take as long again.
START_S = 600.0
FEW = 4  # starts: of fewer the slowest counts, of more the slowest but one of ten
MANY = 50  # the newest: setups change
GENERATIONS = 3  # the newest, for how long a step takes: programs and machines change


def step_s(view: View) -> float:
    """Return the wall time of a step, its share of saves included; 0.0 if unknown.

    It is measured between checkpoints of the newest generations; before there are two, it is the
    estimate.
    """
    trained = [one for one in view.saved if one.last_step > one.first_step]
    newest = trained[-GENERATIONS:]
    steps = sum(one.last_step - one.first_step for one in newest)
    time_us = sum(one.last_at_us - one.first_at_us for one in newest)
    return time_us / steps / S if steps and time_us else view.job.spec.preferences.step_s


def left_s(view: View, speed: float = 1.0) -> float | None:
    """Return the remaining training time on a machine of the first alternative, or None if unknown.

    Saved work does not count. `speed` is that of the machines on which steps were measured. At
    least one step, because a finished job ends by itself.
    """
    preferences, head = view.job.spec.preferences, view.job.head
    step, each_s = head.step if head else 0, step_s(view) * speed
    if preferences.work_steps:
        return max(preferences.work_steps - step, 1) * each_s if each_s else None
    if not preferences.work_s:
        return None
    if each_s and step:
        done_s = step * each_s
    else:
        done_s = sum(one.last_at_us - one.first_at_us for one in view.saved) / S * speed
    return max(preferences.work_s - done_s, each_s, 1.0)


def unsaved_s(node: Node, view: View, now_us: int) -> float:
    """Return the work in seconds that would be repeated if the machine ended now."""
    if not node.training.first_step_at_us:
        return 0.0
    since_us, head = node.training.first_step_at_us, view.job.head
    if head is not None and head.generation == node.generation:
        since_us = max(since_us, head.seen_at_us)
    return max(0, now_us - since_us) / S


def lost_s(offer: Offer, spec: JobSpec, market: Market) -> float:
    """Return the most work in seconds that a machine's end costs from now on: one checkpoint
    interval.

    A program that saves nothing would lose all of it, without a bound.
    """
    return longest_pause_s(offer, spec, market) if keeps(spec.checkpoint) else 0.0


def start_s(past: FleetHistory, job_id: str) -> float:
    """Return the time from the request to the first new step.

    The ninth decile of this job's starts, else of the fleet's, else START_S.
    """
    by_job = _starts(past)
    return by_job.get(job_id) or by_job.get("") or START_S


def _starts(past: FleetHistory) -> Mapping[str, float]:
    """Return the start time of each job that had one; "" is the fleet. Cached per history read."""
    cached = past.cache.get("starts")
    if cached is None:
        by_job: dict[str, list[NodeLifetime]] = {}
        for stay in past.stays:
            if stay.trained_at_us:
                for whose in ("", stay.node_id.rpartition("-g")[0]):
                    by_job.setdefault(whose, []).append(stay)
        cached = past.cache["starts"] = {whose: _typical_s(of) for whose, of in by_job.items()}
    return cached  # type: ignore[return-value]


def _typical_s(stays: Sequence[NodeLifetime]) -> float:
    took = [(stay.trained_at_us - stay.asked_at_us) / S for stay in stays[-MANY:]]
    return max(took) if len(took) < FEW else quantiles(took, n=10, method="inclusive")[-1]
