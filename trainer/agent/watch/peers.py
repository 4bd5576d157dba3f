"""Whether the ranks of a gang wait for one another until they give up: told while there is time.

What gives up is torch, on its own clock, by what the job file says (`spotd.peer_timeout`): torchrun
that waits for the agents of the other machines, and a rank that waits for another in a collective.
Nobody learns from the inside whom it waits for. What shows is that a program which tells of its
steps makes none; what is silence is as with `hanging`.
"""

from __future__ import annotations

from trainer.agent.base.warnings import HealthWarning
from trainer.agent.watch.hang_detector import GLANCE_S

PEERS = "peers"
SHARE = 0.8  # of the time that they wait


class PeerWatch:
    """Belongs to the agent's loop; sans I/O, `now` is monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._looked_at, self._silent_s, self._told = now, 0.0, False

    def hear(self) -> None:
        """The program has said something, or another one begins."""
        self._silent_s, self._told = 0.0, False

    def look(self, now: float, timeout_s: float, step: int) -> HealthWarning | None:
        """What is to be told, once a silence. `timeout_s` is 0 where nothing runs that would tell
        of its steps; `step` is the newest that the program has told of."""
        self._silent_s += min(now - self._looked_at, GLANCE_S)
        self._looked_at = now
        if not timeout_s:
            self.hear()
        if not timeout_s or self._told or self._silent_s < SHARE * timeout_s:
            return None
        self._told = True
        since = f"after step {step}" if step else "since it was started"
        text = f"no rank here has made a step {since} for {self._silent_s:.0f} s: where ranks wait"
        left_s = timeout_s - self._silent_s
        text = f"{text} for others, they give up in {left_s:.0f} s (spotd.peer_timeout)"
        return HealthWarning(PEERS, text, {"silent_s": self._silent_s, "timeout_s": timeout_s})
