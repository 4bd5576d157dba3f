"""Terminate machines without the database while it is unavailable.

It applies only to machines that were already terminating: that state never changes back, so no
record is needed. Nothing else is done meanwhile, because everything else starts with a commit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spotd.base.clock import Clock
from spotd.domain.node import EffectKind
from spotd.domain.plan import Effect
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.planner.core.next_effect import CALL_DEADLINE_S

# A machine that ends is looked at every few seconds, and after a pause that its cloud asks for:
# one of which we heard nothing for longer than this is gone, or another daemon's.
FRESH_S = 600.0


@dataclass(frozen=True)
class _Sent:
    effect: Effect
    read_at_us: int
    told_at_us: int


class TerminateFallback:
    """The machines that this daemon last read as terminating. Used by the loop's thread."""

    def __init__(self, clock: Clock, again_s: float) -> None:
        self._clock = clock
        self._again_us = int(again_s * S)
        self._found: dict[str, _Sent] = {}  # by node, the one read longest ago first

    def note(self, effect: Effect) -> None:
        """Note a call that was just committed, of any kind."""
        node, now_us = effect.node, self._clock.now_us()
        if node.state is not NodeState.TERMINATING or not node.instance_id:
            return
        self._found.pop(node.id, None)
        ends = effect.kind is EffectKind.TERMINATE
        self._found[node.id] = _Sent(
            effect, now_us, now_us if ends else node.machine.terminated_at_us
        )
        for node_id, sent in list(self._found.items()):
            if now_us - sent.read_at_us < FRESH_S * S:
                break
            del self._found[node_id]

    def due(self) -> list[Effect]:
        """Return the terminate calls to make now, while the database is unavailable."""
        now_us = self._clock.now_us()
        calls = []
        for node_id, sent in self._found.items():
            if now_us - sent.told_at_us >= self._again_us:
                self._found[node_id] = replace(sent, told_at_us=now_us)
                deadline_us = now_us + int(CALL_DEADLINE_S[EffectKind.TERMINATE] * S)
                node, job = sent.effect.node, sent.effect.job
                calls.append(Effect(EffectKind.TERMINATE, node, job, deadline_us))
        return calls
