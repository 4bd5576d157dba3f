"""The node's own end, when nobody is left to end it.

The control box says again and again that it is there, and how long this machine may go on without
it. That is as long as its expiry tag says, which spot-reaper reads: before it ends the machine, the
agent has saved, released and switched the machine off. A program that runs has the whole time, for
a box that is away must cost nothing; a machine on which nothing runs has a part of it, or the time
for which its user wants to look at what failed there (`keep_on_failure`), whichever is longer.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping, Sequence

from spotd.wire import AgentConfig
from trainer.agent.base.stop_timing import StopTiming

_LOG = logging.getLogger(__name__)
# Parts of the whole time. A machine on which nothing runs is kept for as long as a short outage of
# the box: what ended there is to be told, and what waits there is wanted.
IDLE_SHARE = 1 / 24
IDLE_LEAST_S = 60.0  # but for half of a time that is shorter than two minutes
# A word that was late on its way promises more time than there is.
SLACK_SHARE = 1 / 96
BOOKED_SLACK_S = 60.0  # before booked time ends; what is left of it is paid for
POWER_OFF_S = 60.0


class Deadman:
    """Counts on the machine's monotonic clock. Belongs to the agent's loop."""

    def __init__(self, config: AgentConfig, now: float) -> None:
        self._time_s = config.unattended_s
        self._idle_s = max(IDLE_SHARE * self._time_s, min(IDLE_LEAST_S, self._time_s / 2))
        self._heard_at = now
        # A box whose database was restored may know an expiry of long ago.
        self._until = now + max(config.left_s, self._idle_s)
        # The cloud's own limit cannot be moved, whoever speaks to us.
        self._life_until = now + config.life_s if config.life_s else float("inf")
        self._booked_until = now + config.ends_s if config.ends_s else float("inf")
        self._keep_s = config.keep_s
        self._kept_until: float | None = None  # what failed here is somebody's to look at
        self._fired = False  # it was time: what runs was asked to stop
        self.abandoned = False  # and now the machine is to be switched off

    @property
    def on(self) -> bool:
        """Whether the machine has a time at all."""
        return self._time_s > 0

    def hear(self, left_s: float | None, now: float) -> None:
        """The box is there; it says how long we may go on without it, or nothing of that. Never
        less than it said before: an expiry is moved on, and never back."""
        self._heard_at = now
        if left_s is not None:
            self._until = max(self._until, now + left_s)

    @property
    def deadline(self) -> float:
        """When all must be saved and released."""
        ours = min(self._until, self._life_until) - SLACK_SHARE * self._time_s
        return min(ours, self._booked_until - BOOKED_SLACK_S)

    def due(self, policy: StopTiming, now: float, *, idle: bool) -> bool:
        """It is time to stop, and to switch the machine off after that."""
        if not self.on:
            return False
        late = policy.latest_stop(self._heard_at, self.deadline) <= now
        self._fired = self._fired or late or (idle and self._left_alone(now))
        return self._fired

    def spent(self, now: float, *, waits: bool, failed: bool) -> bool:
        """Nothing runs any more, and nobody is there to give the machine back. `waits`: only the
        box can say what is to become of what has ended here."""
        if self._kept_until is None:
            self._kept_until = now + (self._keep_s if failed else 0.0)
        alone = self._left_alone(now) and not waits and now >= self._kept_until
        self.abandoned = self.on and (self._fired or now >= self.deadline or alone)
        return self.abandoned

    def _left_alone(self, now: float) -> bool:
        return now - self._heard_at >= self._idle_s

    def reason(self, now: float) -> str:
        """Why it stops."""
        if self._booked_until <= min(self._until, self._life_until):
            return "the time that was booked for this machine ends"
        if self._life_until < self._until:
            return "the cloud ends this machine, however long it was renewed"
        return f"the control box was not heard of for {(now - self._heard_at) / 3600:.3g} h"


def power_off(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Switch the machine off. Where that does not work, or would not stop the bill, it is left to
    the reaper and to the cloud."""
    if not argv:
        _LOG.warning("this cloud has no way to be switched off from here: left to spot-reaper")
        return
    try:
        subprocess.run(
            list(argv), env=dict(environ), stdin=subprocess.DEVNULL, timeout=POWER_OFF_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.error("the machine cannot be switched off (%s): left to spot-reaper", error)
