"""Warn about the cost of a preemption for a job that saves no checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from providers.base import CapacityType
from providers.dollars import format_usd
from spotd.api.request.request import ApiRequest
from spotd.domain.job import JobSpec
from spotd.domain.units import S
from spotd.planner.core.checkpoint_interval import WITHIN_S, mtbf_s
from spotd.planner.placement.rank import RankedOffer


def unsaved_work_warnings(
    call: ApiRequest, spec: JobSpec, ranked: Sequence[RankedOffer]
) -> list[str]:
    """Return a warning for a job that may run on spot machines and saves nothing; else none.

    A job that runs for longer than the mean time between preemptions loses that much work with
    each, on average, because it starts from the beginning.
    """
    checkpoint = spec.checkpoint
    if checkpoint.engine != "none" or checkpoint.directory or spec.bake:
        return []
    spot = [row for row in ranked if row.offer.capacity_type is CapacityType.SPOT]
    row = next((row for row in spot if not row.excluded), spot[0] if spot else None)
    if row is None:
        return []
    lives = call.context.store.node_history.observed_lifetimes(call.now_us - int(WITHIN_S * S))
    hours = mtbf_s(row.offer, lives, spec.num_nodes) / 3600
    usd = hours * row.offer.price_microusd_per_h * spec.num_nodes / 1e6
    place = f"{row.offer.provider}/{row.offer.zone}"
    text = (
        "this job saves no checkpoints: a preemption loses all of its work, and it starts again "
        f"from the beginning. In {place} one is expected every {hours:.3g} h, which is "
        f"{format_usd(usd)} "
        "of work each. To save a folder of the program, write spotd: {checkpoint: {mode: "
        "directory, path: FOLDER}} into the job file; to accept it, give --no-checkpoints"
    )
    return [text]
