"""Replace a machine whose price has risen above the job's cap, when that pays.

`max_hourly_cost` is a cap on requests, but prices of running machines change. A move costs a boot,
a save and a restart. The remaining training time is unknown, and assumed to be as long as the job
has trained here: so a move has paid off before the next one can be decided. Only programs that save
on request are moved, and only because of a price that their cloud itself reports: an error in a
catalogue, or a missing price, moves no job.
"""

from __future__ import annotations

from providers.dollars import format_microusd, format_usd
from spotd.domain.events import Severity
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.planner.core.gangs import taken_on_us
from spotd.planner.core.next_effect import may_write
from spotd.planner.core.plan_builder import PlanBuilder, place
from spotd.planner.offers.price_sanity import ASSUMED, DOUBTED
from spotd.planner.placement.rank import rank
from spotd.planner.placement.scarce_offers import in_turn


def move_outbid(d: PlanBuilder) -> None:
    """Drain a machine that costs more than the job allows, if a cheaper place is available."""
    spec = d.job.spec
    if d.ended or not spec.limits.max_hourly_microusd or spec.checkpoint.engine == "none":
        return
    dear = [node for node in d.nodes if _dear(node, spec.limits.max_hourly_microusd)]
    if dear:
        unsure = {o.key for o in d.market.offers if o.price_source in (ASSUMED, DOUBTED)}
        dear = [node for node in dear if node.offer.key not in unsure]
    if not dear:
        return
    node = max(dear, key=lambda one: one.offer.price_microusd_per_h)
    here = node.offer.price_microusd_per_h
    usd = here / 1e6
    rows = in_turn(d.job, d.market, d.now_us, rank(spec, d.market, d.now_us, job_id=d.job.id))
    free = [row.offer for row in rows if not row.excluded]  # none of them above the cap
    if not free or d.market.launch.blocked:
        d.add_reason(
            f"{place(node)} now costs {format_usd(usd)}/h, and no place below max_hourly_cost "
            "is free"
        )
        return
    there = free[0].price_microusd_per_h
    pays_us = node.training.first_step_at_us + _pays_after_us(
        node, there, spec.timeouts.stop_grace_s
    )
    if d.now_us < pays_us:
        d.add_reason(f"{place(node)} now costs {format_usd(usd)}/h: it moves when that pays off")
        d.wake_at(pays_us)
        return
    text = (
        f"{format_usd(usd)}/h is above max_hourly_cost, and {free[0].key} costs "
        f"{format_microusd(there)}/h"
    )
    d.drain(node, LeaveReason.OUTBID, text)
    words = f"{place(node)} moves: {text}; it keeps training until its replacement is ready"
    d.event("outbid", words, node, severity=Severity.WARNING, alert=True)


def _dear(node: Node, cap_microusd_per_h: int) -> bool:
    trains = node.state is NodeState.RUNNING and may_write(node) and node.training.first_step_at_us
    return bool(trains) and node.offer.price_microusd_per_h > cap_microusd_per_h


def _pays_after_us(node: Node, there_microusd_per_h: int, stop_grace_s: float) -> int:
    """Return how long the job has to train until a move has paid off.

    The start at the new price plus the save at the old one, divided by the saving per hour.
    """
    here = node.offer.price_microusd_per_h
    restart_us = node.training.first_step_at_us - taken_on_us(node)
    cost = there_microusd_per_h * restart_us + here * int(stop_grace_s * 1e6)
    return cost // (here - there_microusd_per_h)
