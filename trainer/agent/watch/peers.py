"""Warn when the ranks of a gang wait for each other and will soon give up.

torch gives up by its own clock, after the job file's `spotd.peer_timeout`: torchrun waiting for the
agents of other machines, or a rank waiting in a collective. It does not show the peer it waits
for. The visible sign is that a program that reports steps makes none; silence is measured as in
`hang_detector`.
"""

from __future__ import annotations

from trainer.agent.base.health_verdict import HealthWarning
from trainer.agent.watch.hang_detector import MAX_GAP_S

PEERS = "peers"
WARN_SHARE = 0.8  # of the peer timeout


class PeerMonitor:
    """Belongs to the agent's loop. Sans I/O; `now` is in monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._checked_at, self._silent_s, self._warned = now, 0.0, False

    def reset(self) -> None:
        """Start over: the program has sent a message, or a new one starts."""
        self._silent_s, self._warned = 0.0, False

    def check(self, now: float, timeout_s: float, step: int) -> HealthWarning | None:
        """Return a warning, once per silence.

        `timeout_s` is 0 if no program runs that reports steps; `step` is its newest step.
        """
        self._silent_s += min(now - self._checked_at, MAX_GAP_S)
        self._checked_at = now
        if not timeout_s:
            self.reset()
        if not timeout_s or self._warned or self._silent_s < WARN_SHARE * timeout_s:
            return None
        self._warned = True
        since = f"after step {step}" if step else "since it was started"
        text = f"no rank here has made a step {since} for {self._silent_s:.0f} s: where ranks wait"
        remaining_s = timeout_s - self._silent_s
        text = f"{text} for others, they give up in {remaining_s:.0f} s (spotd.peer_timeout)"
        return HealthWarning(PEERS, text, {"silent_s": self._silent_s, "timeout_s": timeout_s})
