"""Telling how training goes: every loss to the agent in batches, a line now and then to people."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from spotd.wire import PROGRESS

LINE_EVERY_S = 1.0


class Progress:
    """Collects finished steps and reports them every `every_s` seconds, the first one at once.

    A report covers the steps `from_step` to `to_step`, both included, counted from 1; `losses` has
    one float for each. `busy_s` is the time spent in those steps, saves not included. A `silent`
    one, for the ranks after the first, does nothing.
    """

    def __init__(
        self,
        report: Callable[[str, Mapping[str, Any]], None],
        *,
        every_s: float,
        steps: int,
        silent: bool = False,
        say: Callable[[str], None] = lambda text: print(text, flush=True),
        monotonic: Callable[[], float] = time.monotonic,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._report, self._say = report, say
        self._every_s, self._steps, self._silent = every_s, steps, silent
        self._monotonic, self._clock_us = monotonic, clock_us
        self._losses: list[float] = []
        self._from_step = self._first_at_us = self._tokens = 0
        self._busy_s = 0.0
        self._reported_at = self._said_at = float("-inf")

    def add(self, step: int, loss: float, tokens: int, busy_s: float) -> None:
        """One more step is done: its number (from 1), loss, tokens over all ranks, and seconds."""
        if self._silent:
            return
        if not self._losses:
            self._from_step, self._first_at_us = step, self._clock_us()
        self._losses.append(loss)
        self._tokens += tokens
        self._busy_s += busy_s
        now = self._monotonic()
        if now - self._said_at >= LINE_EVERY_S or step == self._steps:
            self._said_at = now
            speed = tokens / busy_s if busy_s else 0.0
            self._say(f"step {step}/{self._steps}  loss {loss:.4f}  {speed:,.0f} tokens/s")
        if now - self._reported_at >= self._every_s:
            self.flush()

    def flush(self) -> None:
        """Report what has not been reported yet."""
        if not self._losses:
            return
        self._reported_at = self._monotonic()
        self._report(
            PROGRESS,
            {
                "from_step": self._from_step,
                "to_step": self._from_step + len(self._losses) - 1,
                "losses": self._losses,
                "first_at_us": self._first_at_us,
                "last_at_us": self._clock_us(),
                "tokens": self._tokens,
                "busy_s": round(self._busy_s, 6),
            },
        )
        self._losses, self._tokens, self._busy_s = [], 0, 0.0
