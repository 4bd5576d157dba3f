"""The right to HEAD, from the claim to the release or the final manifest, for the first rank of a
training program. Standard library only, Python >= 3.10."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from .agent_client import AgentClient
from .checkpointer import Checkpointer
from .constants import EXIT_ERROR, EXIT_FENCED, EXIT_FINISHED, EXIT_RELEASED, RELEASED, WARNING
from .deadline import Action, StopPlan
from .save_planner import SavePlanner
from .saver_client import FencedError, SaverError, StoreAwayError
from .stop import StopRequests

T = TypeVar("T")
FIRST_WORD_S = 10.0  # how long the agent may take to say how HEAD is to be claimed now
STORE_RETRY_S = 2.0
STOP_GRACE_S = 25.0  # how long a save may take when nobody gave a deadline
RELEASE_S = 1.0  # kept of the time to stop, for a release without the save that overran
FINAL_GRACE_S = 600.0  # how long to try to commit the final manifest


class StoppedError(Exception):
    """Asked to stop before the first step: there is nothing to save."""


class HeadOwnership:
    """`save(step, trigger, released=..., final=...)` stages a snapshot, or says False when there is
    nothing to be saved."""

    def __init__(
        self,
        link: AgentClient,
        stop: StopRequests,
        checkpointer: Checkpointer,
        planning: SavePlanner,
        save: Callable[..., bool],
    ) -> None:
        self._link, self._stop = link, stop
        self._checkpointer, self._planning, self._save = checkpointer, planning, save

    def pause(self, seconds: float) -> None:
        """Sleep. Raises StoppedError when we are to stop."""
        self._stop.sleep(seconds)
        if self._stop.stopping:
            raise StoppedError

    def patiently(self, call: Callable[[], T], trouble: str) -> T:
        """`call()`, again and again while the store does not answer: an outage is not our crash.

        Raises StoppedError, and what else `call` raises.
        """
        while True:
            text = ""
            try:
                return call()
            except StoreAwayError as error:
                text = f"{trouble}: {error}"
            self._link.send(WARNING, {"text": text})
            self.pause(STORE_RETRY_S)

    def claim(self) -> Mapping[str, Any]:
        """Wait until HEAD may be claimed, and claim it; `final` in the answer: the job is finished.
        Raises StoppedError, FencedError, and SaverError for what waiting does not help."""
        if not self._link.wait_flag(FIRST_WORD_S):
            text = "the agent is silent: HEAD is claimed as it said when it started us"
            self._link.send(WARNING, {"text": text})
        claimed = None
        while claimed is None:
            self.pause(0)
            claimed = self.patiently(
                lambda: self._checkpointer.claim(*self._link.claim_of()),
                "HEAD cannot be claimed yet",
            )
        return claimed

    def leave(self, step: int) -> int:
        """Save and release within the time that is left; the exit code.

        When a fresh save cannot make it, the one in flight is finished; when that cannot either,
        the last one that is durable is released.
        """
        checkpointer, planning = self._checkpointer, self._planning
        plan = planning.leave(STOP_GRACE_S, step)
        reason = self._stop.reason or "the machine is about to go"
        print(f"stopping after step {step}: {reason}: {plan.action.value}", flush=True)
        saves = plan.action is Action.SAVE
        save = partial(self._save, step, "stop", released=True) if saves else bool
        save()
        left_s = 0.0 if plan.action is Action.RELEASE else planning.left_s(STOP_GRACE_S)
        within_s = left_s - min(RELEASE_S, left_s / 2)
        # One that waits behind it came to be too late for the time that there is: see `plan`.
        alone = plan.action is Action.FINISH
        kept = checkpointer.drain(within_s, again=save, alone=alone)
        kept = checkpointer.committed == step if saves else kept
        return EXIT_FENCED if checkpointer.fenced else self.release(plan, kept=kept)

    def release(self, plan: StopPlan | None = None, *, kept: bool = False) -> int:
        """Give HEAD away; the exit code. 75 is said only when HEAD says so too."""
        try:
            said = self._checkpointer.release()
        except FencedError as error:
            print(error, file=sys.stderr, flush=True)
            return EXIT_FENCED
        except (SaverError, OSError) as error:
            self._link.send(WARNING, {"text": f"HEAD could not be released: {error}"})
            return EXIT_ERROR
        if plan is not None:
            self._planning.ended(plan, step=said["step"], manifest=said["manifest"], kept=kept)
        self._link.send(RELEASED, said)
        return EXIT_RELEASED

    def finish(self, step: int) -> int | None:
        """Commit the final manifest: only then is the job done. The exit code; None when there is
        nothing that could be saved."""
        save = partial(self._save, step, "final", final=True)
        if not save():
            return None
        if self._checkpointer.drain(FINAL_GRACE_S, again=save):
            return EXIT_FINISHED
        fenced = self._checkpointer.fenced
        text = fenced or "the final checkpoint could not be committed"
        print(text, file=sys.stderr, flush=True)
        return EXIT_FENCED if fenced else EXIT_ERROR
