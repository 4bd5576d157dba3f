"""Requests to save or to stop, from signals and from the agent, as flags for the training loop.

A signal handler only sets a number: it does no I/O, takes no lock and calls no collective. Standard
library only, so that it can be installed before slow imports.
"""

from __future__ import annotations

import faulthandler
import signal
import time
from collections.abc import Callable
from types import FrameType

from .agent_client import AgentClient

# Requests the stacks of all threads on stderr. The handler is in C, so it works if Python hangs.
STACKS_SIGNAL = signal.SIGUSR2


class StopRequests:
    """The requests to this process.

    SIGUSR1 requests a save, SIGTERM to save and exit; the agent's flag requests either. SIGUSR2
    requests the stacks: see STACKS_SIGNAL. `stopping` is a level; `take_save_requests` reports each
    request once.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._link: AgentClient | None = None
        self._signal_saves = 0
        self._terminated = False
        self._handled_saves = 0

    def install(self) -> None:
        """Handle SIGTERM, SIGUSR1 and SIGUSR2. Call it first of all, from the main thread."""
        faulthandler.register(STACKS_SIGNAL, all_threads=True)
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGUSR1, self._on_save)

    def listen(self, link: AgentClient) -> None:
        """Also follow the flag of `link`."""
        self._link = link

    @property
    def stopping(self) -> bool:
        """Whether to finish the step, save, release and exit."""
        return self._terminated or (self._link is not None and self._link.flag.stop)

    @property
    def reason(self) -> str:
        """The reason of the stop as text."""
        flag_reason = self._link.flag.reason if self._link else ""
        return flag_reason or ("SIGTERM" if self._terminated else "")

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the process must have ended; None without a deadline."""
        deadline = self._link.flag.deadline if self._link else None
        return None if deadline is None else deadline - self._monotonic()

    @property
    def notice_remaining_s(self) -> float | None:
        """Seconds until the machine ends; None without a notice.

        Training may continue until then, if it saves in time.
        """
        notice = self._link.flag.notice_deadline if self._link else None
        return None if notice is None else notice - self._monotonic()

    @property
    def mtbf_s(self) -> float:
        """Mean time in seconds between losses of this job's machines; 0: unknown."""
        return self._link.flag.mtbf_s if self._link else 0.0

    def take_save_requests(self) -> bool:
        """Return whether a save was requested since the last call."""
        requested = self._signal_saves + (self._link.flag.saves_requested if self._link else 0)
        is_new = requested > self._handled_saves
        self._handled_saves = max(requested, self._handled_saves)
        return is_new

    def sleep(self, seconds: float) -> None:
        """Sleep, but no longer than until a stop is requested."""
        until_s = self._monotonic() + seconds
        while not self.stopping and (remaining_s := until_s - self._monotonic()) > 0:
            time.sleep(min(remaining_s, 0.02))

    def _on_terminate(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self._terminated = True

    def _on_save(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self._signal_saves += 1
