"""Dead man's switch: the node ends itself when it has no contact to a control box.

The control box regularly tells the agent how long this machine may run without it. The machine's
expiry tag, which spot-reaper reads, ends at the same time: before spot-reaper ends the machine, the
agent has saved, released and switched it off. A running program gets the whole time, because an
outage of the box must cost nothing. A machine on which nothing runs gets a fraction of it, or
`keep_on_failure`, the time for a user to inspect a failure, whichever is longer.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping, Sequence

from spotd.wire import AgentConfig
from trainer.agent.base.stop_timing import StopTiming

_LOG = logging.getLogger(__name__)
# Fractions of the whole time. An idle machine outlasts a short outage of the box, which still has
# to read its result or give it work.
IDLE_SHARE = 1 / 24
IDLE_LEAST_S = 60.0  # but at most half of a whole time shorter than two minutes
# A message that was delayed promises more time than there is.
SLACK_SHARE = 1 / 96
BOOKED_SLACK_S = 60.0  # before reserved time ends, which is paid for in any case
POWER_OFF_S = 60.0


class Deadman:
    """Counts on the machine's monotonic clock. Belongs to the agent's loop."""

    def __init__(self, config: AgentConfig, now: float) -> None:
        self._time_s = config.unattended_s
        self._idle_s = max(IDLE_SHARE * self._time_s, min(IDLE_LEAST_S, self._time_s / 2))
        self._renewed_at = now
        # A box whose database was restored may send an expiry in the past.
        self._box_limit = now + max(config.left_s, self._idle_s)
        # The cloud's own limit cannot be extended.
        self._cloud_limit = now + config.life_s if config.life_s else float("inf")
        self._reservation_limit = now + config.ends_s if config.ends_s else float("inf")
        self._keep_s = config.keep_s
        self._hold_until: float | None = None  # a failed machine is retained for inspection
        self._fired = False  # the time came, and what runs was asked to stop
        self.power_off_due = False

    @property
    def enabled(self) -> bool:
        """Whether the machine has a time limit at all."""
        return self._time_s > 0

    def renew(self, remaining_s: float | None, now: float) -> None:
        """Record that the box is there, and how long we may run without it, None if not sent.

        The limit is never moved back.
        """
        self._renewed_at = now
        if remaining_s is not None:
            self._box_limit = max(self._box_limit, now + remaining_s)

    @property
    def deadline(self) -> float:
        """When everything must be saved and released."""
        limit = min(self._box_limit, self._cloud_limit) - SLACK_SHARE * self._time_s
        return min(limit, self._reservation_limit - BOOKED_SLACK_S)

    def due(self, timing: StopTiming, now: float, *, idle: bool) -> bool:
        """Whether to stop now, and then switch the machine off."""
        if not self.enabled:
            return False
        deadline_near = timing.latest_stop(self._renewed_at, self.deadline) <= now
        self._fired = self._fired or deadline_near or (idle and self._is_unattended(now))
        return self._fired

    def should_power_off(self, now: float, *, awaits_final: bool, failed: bool) -> bool:
        """Return whether nothing runs and no box is left to end the machine.

        `awaits_final`: only the box can decide about the job, whose program has ended here.
        """
        if self._hold_until is None:
            self._hold_until = now + (self._keep_s if failed else 0.0)
        unattended = self._is_unattended(now) and not awaits_final and now >= self._hold_until
        self.power_off_due = self.enabled and (self._fired or now >= self.deadline or unattended)
        return self.power_off_due

    def _is_unattended(self, now: float) -> bool:
        return now - self._renewed_at >= self._idle_s

    def reason(self, now: float) -> str:
        """Return why it stops."""
        if self._reservation_limit <= min(self._box_limit, self._cloud_limit):
            return "the reserved time of this machine is about to end"
        if self._cloud_limit < self._box_limit:
            return "the cloud's own time limit for this machine is near"
        return f"no contact with the control box for {(now - self._renewed_at) / 3600:.3g} h"


def power_off(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Switch the machine off. If that fails, or would not end the bill, it is left to spot-reaper
    and the cloud."""
    if not argv:
        _LOG.warning("this cloud's machines cannot switch themselves off: left to spot-reaper")
        return
    try:
        subprocess.run(
            list(argv), env=dict(environ), stdin=subprocess.DEVNULL, timeout=POWER_OFF_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.error("the machine cannot be switched off (%s): left to spot-reaper", error)
