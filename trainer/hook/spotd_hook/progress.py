"""Report the progress of training: every loss to the agent in batches, some lines to people."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .constants import PROGRESS

LINE_EVERY_S = 1.0


class Progress:
    """Collects finished steps and reports them every `every_s` seconds, the first one at once.

    A report covers the steps `from_step` to `to_step`, both included, counted from 1. `losses` has
    one float per step, or is empty if one is unknown. `busy_s` is the time of those steps without
    saves, `data_s` the part of it spent waiting for data, if measured, and `save_s` the time that
    saves delayed training; the latter two are of this rank. `ranks_s` is the mean time per step of
    each rank's own work, if there are several. `steps` is the length of the whole run, 0 where it
    is not known; a report has it as `total_steps`, and says `at_least` if more may follow. A
    `disabled` one, for ranks other than 0, does nothing.
    """

    def __init__(
        self,
        report: Callable[[str, Mapping[str, Any]], None],
        *,
        every_s: float,
        steps: int,
        disabled: bool = False,
        per_node: int = 1,
        print_line: Callable[[str], None] = lambda text: print(text, flush=True),
        monotonic: Callable[[], float] = time.monotonic,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._report, self._print_line = report, print_line
        self._every_s, self.steps, self._disabled = every_s, steps, disabled
        self._per_node, self.at_least = per_node, False
        self._monotonic, self._clock_us = monotonic, clock_us
        self._losses: list[float | None] = []
        self._from_step = self._first_at_us = self._tokens = 0
        self._busy_s = self._save_s = 0.0
        self._data_s: float | None = None
        self._ranks_s: list[float] = []
        self._reported_at_s = self._printed_at_s = float("-inf")

    def add(
        self,
        step: int,
        loss: float | None,
        tokens: int,
        busy_s: float,
        *,
        ranks_s: Sequence[float] = (),
    ) -> None:
        """Add a finished step: number (from 1), loss, tokens of all ranks, duration.

        `ranks_s` is the time of each rank's own work.
        """
        if self._disabled:
            return
        if not self._losses:
            self._from_step, self._first_at_us = step, self._clock_us()
        self._losses.append(loss)
        self._tokens += tokens
        self._busy_s += busy_s
        before = self._ranks_s or [0.0] * len(ranks_s)
        self._ranks_s = [a + b for a, b in zip(before, ranks_s, strict=True)]
        now = self._monotonic()
        if now - self._printed_at_s >= LINE_EVERY_S or step == self.steps:
            self._printed_at_s = now
            self._print_line(self._line(step, loss, tokens / busy_s if busy_s else 0.0))
        if now - self._reported_at_s >= self._every_s:
            self.flush()

    def add_data_wait(self, data_s: float) -> None:
        """Add seconds that the running step waited for data."""
        self._data_s = (self._data_s or 0.0) + data_s

    def add_save_time(self, save_s: float) -> None:
        """Add seconds that a save delayed the next step."""
        self._save_s += save_s

    def flush(self) -> None:
        """Report the steps that have not been reported yet."""
        if not self._losses:
            return
        self._reported_at_s = self._monotonic()
        steps = len(self._losses)
        extra: dict[str, Any] = {"total_steps": self.steps} if self.steps else {}
        if self.at_least:
            extra["at_least"] = True
        if self._ranks_s:
            times = [round(total / steps, 6) for total in self._ranks_s]
            extra |= {"ranks_s": times, "ranks_per_node": self._per_node}
        if self._data_s is not None:
            extra["data_s"] = round(self._data_s, 6)
            self._data_s = 0.0
        self._report(
            PROGRESS,
            {
                "from_step": self._from_step,
                "to_step": self._from_step + steps - 1,
                "losses": [] if None in self._losses else self._losses,
                "first_at_us": self._first_at_us,
                "last_at_us": self._clock_us(),
                "tokens": self._tokens,
                "busy_s": round(self._busy_s, 6),
                "save_s": round(self._save_s, 6),
                **extra,
            },
        )
        self._losses, self._ranks_s, self._tokens = [], [], 0
        self._busy_s = self._save_s = 0.0

    def _line(self, step: int, loss: float | None, speed: float) -> str:
        parts = [f"step {step}/{self.steps}" if self.steps else f"step {step}"]
        parts += [] if loss is None else [f"loss {loss:.4f}"]
        return "  ".join([*parts, f"{speed:,.0f} tokens/s"] if speed else parts)
