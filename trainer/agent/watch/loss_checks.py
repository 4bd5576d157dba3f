"""What the losses of a program say, whatever engine saves it: numbers, none, or far from before.

* **nan**: LOST losses in a row are no finite numbers, after some were. What a program that uses our
  engine does about it is its own (trainer.reference.numbers); any other trains on for nothing.
* **nan_after_resume**: the first losses of a program that took over a checkpoint are none: rather
  that state is broken than the data that comes next.
* **loss_spike**: the last RECENT losses lie, in their median, above SPIKE times the median of the
  BEFORE ones before them, and above what those scatter. Most come back by themselves.

Each is told once, and again only after losses as before have followed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import median

from trainer.agent.base.warnings import HealthWarning

NAN = "nan"
NAN_AFTER_RESUME = "nan_after_resume"
SPIKE_NAME = "loss_spike"
FIRST = 5  # steps after a resume whose losses tell of its state
LOST = 100  # in a row: no accident of one batch, and no gradient scaler that looks for its factor
RECENT, BEFORE, LEAST = 10, 200, 50
SPIKE = 2.0
SCATTER = 6.0  # times the median distance from the median


class Losses:
    """Fed with each report of a program, in order. Sans I/O."""

    def __init__(self) -> None:
        self._finite: deque[float] = deque(maxlen=BEFORE + RECENT)
        self._told: set[str] = set()
        self._lost = self._seen = 0  # in a row, and since the program began
        self._resumed_at: int | None = None

    def begin(self, resumed_at: int) -> None:
        """A program took over at this step; 0: it starts anew. What came before is another's."""
        self._finite.clear()
        self._told.clear()
        self._lost = self._seen = 0
        self._resumed_at = resumed_at or None

    def hear(self, from_step: int, losses: Sequence[float]) -> list[HealthWarning]:
        """One report; what is to be told of it."""
        found: list[HealthWarning] = []
        for step, loss in enumerate(losses, start=from_step):
            self._seen += 1
            if math.isfinite(loss):
                self._lost = 0
                self._told -= {NAN}
                self._finite.append(loss)
            else:
                self._lost += 1
                found += self._judge_lost(step)
        return found + self._judge_spike(from_step + len(losses) - 1)

    def _judge_lost(self, step: int) -> list[HealthWarning]:
        resumed_at = self._resumed_at
        if resumed_at is not None and self._lost == self._seen == FIRST:
            text = f"none of the first {FIRST} losses after the resume at step {resumed_at} is a"
            data = {"step": step, "resumed_at": resumed_at}
            return self._tell(NAN_AFTER_RESUME, f"{text} finite number", data)
        if self._lost == LOST and self._finite:
            text = f"{LOST} losses in a row, up to step {step}, are no finite numbers"
            return self._tell(NAN, text, {"step": step, "losses": LOST})
        return []

    def _judge_spike(self, step: int) -> list[HealthWarning]:
        if len(self._finite) < LEAST + RECENT:
            return []
        count = len(self._finite) - RECENT
        before = list(islice(self._finite, count))
        recent, usual = median(islice(self._finite, count, None)), median(before)
        scatter = median(abs(loss - usual) for loss in before)
        if recent <= max(SPIKE * usual, usual + SCATTER * scatter) or usual <= 0:
            if recent <= usual + SCATTER * scatter:
                self._told -= {SPIKE_NAME}
            return []
        text = f"the loss is {recent:.4g} at step {step}, and was {usual:.4g}"
        data = {"step": step, "loss": recent, "before": usual}
        return self._tell(SPIKE_NAME, f"{text} over the {len(before)} steps before", data)

    def _tell(self, name: str, text: str, data: Mapping[str, float]) -> list[HealthWarning]:
        if name in self._told:
            return []
        self._told.add(name)
        return [HealthWarning(name, text, data)]
