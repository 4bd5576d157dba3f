"""What is asked of the training program, as it stands: kept in memory for a restarted agent."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spotd.wire import CLAIM_NOW, StartDocument, encode, parse_start
from trainer.agent.base.paths import write_private
from trainer.agent.base.stop_timing import Stopping, parse_stopping

_LOG = logging.getLogger(__name__)


@dataclass
class DesiredState:
    """`start` with the moment until which HEAD is left alone, saves asked for, and the stop.

    Moments are on the machine's monotonic clock, which all processes share until it is switched
    off; so does the file, which lies in memory.
    """

    path: Path
    start: StartDocument | None = None
    claim_until: float = 0.0
    saves: int = 0
    stopping: Stopping | None = None
    struck: list[str] = field(default_factory=list)  # drills, by their ids
    _unwritten: bool = field(default=False, init=False, repr=False, compare=False)

    def accept(self, start: StartDocument, now: float) -> None:
        """The first start counts in full; a later one may only let HEAD be claimed earlier."""
        until = now if start.claim == CLAIM_NOW else now + start.claim_deadline_s
        if self.start is None:
            self.start, self.claim_until = start, until
        else:
            self.claim_until = min(self.claim_until, until)
            if start.claim == CLAIM_NOW:
                self.start = replace(self.start, claim=CLAIM_NOW)
        self.write()

    def claim_of(self, now: float) -> tuple[str, float]:
        """How HEAD is to be claimed, and the seconds until it may be taken in any case."""
        claim = CLAIM_NOW if self.start is None else self.start.claim
        return claim, max(self.claim_until - now, 0.0)

    def flag(self, now: float) -> dict[str, Any]:
        """The level that training processes are shown."""
        claim, claim_deadline_s = self.claim_of(now)
        stopping = self.stopping
        return {
            "save": self.saves,
            "stop": stopping is not None,
            "deadline_s": None if stopping is None else max(stopping.kill_at - now, 0.0),
            "reason": "" if stopping is None else stopping.reason,
            "claim": claim,
            "claim_deadline_s": claim_deadline_s,
            "ranks": True,
        }

    def write(self) -> bool:
        """Keep it for the next agent; the secrets in it are the reason for the private folder.

        Memory that is full stops nobody who is here: False, and it is tried again by `retry`.
        """
        data = {
            "start": None if self.start is None else self.start.to_data(),
            "claim_until": self.claim_until,
            "saves": self.saves,
            "stopping": None if self.stopping is None else self.stopping.to_data(),
            "struck": self.struck,
        }
        try:
            write_private(self.path, encode(data))
        except OSError as error:
            if not self._unwritten:
                _LOG.warning(
                    "what is asked of training cannot be kept for another agent: %s", error
                )
            self._unwritten = True
        else:
            self._unwritten = False
        return not self._unwritten

    def retry(self) -> None:
        """Write what could not be written, if it can be now."""
        if self._unwritten:
            self.write()

    def forget(self) -> None:
        """Training is over: nothing secret stays."""
        self._unwritten = False
        self.path.unlink(missing_ok=True)


def load_demands(path: Path) -> DesiredState:
    """As the last agent left it, or empty."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return DesiredState(path)
    stopping = data["stopping"]
    return DesiredState(
        path,
        start=None if data["start"] is None else parse_start(data["start"]),
        claim_until=data["claim_until"],
        saves=data["saves"],
        stopping=None if stopping is None else parse_stopping(stopping),
        struck=data.get("struck", []),
    )
