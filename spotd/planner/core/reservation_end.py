"""Treat the known end of a reservation as a preemption notice.

A machine of reserved time is taken away at its end without any warning. From `LEAD_S` before the
end it counts as a preemption that is known beforehand: the job is placed elsewhere while it trains.
"""

from __future__ import annotations

from dataclasses import replace

from providers.base import NoticeKind, Offer
from spotd.domain.node import Node, NoticeRecord
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import View

LEAD_S = 1200.0  # a boot and a setup on another machine, and the last save here
BOOKED = "booked-time"  # the id of the notice that nobody gave
_THERE = (NodeState.LAUNCHING, NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING)


def with_ends(view: View, now_us: int) -> View:
    """Return the view, with a notice added for every machine whose reservation is about to end."""
    if not any(_ends(node, now_us) for node in view.nodes):
        return view
    nodes = tuple(_warned(node) if _ends(node, now_us) else node for node in view.nodes)
    return replace(view, nodes=nodes)


def next_end_us(view: View, now_us: int) -> int:
    """Return when the next such notice is due; 0 for none."""
    times = [lead_us(node.offer) for node in view.nodes if node.state in _THERE]
    return min((at_us for at_us in times if at_us > now_us), default=0)


def lead_us(offer: Offer) -> int:
    """Return from when on machines of the offer are about to end; 0 without an end."""
    return offer.ends_at_us - int(LEAD_S * S) if offer.ends_at_us else 0


def too_short(offer: Offer, boot_timeout_s: float, now_us: int) -> bool:
    """Return whether a machine requested now would hardly start before it is about to end."""
    return bool(offer.ends_at_us) and now_us + int(boot_timeout_s * S) >= lead_us(offer)


def _ends(node: Node, now_us: int) -> bool:
    return node.state in _THERE and 0 < lead_us(node.offer) <= now_us


def _warned(node: Node) -> Node:
    end_us = node.offer.ends_at_us
    heard_us = max(lead_us(node.offer), node.requested_at_us)
    notice = NoticeRecord(BOOKED, NoticeKind.PREEMPT, heard_us, end_us)
    return replace(node, notices=(*node.notices, notice))
