"""Requests to save or to stop, from signals and from the agent, as flags that the loop looks at.

A handler only sets a number: it does no I/O, takes no lock and calls no collective. Standard
library only, so that it can be installed before the slow imports.
"""

from __future__ import annotations

import faulthandler
import signal
import time
from collections.abc import Callable
from types import FrameType

from .agent_client import AgentClient

# Asks for the stack of every thread, on stderr. The handler is C: it answers where Python hangs.
STACKS_SIGNAL = signal.SIGUSR2


class StopRequests:
    """What was asked of this process.

    SIGUSR1 asks for a save, SIGTERM to save and leave; the link's flag asks for either. SIGUSR2
    asks where it is: see STACKS_SIGNAL. `stopping`
    is a level, `take_saves` counts each request once.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._link: AgentClient | None = None
        self._signalled_saves = 0
        self._terminated = False
        self._taken = 0

    def install(self) -> None:
        """Take over SIGTERM, SIGUSR1 and SIGUSR2. Call it first of all, from the main thread."""
        faulthandler.register(STACKS_SIGNAL, all_threads=True)
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGUSR1, self._on_save)

    def listen(self, link: AgentClient) -> None:
        """From now on the flag of `link` counts as well."""
        self._link = link

    @property
    def stopping(self) -> bool:
        """Whether to finish the step, save, release and leave."""
        return self._terminated or (self._link is not None and self._link.flag.stop)

    @property
    def reason(self) -> str:
        """Why, in words."""
        flag_reason = self._link.flag.reason if self._link else ""
        return flag_reason or ("SIGTERM" if self._terminated else "")

    @property
    def left_s(self) -> float | None:
        """Seconds until everything has to be over; None when nobody said."""
        deadline = self._link.flag.deadline if self._link else None
        return None if deadline is None else deadline - self._monotonic()

    @property
    def notice_s(self) -> float | None:
        """Seconds until the machine goes; None while nobody has heard of it. It may train on until
        then, and is to save in time."""
        notice = self._link.flag.notice if self._link else None
        return None if notice is None else notice - self._monotonic()

    @property
    def mtbf_s(self) -> float:
        """The mean time between losses of this job's machines; 0: nobody has said."""
        return self._link.flag.mtbf_s if self._link else 0.0

    def take_saves(self) -> bool:
        """Whether a save was asked for since the last call."""
        asked = self._signalled_saves + (self._link.flag.save if self._link else 0)
        news = asked > self._taken
        self._taken = max(asked, self._taken)
        return news

    def sleep(self, seconds: float) -> None:
        """Unless we are to stop."""
        until = self._monotonic() + seconds
        while not self.stopping and (left_s := until - self._monotonic()) > 0:
            time.sleep(min(left_s, 0.02))

    def _on_terminate(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self._terminated = True

    def _on_save(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self._signalled_saves += 1
