"""When a call that is in flight, or has to wait, is looked at again."""

from __future__ import annotations

from providers.base import InstanceState
from spotd.domain.node import EffectKind
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.planner.planner import decide
from tests.spotd.planner.build import NOW, market, node, view


def test_a_question_to_a_cloud_is_not_looked_at_again_and_again_while_it_is_asked() -> None:
    """Of a machine that its cloud works on: the next look would be due, but for this one."""
    asked = node(
        NodeState.BOOTING,
        cloud_state=InstanceState.PENDING,
        surveyed_at_us=NOW - 6 * S,
        effect=EffectKind.SURVEY,
        effect_armed_at_us=NOW - S,
        effect_due_at_us=NOW + 14 * S,
    )
    plan = decide(view(asked), market(), NOW)
    assert plan.armed == frozenset()
    assert plan.wake_at_us == NOW + 14 * S
