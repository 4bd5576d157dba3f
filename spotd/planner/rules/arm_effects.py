"""Arm the calls that are due now: the last rule.

Arming is part of the commit, so no other pass repeats a call in flight. A daemon that dies after
the commit finds the call due again at its deadline.
"""

from __future__ import annotations

from spotd.domain.node import EffectKind
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.planner.core.next_effect import CALL_DEADLINE_S, due_at_us, look_at_us, need
from spotd.planner.core.plan_builder import PlanBuilder
from spotd.planner.core.safe_mode_gate import SAFE_LOOK_US, safe, withheld
from spotd.planner.rules.stale_alerts import tell_staying


def arm(d: PlanBuilder) -> None:
    """Arm the effects that are due, and wake for those that will be."""
    for node in d.nodes:
        kind = need(node, d.view, d.market, d.now_us)
        if kind is None:
            if node.state is NodeState.TERMINATING:
                # Pacing lies in the need itself there: look again soon.
                d.wake_at(d.now_us + int(_next_look_s(d, node.machine.terminated_at_us) * S))
            continue
        if safe(d.market, d.now_us) and withheld(node, kind):
            d.add_reason(f"spotd is in safe mode: {kind.value} has to wait")
            d.wake_at(d.now_us + SAFE_LOOK_US)
            continue
        at_us = due_at_us(node, d.view, d.market, kind, d.now_us)
        if at_us > d.now_us:
            look_us = look_at_us(node, d.market) if kind is EffectKind.BOOT else 0
            d.wake_at(min(at_us, look_us or at_us))
            continue
        if node.state is NodeState.TERMINATING:
            tell_staying(d, node)
        deadline_us = d.now_us + int(CALL_DEADLINE_S[kind] * S)
        d.set_node(node, effect=kind, effect_armed_at_us=d.now_us, effect_due_at_us=deadline_us)
        d.wake_at(deadline_us)
        if kind is EffectKind.TERMINATE:
            d.add_reason("terminating")


def _next_look_s(d: PlanBuilder, terminated_at_us: int) -> float:
    fresh = d.now_us - terminated_at_us < 2 * S
    return 0.5 if fresh else d.market.timing.resurvey_s
