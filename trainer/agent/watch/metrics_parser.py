"""What the program's own figures say: its losses, and the times of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spotd import wire
from trainer.agent.base.warnings import HealthWarning
from trainer.agent.watch.loss_checks import NAN_AFTER_RESUME, Losses
from trainer.agent.watch.straggler_detector import StragglerDetector

_MOST_RANKS = 4096


class MetricsParser:
    """Belongs to the agent's loop, and is fed with all that the program says. Programs are not
    trusted to say what they should."""

    def __init__(self, straggling: StragglerDetector) -> None:
        self._losses = Losses()
        self._straggling = straggling
        self._manifest = ""

    def begin(self) -> None:
        """Another program begins."""
        self._losses.begin(0)
        self._straggling.begin()
        self._manifest = ""

    def note(self, kind: str, data: Mapping[str, Any], now: float) -> list[HealthWarning]:
        """What is to be told of it."""
        if kind == wire.CLAIMED:
            step, self._manifest = data.get("step"), str(data.get("manifest", ""))
            self._losses.begin(step if isinstance(step, int) else 0)
        if kind == wire.ROLLED_BACK:
            self._losses.begin(0)  # the program knows already, and has done something about it
        if kind != wire.PROGRESS:
            return []
        found = []
        step, losses = data.get("from_step"), data.get("losses")
        if isinstance(step, int) and isinstance(losses, list):
            numbers = [float(loss) for loss in losses if isinstance(loss, int | float)]
            found += [self._named(remark) for remark in self._losses.hear(step, numbers)]
        ranks_s, per_node = data.get("ranks_s"), data.get("ranks_per_node")
        if isinstance(ranks_s, list) and len(ranks_s) <= _MOST_RANKS:
            times = [float(s) for s in ranks_s if isinstance(s, int | float) and s >= 0]
            if len(times) == len(ranks_s):
                nodes = per_node if isinstance(per_node, int) else 0
                found += self._straggling.hear(times, nodes, now)
        return found

    def _named(self, remark: HealthWarning) -> HealthWarning:
        """Which checkpoint it is about."""
        if remark.verdict != NAN_AFTER_RESUME:
            return remark
        return replace(remark, data={**remark.data, "manifest": self._manifest})
