"""What a gang misses is asked for beside it: machines like its own, in the same network."""

from __future__ import annotations

from dataclasses import replace

from providers.base import Offer
from spotd.decide.draft import LEAVING, Draft
from spotd.decide.following import begins_us
from spotd.decide.gangs import crew, newcomers, remaining, taken_on_us
from spotd.decide.placement import rank
from spotd.decide.placing import market_of, new_node, taken
from spotd.decide.safety import safe
from spotd.decide.scarcity import in_turn
from spotd.model import Node, S

AGAIN_S = 60.0  # between looks at a market that has none
NEVER = 1 << 62


def ask_others(d: Draft) -> None:
    """Ask for the machines that a gang misses, each by itself, while it trains on or saves."""
    left, whole = remaining(d.view, d.now_us), d.job.spec.num_nodes
    missing = whole - len(left) - len(newcomers(d.view))
    if not left or missing <= 0:
        _tell(d, left)
        return
    from_us = _from_us(d, left)
    if d.now_us < from_us:
        _tell(d, left, "others are asked for when that pays")
        if from_us != NEVER:
            d.wake(from_us)
        return
    if safe(d.market, d.now_us) or d.market.blocked:
        _tell(d, left, d.market.blocked or "spotd is in safe mode")
        d.wake(d.now_us + int(AGAIN_S * S))
        return
    for _ in range(missing):
        if not _ask(d, left):
            _tell(d, left, "no other is to be had now")
            return
    _tell(d, left)


def _from_us(d: Draft, left: list[Node]) -> int:
    """When to ask for what is missing: so that it comes when it pays to take it in. NEVER: not now.

    Whoever trains stands for it as long as it took this gang to begin, and what joins adds its
    share from then on. How much is left to train nobody knows: it counts as long as this gang has
    trained, up to the job's `max_duration` at most. So no gang stops again before the last stop has
    paid, and no machine is paid for that waits until it has: to come takes it as long as the gang
    took, too. Where training stands, at once.
    """
    mine, spec = crew(d.view), d.job.spec
    if any(node.state in LEAVING for node in mine) or any(n.exit_code is not None for n in left):
        return 0
    first = max(mine, key=lambda node: node.first_step_at_us)
    began_us = first.first_step_at_us
    if not began_us:
        return NEVER
    restart_us = began_us - taken_on_us(first)
    pays_us = restart_us * len(left) // (spec.num_nodes - len(left))
    end_us = (begins_us(d) or d.job.created_at_us) + int(spec.max_duration_s * S)
    if spec.max_duration_s and d.now_us + restart_us + pays_us > end_us:
        return NEVER
    return began_us + pays_us - restart_us


def _ask(d: Draft, left: list[Node]) -> bool:
    """False when there is none now."""
    market = market_of(d)
    near = tuple(offer for offer in market.offers if _alike(offer, left[0].offer, d))
    spec = replace(d.job.spec, num_nodes=1, fast_network=False)
    rows = rank(spec, replace(market, offers=near), d.now_us, taken(d), job_id=d.job.id)
    rows = in_turn(d.job, market, d.now_us, rows)
    best = next((row for row in rows if not row.excluded), None)
    if best is None:
        until_us = min((row.until_us for row in rows if row.until_us), default=0)
        d.wake(until_us or d.now_us + int(AGAIN_S * S))
        return False
    candidate = max(node.candidate for node in d.current) + 1
    d.add_node(new_node(d, best, candidate, len(left) + len(newcomers(d.view))))
    price = best.offer.price_microusd_per_h / 1e6
    words = f"asked for {best.offer.key} at ${price:.2f}/h, to join the {len(left)} that are left"
    d.event("requested", words, d.current[-1])
    return True


def _alike(offer: Offer, ours: Offer, d: Draft) -> bool:
    """Of the same make and in the same network; of a fast one, in the same place. A machine that
    joins later is not in the cluster that the others were begun in."""
    same = (offer.provider, offer.region, offer.instance_type)
    here = not d.job.spec.fast_network or offer.zone == ours.zone or not ours.interconnect
    fits = same == (ours.provider, ours.region, ours.instance_type)
    return fits and here and offer.interconnect == ours.interconnect


def _tell(d: Draft, left: list[Node], obstacle: str = "") -> None:
    whole, coming = d.job.spec.num_nodes, len(newcomers(d.view))
    if left and len(left) < whole:
        told = [f"{coming} on the way"] if coming else []
        d.say(", ".join([f"{len(left)} of {whole} machines", *told, *filter(None, [obstacle])]))
