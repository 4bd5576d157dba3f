"""What is left of a job, how long its starts take, and what a machine's end would cost it now: by
what was measured of it, else of this fleet, else by what its file says. Seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import quantiles

from providers.base import Offer
from spotd.decide.carriage import longest_pause_s
from spotd.model import JobSpec, Market, Node, S, View
from spotd.past import Past, Stay
from spotd.phase import keeps

# From the request to the first new step, before any start was seen: machines of clouds come up
# within 2 to 5 minutes, and a setup and the reading of a checkpoint take as long again.
START_S = 600.0
FEW = 4  # starts: of fewer the slowest counts, of more the slowest but one of ten
MANY = 50  # the newest: setups change
GENERATIONS = 3  # the newest, for how long a step takes: programs and machines change


def step_s(view: View) -> float:
    """Wall time of a step, its share of saves included, between the checkpoints of the newest
    generations; before there are two, what is foretold; 0.0 where nothing is known."""
    told = [one for one in view.saved if one.last_step > one.first_step]
    newest = told[-GENERATIONS:]
    steps = sum(one.last_step - one.first_step for one in newest)
    time_us = sum(one.last_at_us - one.first_at_us for one in newest)
    return time_us / steps / S if steps and time_us else view.job.spec.wishes.step_s


def left_s(view: View, speed: float = 1.0) -> float | None:
    """Of training on a machine of the first alternative, saved work not counted; None where that
    cannot be said. `speed` is of the machines on which its steps were measured. Never less than a
    step: what is finished ends by itself."""
    wishes, head = view.job.spec.wishes, view.job.head
    step, each_s = head.step if head else 0, step_s(view) * speed
    if wishes.work_steps:
        return max(wishes.work_steps - step, 1) * each_s if each_s else None
    if not wishes.work_s:
        return None
    if each_s and step:
        done_s = step * each_s
    else:
        done_s = sum(one.last_at_us - one.first_at_us for one in view.saved) / S * speed
    return max(wishes.work_s - done_s, each_s, 1.0)


def unsaved_s(node: Node, view: View, now_us: int) -> float:
    """What would have to be done again if the machine ended now."""
    if not node.first_step_at_us:
        return 0.0
    since_us, head = node.first_step_at_us, view.job.head
    if head is not None and head.generation == node.generation:
        since_us = max(since_us, head.seen_at_us)
    return max(0, now_us - since_us) / S


def lost_s(offer: Offer, spec: JobSpec, market: Market) -> float:
    """What a machine's end costs at most from now on: the pause between two saves. (Of a program
    that keeps nothing it is all, and no time bounds that.)"""
    return longest_pause_s(offer, spec, market) if keeps(spec.checkpoint) else 0.0


def start_s(past: Past, job_id: str) -> float:
    """From the request to the first new step: the ninth of ten of this job's starts, else of the
    fleet's, else START_S."""
    by_job = _starts(past)
    return by_job.get(job_id) or by_job.get("") or START_S


def _starts(past: Past) -> Mapping[str, float]:
    """The start of each job that had one; "" is the fleet. Reckoned once for each reading of the
    past."""
    found = past.kept.get("starts")
    if found is None:
        by_job: dict[str, list[Stay]] = {}
        for stay in past.stays:
            if stay.trained_at_us:
                for whose in ("", stay.node_id.rpartition("-g")[0]):
                    by_job.setdefault(whose, []).append(stay)
        found = past.kept["starts"] = {whose: _typical_s(of) for whose, of in by_job.items()}
    return found  # type: ignore[return-value]


def _typical_s(stays: Sequence[Stay]) -> float:
    took = [(stay.trained_at_us - stay.asked_at_us) / S for stay in stays[-MANY:]]
    return max(took) if len(took) < FEW else quantiles(took, n=10, method="inclusive")[-1]
