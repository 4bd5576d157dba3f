"""The desired state of the training program, in memory, where a restarted agent finds it."""

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
    """The start document, the number of requested saves, and the stop in progress.

    `claim_until` is the time before which HEAD is not claimed by force. Times are on the monotonic
    clock, which all processes share until the machine is switched off. The file is on a memory file
    system and has the same lifetime.
    """

    path: Path
    start: StartDocument | None = None
    claim_until: float = 0.0
    saves: int = 0
    stopping: Stopping | None = None
    injected_drills: list[str] = field(default_factory=list)  # drill ids; "struck" in the file
    _unwritten: bool = field(default=False, init=False, repr=False, compare=False)

    def accept(self, start: StartDocument, now: float) -> None:
        """Store the first start document. A later one can only allow HEAD to be claimed earlier."""
        until = now if start.head.claim == CLAIM_NOW else now + start.head.claim_deadline_s
        if self.start is None:
            self.start, self.claim_until = start, until
        else:
            self.claim_until = min(self.claim_until, until)
            if start.head.claim == CLAIM_NOW:
                self.start = replace(self.start, head=replace(self.start.head, claim=CLAIM_NOW))
        self.write()

    def claim_terms(self, now: float) -> tuple[str, float]:
        """Return the claim mode, and the seconds until HEAD may be claimed in any case."""
        claim = CLAIM_NOW if self.start is None else self.start.head.claim
        return claim, max(self.claim_until - now, 0.0)

    def flag(self, now: float) -> dict[str, Any]:
        """Return the control message for training processes: requested saves, stop, and claim
        terms."""
        claim, claim_deadline_s = self.claim_terms(now)
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
        """Save the state for the next agent, in the private folder because it contains secrets.

        Returns False when memory is full. Training continues, and `retry` tries again.
        """
        data = {
            "start": None if self.start is None else self.start.to_data(),
            "claim_until": self.claim_until,
            "saves": self.saves,
            "stopping": None if self.stopping is None else self.stopping.to_data(),
            "struck": self.injected_drills,
        }
        try:
            write_private(self.path, encode(data))
        except OSError as error:
            if not self._unwritten:
                _LOG.warning("the agent's state cannot be saved for a restart: %s", error)
            self._unwritten = True
        else:
            self._unwritten = False
        return not self._unwritten

    def retry(self) -> None:
        """Write again if the last write failed."""
        if self._unwritten:
            self.write()

    def forget(self) -> None:
        """Delete the file once training is over, so that no secret stays."""
        self._unwritten = False
        self.path.unlink(missing_ok=True)


def load_desired_state(path: Path) -> DesiredState:
    """Read the state that the previous agent left, or return an empty one."""
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
        injected_drills=data.get("struck", []),
    )
