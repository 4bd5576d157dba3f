"""Times to ask the program to save: on request, and more often while the metadata service is down.

Without the metadata service a preemption comes without a notice and loses everything since the last
save.
"""

from __future__ import annotations

from collections.abc import Callable

from spotd import wire
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.stop_timing import ENGINE_NONE
from trainer.agent.run.journal_replay import JournalReplay
from trainer.agent.run.timing_stats import TimingStats

SAVE_PENDING_S = 30.0
SAVES_PER_CADENCE = 3.0  # saves in the time of one, while the metadata service is down
# The interval is at least this many times the longest recent save: saves take a tenth of the time.
MIN_INTERVAL_SAVES = 10.0


def blind_every_s(every_s: float, save_s: float) -> float:
    """Return the seconds between saves while the metadata service is down.

    `every_s` is the normal interval, which is never exceeded, and `save_s` the duration of a save.
    """
    return min(every_s, max(every_s / SAVES_PER_CADENCE, MIN_INTERVAL_SAVES * save_s))


class SaveRequests:
    """Decides when to request saves. Belongs to the agent's loop. `warn` journals a warning."""

    def __init__(
        self,
        desired: DesiredState,
        timing_stats: TimingStats,
        *,
        warn: Callable[[str], None],
        replay: JournalReplay,
        now: float,
    ) -> None:
        self._desired = desired
        self._timing_stats = timing_stats
        self._warn = warn
        self._requested_at = float("-inf")
        # The newest save, successful or not; None until the program has claimed HEAD.
        self._last_save_at = now if wire.CLAIMED in replay.reported else None
        self._blind = self._warned = False

    def request(self, now: float) -> bool:
        """Count a request; False if one was made recently and is still being served."""
        if now - self._requested_at <= SAVE_PENDING_S:
            return False
        self._requested_at = now
        self._desired.saves += 1
        return True

    def note(self, kind: str, now: float) -> None:
        """Process a message of the program."""
        if kind in (wire.CHECKPOINT, wire.CHECKPOINT_FAILED):
            self._requested_at = float("-inf")
        if kind in (wire.CLAIMED, wire.CHECKPOINT, wire.CHECKPOINT_FAILED):
            self._last_save_at = now

    def set_metadata_up(self, *, up: bool) -> None:
        """Record whether notices can be received."""
        self._blind, self._warned = not up, False

    def due(self, now: float, rank: int) -> bool:
        """Whether to request a save now; warns once per outage.

        The ranks of a gang save together, so only rank 0, which learns of every save, requests one.
        """
        start = self._desired.start
        if not self._blind or self._last_save_at is None or rank or start is None:
            return False
        every_s = blind_every_s(start.checkpoint.every_s, self._timing_stats.stop_timing().save_s)
        if start.checkpoint.engine == ENGINE_NONE or every_s >= start.checkpoint.every_s:
            return False
        if now - max(self._last_save_at, self._requested_at) < every_s:
            return False
        if not self._warned:
            self._warned = True
            interval = f"every {every_s:.3g} s instead of {start.checkpoint.every_s:.3g} s"
            self._warn(f"while notices cannot be received, the program saves {interval}")
        return True
