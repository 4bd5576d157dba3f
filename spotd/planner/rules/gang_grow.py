"""Request the missing machines of a gang: machines like its own, in the same network."""

from __future__ import annotations

from dataclasses import replace

from providers.base import Offer
from providers.dollars import format_usd
from spotd.domain.fast_replace import changed
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.planner.core.gangs import crew, newcomers, remaining, taken_on_us
from spotd.planner.core.plan_builder import LEAVING, PlanBuilder
from spotd.planner.core.safe_mode_gate import safe
from spotd.planner.placement.rank import rank
from spotd.planner.placement.scarce_offers import in_turn
from spotd.planner.rules.job_dependency import begins_us
from spotd.planner.rules.place_job import market_of, new_node, taken

AGAIN_S = 60.0  # between looks at a market that has none
NEVER = 1 << 62


def ask_others(d: PlanBuilder) -> None:
    """Request each missing machine by itself while the gang trains or saves."""
    left, whole = remaining(d.view, d.now_us), d.job.spec.resources.num_nodes
    missing = whole - len(left) - len(newcomers(d.view))
    if not left or missing <= 0:
        _tell(d, left)
        return
    from_us = _from_us(d, left)
    if d.now_us < from_us:
        _tell(d, left, "others are requested when that pays off")
        if from_us != NEVER:
            d.wake_at(from_us)
        return
    if safe(d.market, d.now_us) or d.market.launch.blocked:
        _tell(d, left, d.market.launch.blocked or "spotd is in safe mode")
        d.wake_at(d.now_us + int(AGAIN_S * S))
        return
    for _ in range(missing):
        if not _ask(d, left):
            _tell(d, left, "no other machine is available now")
            return
    _tell(d, left)


def _from_us(d: PlanBuilder, left: list[Node]) -> int:
    """Return when to request missing machines so that admitting them pays; NEVER for not now.

    Admitting them stops training for as long as this gang took to start, and adds their share from
    then on. The remaining training time is unknown: it is assumed to be as long as this gang has
    trained, at most up to `max_duration`. So no gang stops again before the last stop has paid off,
    and no machine is paid for while it waits. If training has stopped, they are requested at once.
    """
    mine, spec = crew(d.view), d.job.spec
    if any(node.state in LEAVING for node in mine) or any(
        n.training.exit_code is not None for n in left
    ):
        return 0
    first = max(mine, key=lambda node: node.training.first_step_at_us)
    began_us = first.training.first_step_at_us
    if not began_us:
        return NEVER
    restart_us = began_us - taken_on_us(first)
    pays_us = restart_us * len(left) // (spec.resources.num_nodes - len(left))
    end_us = (begins_us(d) or d.job.created_at_us) + int(spec.limits.max_duration_s * S)
    if spec.limits.max_duration_s and d.now_us + restart_us + pays_us > end_us:
        return NEVER
    return began_us + pays_us - restart_us


def _ask(d: PlanBuilder, left: list[Node]) -> bool:
    """Request one machine; return False if none is available now."""
    market = market_of(d)
    near = tuple(offer for offer in market.offers if _alike(offer, left[0].offer, d))
    spec = changed(d.job.spec, num_nodes=1, fast_network=False)
    rows = rank(spec, replace(market, offers=near), d.now_us, taken(d), job_id=d.job.id)
    rows = in_turn(d.job, market, d.now_us, rows)
    best = next((row for row in rows if not row.excluded), None)
    if best is None:
        until_us = min((row.until_us for row in rows if row.until_us), default=0)
        d.wake_at(until_us or d.now_us + int(AGAIN_S * S))
        return False
    candidate = max(node.candidate for node in d.current) + 1
    d.add_node(new_node(d, best, candidate, len(left) + len(newcomers(d.view))))
    price = best.offer.price_microusd_per_h / 1e6
    words = (
        f"requested {best.offer.key} at {format_usd(price)}/h, to join the {len(left)} remaining"
    )
    d.event("requested", words, d.current[-1])
    return True


def _alike(offer: Offer, ours: Offer, d: PlanBuilder) -> bool:
    """Return whether the offer is of the same type and network, and in one place for a fast
    network.

    A machine that joins later is not in the placement group of the others.
    """
    same = (offer.provider, offer.region, offer.instance_type)
    here = not d.job.spec.resources.fast_network or offer.zone == ours.zone or not ours.interconnect
    fits = same == (ours.provider, ours.region, ours.instance_type)
    return fits and here and offer.interconnect == ours.interconnect


def _tell(d: PlanBuilder, left: list[Node], obstacle: str = "") -> None:
    whole, coming = d.job.spec.resources.num_nodes, len(newcomers(d.view))
    if left and len(left) < whole:
        coming_text = [f"{coming} on the way"] if coming else []
        d.add_reason(
            ", ".join([f"{len(left)} of {whole} machines", *coming_text, *filter(None, [obstacle])])
        )
