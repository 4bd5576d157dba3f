"""The work that a job lost at each start of another attempt, and how often it recovered.

A job that saves no checkpoints is warned of what a preemption costs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from providers.base import CapacityType
from providers.dollars import format_usd
from spotd.api.request.request import ApiRequest
from spotd.domain.job import Job, JobSpec
from spotd.domain.lost_work import HandOver, LostWork, lost_work, trained_attempts
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason
from spotd.domain.units import S
from spotd.planner.core.checkpoint_interval import WITHIN_S, mtbf_s
from spotd.planner.placement.rank import RankedOffer
from spotd.store.checkpoints import CheckpointRow

_TAKEN = frozenset({LeaveReason.PREEMPTED, LeaveReason.LOST})


def losses(
    job: Job, nodes: Sequence[Node], checkpoints: Sequence[CheckpointRow]
) -> dict[int, LostWork]:
    """Return the lost work at the start of each attempt that trained after another one."""
    reports_steps = job.spec.checkpoint.engine == "spotd"
    attempts = trained_attempts(nodes, job.spec.resources.num_nodes)
    lost: dict[int, LostWork] = {}
    kept_s = 0.0
    for old, new in pairwise(attempts):
        saved_us = [
            row.committed_at_us
            for row in checkpoints
            if row.bytes and row.generation < new.generation
        ]
        saved_at_us = max(saved_us, default=0)
        hand_over = HandOver(old, saved_at_us, reports_steps=reports_steps, kept_s=kept_s)
        lost[new.generation] = lost_work(
            hand_over, new.resumed_step, anew=new.anew, printed=new.printed
        )
        kept_s = max(0.0, hand_over.work_s - (lost[new.generation].seconds or 0.0))
    return lost


def lost_in_all(lost: Collection[LostWork]) -> dict[str, Any]:
    """Return the sums of all losses of a job; null where one of them is not known."""
    microusd = _sum(one.microusd for one in lost)
    return {
        "steps_lost": _sum(one.steps for one in lost),
        "lost_s": _sum(one.seconds for one in lost),
        "lost_usd": None if microusd is None else microusd / 1e6,
    }


def _sum(values: Iterable[float | None]) -> float | None:
    total: float = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


@dataclass(frozen=True)
class RecoveryCounts:
    """How often a job trained again after its machine was taken away or lost.

    `resumed` from a checkpoint, or `anew` from the beginning. Pauses and crashes do not count.
    """

    resumed: int = 0
    anew: int = 0


def count_recoveries(nodes: Sequence[Node], lost: Mapping[int, LostWork]) -> RecoveryCounts:
    """Count the recoveries; `lost` is by generation."""
    trained = [node for node in nodes if node.training.first_step_at_us]
    taken = {node.generation for node in trained if node.departure.leave_reason in _TAKEN}
    generations = sorted({node.generation for node in trained})
    ends = [new for old, new in pairwise(generations) if old in taken]
    anew = sum(new in lost and lost[new].anew for new in ends)
    return RecoveryCounts(len(ends) - anew, anew)


def unsaved_work_warnings(
    call: ApiRequest, spec: JobSpec, ranked: Sequence[RankedOffer]
) -> list[str]:
    """Return a warning for a job that may run on spot machines and saves nothing; else none.

    A job that runs for longer than the mean time between preemptions loses that much work with
    each, on average, because it starts from the beginning.
    """
    checkpoint = spec.checkpoint
    if checkpoint.engine != "none" or checkpoint.directory or spec.program.bake:
        return []
    spot = [row for row in ranked if row.offer.capacity_type is CapacityType.SPOT]
    row = next((row for row in spot if not row.excluded), spot[0] if spot else None)
    if row is None:
        return []
    lives = call.context.store.node_history.observed_lifetimes(call.now_us - int(WITHIN_S * S))
    hours = mtbf_s(row.offer, lives, spec.resources.num_nodes) / 3600
    usd = hours * row.offer.price_microusd_per_h * spec.resources.num_nodes / 1e6
    place = f"{row.offer.provider}/{row.offer.zone}"
    text = (
        "this job saves no checkpoints: a preemption loses all of its work, and it starts again "
        f"from the beginning. In {place} one is expected every {hours:.3g} h, which is "
        f"{format_usd(usd)} "
        "of work each. To save a folder of the program, write spotd: {checkpoint: {mode: "
        "directory, path: FOLDER}} into the job file; to accept it, give --no-checkpoints"
    )
    return [text]
