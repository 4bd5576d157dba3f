"""Machines on their way out, as this daemon last read them: what may be ended without a database.

To end a machine needs no record: the row said that it is over, and no row ever says otherwise
again. So while the database is away, each is told to end as often as it would be with it. Nothing
else is done then: whatever else there is to do begins with a commit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spotd.clock import Clock
from spotd.decide.needs import CALL_DEADLINE_S
from spotd.model import EffectKind, S
from spotd.plan import Effect
from spotd.states import NodeState

# A machine that ends is looked at every few seconds, and after a pause that its cloud asks for:
# one of which we heard nothing for longer than this is gone, or another daemon's.
FRESH_S = 600.0


@dataclass(frozen=True)
class _Told:
    effect: Effect
    read_at_us: int
    told_at_us: int


class Departing:
    """Kept by the loop, on its thread."""

    def __init__(self, clock: Clock, again_s: float) -> None:
        self._clock = clock
        self._again_us = int(again_s * S)
        self._found: dict[str, _Told] = {}  # by node, the one read longest ago first

    def note(self, effect: Effect) -> None:
        """A call that was just committed, whatever it is for."""
        node, now_us = effect.node, self._clock.now_us()
        if node.state is not NodeState.TERMINATING or not node.instance_id:
            return
        self._found.pop(node.id, None)
        ends = effect.kind is EffectKind.TERMINATE
        self._found[node.id] = _Told(effect, now_us, now_us if ends else node.terminated_at_us)
        for node_id, told in list(self._found.items()):
            if now_us - told.read_at_us < FRESH_S * S:
                break
            del self._found[node_id]

    def due(self) -> list[Effect]:
        """The calls to make now, to be asked while the database is away."""
        now_us = self._clock.now_us()
        calls = []
        for node_id, told in self._found.items():
            if now_us - told.told_at_us >= self._again_us:
                self._found[node_id] = replace(told, told_at_us=now_us)
                deadline_us = now_us + int(CALL_DEADLINE_S[EffectKind.TERMINATE] * S)
                node, job = told.effect.node, told.effect.job
                calls.append(Effect(EffectKind.TERMINATE, node, job, deadline_us))
        return calls
