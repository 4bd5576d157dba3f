"""One run of a training program: claim HEAD, restore, agree after each step, save, exit.

Used by run.py, hf.py and lightning.py. Needs torch, Python >= 3.10.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .agent_client import AgentClient
from .checkpointer import Checkpointer, RankGroup
from .constants import (
    CLAIMED,
    EXIT_ERROR,
    EXIT_FENCED,
    EXIT_FINISHED,
    EXIT_RELEASED,
    READY,
    WARNING,
)
from .deadline import Action
from .engine import FoundCheckpoint
from .head_ownership import FINAL_GRACE_S, HeadOwnership, StoppedError
from .job import Job
from .layout import lay_out, read_tensors, stage
from .progress import Progress
from .ranks import Ranks
from .save_planner import SavePlanner
from .saver_client import FencedError
from .saver_connect import SaverConnector
from .state_tree import flatten_state, unflatten_state
from .stop import StopRequests
from .tensor_copy import blocking_copy_for, pin
from .weights import IMPORTED

SAVER_S = 2.0  # for our own saver to end; important saves were waited for before
_ENGINE = "spotd"
_FIXED_VALUES = 5  # before the planner's values: loss, stop, fenced, due, save requested
_TRAIN = -1


class NextAction(Enum):
    """The action after a step, the same for all ranks."""

    TRAIN = "train"
    SAVE = "save"
    LEAVE = "leave"
    FENCED = "fenced"


@dataclass(frozen=True)
class Resumed:
    """The restored state after `step` steps.

    `shared` is common to all ranks, `per_rank` is this rank's. If `weights` is not None, only
    weights were restored, for a model that starts training.
    """

    step: int
    shared: Any = None
    per_rank: Any = None
    weights: Mapping[str, Tensor] | None = None


class Session:
    """The run of one rank.

    `collect()` returns the state common to all ranks and this rank's own; all ranks call it at the
    same time, and rank 0's common state is saved. A checkpoint made with another `config` is
    refused. Create it in the main thread; `close` it. Raises RuntimeError, ValueError, OSError if
    nothing could be saved.
    """

    def __init__(
        self,
        collect: Callable[[], tuple[Any, Any]],
        *,
        config: Mapping[str, Any] | None = None,
        any_ranks: bool = False,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        engine = env.get("SPOTD_ENGINE", _ENGINE)
        if engine != _ENGINE:
            raise RuntimeError(
                f"spotd_hook saves nothing in a job with engine: {engine}. Write this into its "
                "file: spotd: {checkpoint: {engine: spotd}}"
            )
        self._collect, self._config = collect, dict(config or {})
        self._any_ranks = any_ranks
        self.managed = bool(env.get("SPOTD_SOCKET") or env.get("SPOTD_STORE_URL"))
        self.job, self.ranks, self.stop = Job.from_env(env), Ranks.join(env), StopRequests()
        if threading.current_thread() is threading.main_thread():
            self.stop.install()
        self.link = AgentClient.connect(env, self.ranks.rank)
        self.stop.listen(self.link)
        self.step = self._saved_step = 0
        self._saved_at_s = self._stepped_at_s = time.monotonic()
        self._collected: tuple[Any, dict[str, Tensor]] | None = None
        self._losses: dict[int, tuple[float | None, int, float]] = {}
        self.progress = Progress(
            self.link.send,
            every_s=self.job.progress_every_s,
            steps=0,
            disabled=self.ranks.rank > 0,
            per_node=self.ranks.per_node,
        )
        self._closed, self._trigger = False, "cadence"
        self._connector: SaverConnector | None = None
        self._checkpointer: Checkpointer | None = None
        if not self.ranks.rank:
            self._connector = SaverConnector(self.job, self.link, env)
            self._checkpointer = Checkpointer(
                self._connector.connect,
                job_id=self.job.job_id,
                generation=self.job.generation,
                report=self.link.send,
                group=RankGroup(pin=partial(pin, warn=self._warn)),
            )
        self._planner = SavePlanner(
            self.job, self._checkpointer, self.stop, self.link.send, reports=self._reports
        )
        self._head_ownership: HeadOwnership | None = None
        if self._checkpointer is not None:
            self._head_ownership = HeadOwnership(
                self.link, self.stop, self._checkpointer, self._planner, self._save_collected
            )

    # --- start

    def begin(self) -> Resumed | None:
        """Claim HEAD and return the state to resume from; None for a new job.

        Ends the program if it must not train (SystemExit). Raises SaverError, ValueError for errors
        that waiting does not cure.
        """
        if self._reports:
            self.link.send(READY, {"prepared": "the program's own objects", "plans": True})
        outcome, restored = EXIT_ERROR, None
        try:
            if self._head_ownership is not None:
                outcome, restored = self._claim_and_restore(self._head_ownership)
        finally:
            outcome, resume_point = self.ranks.broadcast(
                (outcome, restored[0] if restored else None)
            )
        if outcome != _TRAIN:
            self.exit(outcome)
        resumed = None
        if resume_point is not None:
            resumed = self._resume(
                resume_point, self.ranks.broadcast_tensors(restored[1] if restored else None)
            )
        self.reset_timers()
        return resumed

    def reset_timers(self) -> None:
        """Start the times of the next step and of the next save now."""
        self._saved_at_s = self._stepped_at_s = time.monotonic()

    def _claim_and_restore(
        self, head_ownership: HeadOwnership
    ) -> tuple[int, tuple[Any, dict[str, Tensor]] | None]:
        """On rank 0: return the exit code, or _TRAIN and the restored state."""
        checkpointer = self._checkpointer
        assert checkpointer is not None  # noqa: S101 - rank 0
        tensors: dict[str, Tensor] = {}
        try:
            if head_ownership.claim()["final"]:
                print(f"job {self.job.job_id} is finished: nothing to do", flush=True)
                return EXIT_FINISHED, None
            began_s = time.perf_counter()
            checkpoint = head_ownership.retry_while_away(
                lambda: checkpointer.restore(
                    self._config,
                    lambda memory: tensors.update(read_tensors(checkpointer.pieces, memory)),
                ),
                "the checkpoint cannot be read yet",
            )
        except StoppedError:
            return (head_ownership.release() if checkpointer.claimed else EXIT_RELEASED), None
        except FencedError as error:
            print(error, file=sys.stderr, flush=True)
            return EXIT_FENCED, None
        except OSError as error:
            if self.managed:
                raise
            self._continue_without_saver(error)
            return _TRAIN, None
        self._report_resume_point(checkpoint, time.perf_counter() - began_s)
        if checkpoint is None:
            return _TRAIN, None
        return _TRAIN, ([checkpoint.step, dict(checkpoint.state)], tensors)

    def _continue_without_saver(self, error: OSError) -> None:
        """Train without saving: outside of spotd, and no saver can be started."""
        print(
            f"spotd_hook: nothing is saved: {error}. It runs under spotd, or where spotd is "
            "installed",
            file=sys.stderr,
            flush=True,
        )
        self._checkpointer = self._head_ownership = None
        self._planner = SavePlanner(self.job, None, self.stop, self.link.send)

    def _report_resume_point(self, checkpoint: FoundCheckpoint | None, took_s: float) -> None:
        step, manifest = (checkpoint.step, checkpoint.ref["manifest"]) if checkpoint else (0, "")
        restore_s = round(took_s, 6)
        self.link.send(CLAIMED, {"step": step, "manifest": manifest, "restore_s": restore_s})
        where = "" if self.managed else f"; checkpoints are in {self.job.store_url}"
        message = f"continues after step {step}" if step else "begins"
        if checkpoint and IMPORTED in checkpoint.state:
            message += f" with {len(checkpoint.tensors)} imported tensors"
        print(f"spotd_hook: generation {self.job.generation} {message}{where}", flush=True)

    def _resume(self, resume_point: Any, tensors: Mapping[str, Tensor]) -> Resumed:
        step, state = resume_point
        if IMPORTED in state:
            return Resumed(step, weights=tensors)
        rank, size = self.ranks.rank, self.ranks.size
        per_rank = rank_state_of(state, step, rank, size, any_ranks=self._any_ranks)
        if state["threads"]:  # affects the last bits of parallel sums
            torch.set_num_threads(state["threads"])
        if state["torch"] != torch.__version__ and not self.ranks.rank:
            text = f"the checkpoint was made with torch {state['torch']}, and here it is"
            self._warn(f"{text} {torch.__version__}: results may differ in their last bits")
        self.step = self._saved_step = step
        shared = unflatten_state(state["shared"], tensors)
        return Resumed(step, shared, unflatten_state(per_rank, tensors))

    # --- each step

    def after_step(self, loss: float | None = None, tokens: int = 0) -> NextAction:
        """Count a finished step and return the action for all ranks.

        With several ranks it is based on their values after the previous step.
        """
        self.step += 1
        now = time.monotonic()
        busy_s, self._stepped_at_s = now - self._stepped_at_s, now
        self._losses[self.step] = loss, tokens, busy_s
        self.link.set_step(self.step)
        checkpointer = self._checkpointer
        fenced = checkpointer is not None and checkpointer.fenced is not None
        due = self._planner.is_due(self.step - self._saved_step, now - self._saved_at_s)
        save_requested = self.stop.take_save_requests()
        values = self._planner.rank_values(self.ranks.rank, self.ranks.size, busy_s)
        numbers = [
            math.nan if loss is None else loss,
            self.stop.stopping,
            fenced,
            due,
            save_requested,
        ]
        sums = self.ranks.exchange([*map(float, numbers), *values])
        if sums is None:
            return NextAction.TRAIN
        return self._decide(sums)

    def _decide(self, sums: list[float]) -> NextAction:
        loss, stopping, fenced, save_due, save_requested = sums[:_FIXED_VALUES]
        values = sums[_FIXED_VALUES:]
        self._report_step(loss / self.ranks.size)
        if fenced:
            return NextAction.FENCED
        plan = self._planner.plan_for(values, self.step)
        if stopping or (plan is not None and plan.ends_training):
            return NextAction.LEAVE
        self._trigger = "asked" if save_requested else "cadence"
        return NextAction.SAVE if save_due or save_requested else NextAction.TRAIN

    def _report_step(self, loss: float) -> None:
        """Report the mean loss of the oldest unreported step."""
        step = min(self._losses)
        own_loss, tokens, busy_s = self._losses.pop(step)
        self.progress.add(
            step, None if own_loss is None else loss, tokens * self.ranks.size, busy_s
        )

    def save(self, trigger: str = "") -> None:
        """Take a snapshot; all ranks call it. Blocks for the copy."""
        self.progress.flush()  # before the save is durable: every saved step's loss is known
        began_s = time.monotonic()
        self._collect_state()
        if self._collected is not None:
            self._save_collected(self.step, trigger or self._trigger)
        self._collected = None
        self._saved_step, self._saved_at_s = self.step, time.monotonic()
        self._stepped_at_s += self._saved_at_s - began_s
        self.progress.add_save_time(self._saved_at_s - began_s)

    # --- end

    def exit_saved(self) -> None:
        """Save if that fits, release HEAD, and end the program (SystemExit)."""
        self._finish_exchange()
        plan = self._planner.plan
        if plan is None or plan.action not in (Action.FINISH, Action.RELEASE):
            self._collect_state()
        code = EXIT_RELEASED
        if self._head_ownership is not None:
            code = self._head_ownership.save_and_release(self.step)
        code = self.ranks.broadcast_exit_code(code)
        self._planner.wait_for_agent()
        self.exit(code)

    def exit_fenced(self) -> None:
        """End the program: nothing more would be committed."""
        self._finish_exchange()
        if self._checkpointer is not None:
            print(self._checkpointer.fenced, file=sys.stderr, flush=True)
        self.exit(EXIT_FENCED)

    def finish(self) -> None:
        """Commit the final manifest, which completes the job; SystemExit if that fails."""
        self._finish_exchange()
        self.link.report_busy(FINAL_GRACE_S)  # no rank does another step
        self._collect_state()
        code: int | None = EXIT_FINISHED
        if self._head_ownership is not None:
            code = self._head_ownership.finish(self.step)
        code = self.ranks.broadcast_exit_code(EXIT_ERROR if code is None else code)
        if code != EXIT_FINISHED:
            self.exit(code)
        self.close(code)

    def exit(self, code: int) -> None:
        """End the program with this exit code."""
        self.close(code)
        raise SystemExit(code)

    def close(self, code: int = EXIT_ERROR) -> None:
        """Report the exit code and disconnect; staged snapshots are saved nevertheless."""
        if self._closed:
            return
        self._closed = True
        if self._checkpointer is not None:
            self._checkpointer.close()
        if self._connector is not None:
            self._connector.close(SAVER_S)
        self.link.close(exit_code=code)

    # --- internal

    @property
    def _reports(self) -> bool:
        return self.ranks.local_rank == 0

    def _warn(self, message: str) -> None:
        self.link.send(WARNING, {"text": message})

    def _finish_exchange(self) -> None:
        """Wait for the running exchange between the ranks, and report all steps."""
        sums = self.ranks.finish_exchange()
        if sums is not None:
            self._report_step(sums[0] / self.ranks.size)
        self.progress.flush()

    def _collect_state(self) -> None:
        """Collect the state of all ranks on rank 0."""
        shared, per_rank = self._collect()
        everyone = self.ranks.gather(*flatten_state(per_rank, f"rank{self.ranks.rank}"))
        if self._checkpointer is None:
            return
        tree, tensors = _flatten_objects(shared)
        state = {
            "shared": tree,
            "ranks": [rank_tree for rank_tree, _ in everyone],
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        for _, rank_tensors in everyone:
            tensors |= rank_tensors
        self._collected = state, tensors

    def _save_collected(
        self, step: int, trigger: str, *, released: bool = False, final: bool = False
    ) -> bool:
        checkpointer = self._checkpointer
        if checkpointer is None or self._collected is None:
            return False
        state, tensors = self._collected
        layout, tensor_copy = lay_out(tensors), blocking_copy_for(tensors.values())
        checkpointer.lay_out(layout.pieces, layout.size)
        tensor_copy.begin()
        checkpointer.save(
            step,
            lambda memory, filled: stage(tensors, layout, memory, filled, tensor_copy),
            {"step": step, "config": self._config, **state},
            trigger=trigger,
            released=released,
            final=final,
        )
        return True


def _flatten_objects(objects: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Flatten each object separately: its tensors' names begin with its name."""
    trees, tensors = {}, dict[str, Tensor]()
    for name, state in objects.items():
        trees[name], state_tensors = flatten_state(state, name)
        tensors |= state_tensors
    return trees, tensors


def rank_state_of(
    state: Mapping[str, Any], step: int, rank: int, size: int, *, any_ranks: bool
) -> Any:
    """Return the rank's own state.

    Raises ValueError unless this number of ranks saved it; with `any_ranks` no rank has a state of
    its own, and each gets rank 0's.
    """
    saved = state["ranks"]
    if len(saved) == size:
        return saved[rank]
    if any_ranks:
        return saved[0]
    raise ValueError(
        f"the checkpoint of step {step} was saved by {len(saved)} ranks, but there are {size} "
        "here: start as many, or a new job; any_ranks=True declares that your program keeps its "
        "batch"
    )
