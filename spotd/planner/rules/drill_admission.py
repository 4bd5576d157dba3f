"""Decide whether a drill may inject a fault into a running job now, and bound its cost."""

from __future__ import annotations

from providers.base import CapacityType
from providers.dollars import format_microusd
from spotd.domain.fault_drill import DrillKind
from spotd.domain.job import Desired
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.phase import keeps
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.next_effect import suspect
from spotd.planner.placement.rank import rank


def target(view: View) -> Node | None:
    """Return the machine that the fault would hit: the one that trains."""
    running = [n for n in view.nodes if n.chosen and n.state is NodeState.RUNNING]
    return running[0] if len(running) == 1 else None


def cost_microusd(view: View, market: Market, kind: DrillKind, within_s: float, now_us: int) -> int:
    """Return the most that the drill can cost in micro-USD within that time.

    It includes the faulted machine, candidates requested in parallel, one more for each slow one,
    and the repeated training. A new agent on the same machine costs nothing.
    """
    node, row = target(view), _next(view, market, now_us)
    if kind is DrillKind.AGENT or node is None or row is None:
        return 0
    came_s = within_s
    if market.launch.hedging:
        came_s += max(within_s - market.timing.beside_s, 0.0)
        came_s *= view.job.spec.resources.candidates
    return int((node.offer.price_microusd_per_h * within_s + row * came_s) / 3600)


def why_not(view: View, market: Market, kind: DrillKind, within_s: float, now_us: int) -> str:
    """Return why a drill would do harm or show nothing, or ""."""
    job, spec, node = view.job, view.job.spec, target(view)
    if job.outcome is not None or job.desired is not Desired.RUN or job.end.stop_text:
        return "it has ended, is paused, or is about to end"
    if spec.resources.num_nodes > 1:
        return "it runs on several machines, and drills support only jobs of one machine"
    if node is None or not node.training.first_step_at_us or node.training.exit_code is not None:
        return "it does not train now"
    why = _unsettled(view, market, node, now_us)
    if why or kind is DrillKind.AGENT:
        return why
    if not keeps(spec.checkpoint):
        return "it saves nothing that it could resume from"
    if job.head is None or not job.head.manifest:
        return "it has no checkpoint yet"
    return _no_room(view, market, now_us) or _too_dear(view, market, kind, within_s, now_us)


def _unsettled(view: View, market: Market, node: Node, now_us: int) -> str:
    others = [n for n in view.nodes if n.active and n.id != node.id]
    if others:
        return f"another machine of it is starting or ending ({others[0].id})"
    if any(notice.takes_machine for notice in node.notices):
        return "its cloud is preempting its machine"
    if suspect(node, market, now_us):
        return "its machine has not been heard of late"
    return ""


def _no_room(view: View, market: Market, now_us: int) -> str:
    """Return why no other machine can take over, or ""."""
    if market.launch.safe_until_us:
        return "spotd is in safe mode, and launches nothing"
    if market.launch.blocked:
        return f"nothing may be launched now: {market.launch.blocked}"
    if view.job.queue.yields_since_us or view.job.queue.room_since_us:
        return "it makes room for another job"
    if _next(view, market, now_us) is None:
        return "no machine that could take over is available"
    return ""


def _too_dear(view: View, market: Market, kind: DrillKind, within_s: float, now_us: int) -> str:
    """Return why it would cost too much of the job's money or time, or ""."""
    spec, node = view.job.spec, target(view)
    needed = cost_microusd(view, market, kind, within_s, now_us)
    left = spec.limits.max_cost_microusd - view.spent_microusd
    if spec.limits.max_cost_microusd and needed > left:
        return (
            f"it may cost {format_microusd(needed)}, and {format_microusd(left)} is left of its "
            "max_cost_usd"
        )
    if not spec.limits.deadline_us:
        return ""
    if now_us + int(2 * within_s * S) > spec.limits.deadline_us:
        return "its deadline is too close"
    guarded = node is not None and node.offer.capacity_type is CapacityType.ON_DEMAND
    if guarded and CapacityType.SPOT in _wanted(view):
        return "it is on demand to keep its deadline, and a drill takes time from that"
    return ""


def _wanted(view: View) -> set[CapacityType]:
    return {kind for want in view.job.spec.resources.alternatives for kind in want.capacity_types}


def _next(view: View, market: Market, now_us: int) -> int | None:
    """Return the price of the most expensive available machine that fits, or None.

    Which one it will be is decided then.
    """
    rows = rank(view.job.spec, market, now_us, job_id=view.job.id)
    prices = [row.offer.price_microusd_per_h for row in rows if not row.excluded]
    return max(prices, default=None)
