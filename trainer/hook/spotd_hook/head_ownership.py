"""The right to HEAD on rank 0, from the claim to the release or the final manifest.

Standard library only, Python >= 3.10.
"""

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

Result = TypeVar("Result")
FLAG_WAIT_S = 10.0  # for the agent's first flag, which has the claim mode
STORE_RETRY_S = 2.0
STOP_GRACE_S = 25.0  # for a save if there is no deadline
RELEASE_S = 1.0  # reserved for a release if the save overruns
FINAL_GRACE_S = 600.0  # to commit the final manifest


class StoppedError(Exception):
    """A stop was requested before the first step: there is nothing to save."""


class HeadOwnership:
    """Claims, releases and finishes for rank 0.

    `save(step, trigger, released=..., final=...)` stages a snapshot; False if there is nothing to
    save.
    """

    def __init__(
        self,
        link: AgentClient,
        stop: StopRequests,
        checkpointer: Checkpointer,
        planner: SavePlanner,
        save: Callable[..., bool],
    ) -> None:
        self._link, self._stop = link, stop
        self._checkpointer, self._planner, self._save = checkpointer, planner, save

    def pause(self, seconds: float) -> None:
        """Sleep. Raises StoppedError if a stop is requested."""
        self._stop.sleep(seconds)
        if self._stop.stopping:
            raise StoppedError

    def retry_while_away(self, call: Callable[[], Result], problem: str) -> Result:
        """Return `call()`, retrying while the store does not answer.

        Raises StoppedError, and other errors of `call`.
        """
        while True:
            message = ""
            try:
                return call()
            except StoreAwayError as error:
                message = f"{problem}: {error}"
            self._link.send(WARNING, {"text": message})
            self.pause(STORE_RETRY_S)

    def claim(self) -> Mapping[str, Any]:
        """Wait until HEAD may be claimed, and claim it; `final` in the reply: the job is finished.

        Raises StoppedError, FencedError, and SaverError for errors that waiting does not cure.
        """
        if not self._link.wait_flag(FLAG_WAIT_S):
            message = "the agent sends nothing: HEAD is claimed as set at the start of the program"
            self._link.send(WARNING, {"text": message})
        reply = None
        while reply is None:
            self.pause(0)
            reply = self.retry_while_away(
                lambda: self._checkpointer.claim(*self._link.current_claim()),
                "HEAD cannot be claimed yet",
            )
        return reply

    def save_and_release(self, step: int) -> int:
        """Save and release HEAD within the remaining time; return the exit code.

        If a new snapshot does not fit, the upload in flight is finished; if that does not fit
        either, the last durable checkpoint is released.
        """
        checkpointer, planner = self._checkpointer, self._planner
        plan = planner.plan_exit(STOP_GRACE_S, step)
        reason = self._stop.reason or "the machine is about to end"
        print(f"stopping after step {step}: {reason}: {plan.action.value}", flush=True)
        saves_now = plan.action is Action.SAVE
        save = partial(self._save, step, "stop", released=True) if saves_now else bool
        save()
        remaining_s = 0.0 if plan.action is Action.RELEASE else planner.remaining_s(STOP_GRACE_S)
        within_s = remaining_s - min(RELEASE_S, remaining_s / 2)
        # A snapshot that waits behind the upload would be too late: see `deadline.plan`.
        drop_waiting = plan.action is Action.FINISH
        succeeded = checkpointer.drain(within_s, save_again=save, drop_waiting=drop_waiting)
        succeeded = checkpointer.committed == step if saves_now else succeeded
        return EXIT_FENCED if checkpointer.fenced else self.release(plan, succeeded=succeeded)

    def release(self, plan: StopPlan | None = None, *, succeeded: bool = False) -> int:
        """Release HEAD; return the exit code. It is 75 only if HEAD is really released."""
        try:
            released = self._checkpointer.release()
        except FencedError as error:
            print(error, file=sys.stderr, flush=True)
            return EXIT_FENCED
        except (SaverError, OSError) as error:
            self._link.send(WARNING, {"text": f"HEAD could not be released: {error}"})
            return EXIT_ERROR
        if plan is not None:
            self._planner.report_outcome(
                plan, step=released["step"], manifest=released["manifest"], succeeded=succeeded
            )
        self._link.send(RELEASED, released)
        return EXIT_RELEASED

    def finish(self, step: int, *, final: bool = True) -> int | None:
        """Commit the state at the end of training; return the exit code.

        With `final` that completes the job; else its program may train again. None if there is
        nothing that could be saved.
        """
        save = partial(self._save, step, "final", final=final)
        if not save():
            return None
        if self._checkpointer.drain(FINAL_GRACE_S, save_again=save):
            return EXIT_FINISHED
        fenced = self._checkpointer.fenced
        message = fenced or "the final checkpoint could not be committed"
        print(message, file=sys.stderr, flush=True)
        return EXIT_FENCED if fenced else EXIT_ERROR
