"""Check the metrics that a program reports: its losses and the step times of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spotd import wire
from trainer.agent.base.health_verdict import HealthWarning
from trainer.agent.watch.loss_checks import NAN_AFTER_RESUME, LossChecker
from trainer.agent.watch.straggler_detector import StragglerDetector

_MAX_RANKS = 4096


class MetricsParser:
    """Receives all messages of the program, and does not trust their content. Belongs to the
    agent's loop."""

    def __init__(self, straggler_detector: StragglerDetector) -> None:
        self._losses = LossChecker()
        self._straggler_detector = straggler_detector
        self._manifest = ""

    def begin(self) -> None:
        """Start over for a new program."""
        self._losses.begin(0)
        self._straggler_detector.begin()
        self._manifest = ""

    def on_fact(self, kind: str, data: Mapping[str, Any], now: float) -> list[HealthWarning]:
        """Process a message and return the warnings it causes."""
        if kind == wire.CLAIMED:
            step, self._manifest = data.get("step"), str(data.get("manifest", ""))
            self._losses.begin(step if isinstance(step, int) else 0)
        if kind == wire.ROLLED_BACK:
            self._losses.begin(0)  # the program has noticed and handled it itself
        if kind != wire.PROGRESS:
            return []
        warnings = []
        step, losses = data.get("from_step"), data.get("losses")
        if isinstance(step, int) and isinstance(losses, list):
            numbers = [float(loss) for loss in losses if isinstance(loss, int | float)]
            warnings += [
                self._with_manifest(warning) for warning in self._losses.add(step, numbers)
            ]
        ranks_s, per_node = data.get("ranks_s"), data.get("ranks_per_node")
        if isinstance(ranks_s, list) and len(ranks_s) <= _MAX_RANKS:
            times = [float(s) for s in ranks_s if isinstance(s, int | float) and s >= 0]
            if len(times) == len(ranks_s):
                nodes = per_node if isinstance(per_node, int) else 0
                warnings += self._straggler_detector.add(times, nodes, now)
        return warnings

    def _with_manifest(self, warning: HealthWarning) -> HealthWarning:
        """Add the checkpoint's manifest to a warning about a resume."""
        if warning.verdict != NAN_AFTER_RESUME:
            return warning
        return replace(warning, data={**warning.data, "manifest": self._manifest})
