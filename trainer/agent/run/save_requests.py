"""When the program is asked to save: each request once, and more often while no notice could be
heard. Then a machine that is taken away goes without a warning, and costs all since its last save.
"""

from __future__ import annotations

from collections.abc import Callable

from spotd import wire
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.stop_timing import ENGINE_NONE
from trainer.agent.run.journal_replay import JournalReplay
from trainer.agent.run.timing_stats import TimingStats

SAVE_PENDING_S = 30.0
SHARE = 3.0  # so many saves in the time of one, while no notice could be heard
SAVES_LONG = 10.0  # of the longest recent save lie between two: they take a tenth of the time


def blind_every_s(every_s: float, save_s: float) -> float:
    """Seconds between saves while no notice could be heard, for a cadence of `every_s` and saves of
    `save_s`: never more than the cadence."""
    return min(every_s, max(every_s / SHARE, SAVES_LONG * save_s))


class SaveRequests:
    """Belongs to the agent's loop. `warn` puts a text on record."""

    def __init__(
        self,
        demands: DesiredState,
        pace: TimingStats,
        warn: Callable[[str], None],
        past: JournalReplay,
        now: float,
    ) -> None:
        self._demands = demands
        self._pace = pace
        self._warn = warn
        self._asked_at = float("-inf")
        # The newest save, however it ended; None while the program has no right to HEAD.
        self._tried_at = now if wire.CLAIMED in past.said else None
        self._blind = self._told = False

    def ask(self, now: float) -> bool:
        """Ask for one. The same request again, while the first is being served, is the same."""
        if now - self._asked_at <= SAVE_PENDING_S:
            return False
        self._asked_at = now
        self._demands.saves += 1
        return True

    def note(self, kind: str, now: float) -> None:
        """The program has said something."""
        if kind in (wire.CHECKPOINT, wire.CHECKPOINT_FAILED):
            self._asked_at = float("-inf")
        if kind in (wire.CLAIMED, wire.CHECKPOINT, wire.CHECKPOINT_FAILED):
            self._tried_at = now

    def see(self, *, up: bool) -> None:
        """Whether a notice could be heard."""
        self._blind, self._told = not up, False

    def due(self, now: float, rank: int) -> bool:
        """Whether the cadence is too long for now. Told once an outage. The ranks of a gang save
        together: rank 0 alone asks, which hears when they have."""
        start = self._demands.start
        if not self._blind or self._tried_at is None or rank or start is None:
            return False
        every_s = blind_every_s(start.every_s, self._pace.policy().save_s)
        if start.engine == ENGINE_NONE or every_s >= start.every_s:
            return False
        if now - max(self._tried_at, self._asked_at) < every_s:
            return False
        if not self._told:
            self._told = True
            often = f"each {every_s:.3g} s instead of {start.every_s:.3g} s"
            self._warn(f"while no notice could be heard, the program is asked to save {often}")
        return True
