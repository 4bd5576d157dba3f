"""One run of somebody's training program under spotd, or without it: claims HEAD, restores, agrees
with the other ranks after each step, saves, leaves. What trains calls it (run.py, hf.py,
lightning.py). Needs torch, Python >= 3.10."""

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
from .layout import lay_out, read, stage
from .progress import Progress
from .ranks import Ranks
from .save_planner import SavePlanner
from .saver_client import FencedError
from .saver_connect import SaverConnector
from .state_tree import put_together, take_apart
from .stop import StopRequests
from .tensor_copy import copying_for, pin
from .weights import MARK

SAVER_S = 2.0  # for a saver of our own to end: what is to be waited for was waited for before
_ENGINE = "spotd"
_FIXED = 5  # numbers before the words of the plan: loss, stop, fenced, due, asked
_GO_ON = -1


class Next(Enum):
    """What comes after a step, the same for all ranks."""

    TRAIN = "train"
    SAVE = "save"
    LEAVE = "leave"
    FENCED = "fenced"


@dataclass(frozen=True)
class Resumed:
    """Where to go on: `step` steps are done. `shared` is what all ranks have in common, `own` this
    rank's. Where `weights` are not None there are they alone, for a model that begins."""

    step: int
    shared: Any = None
    own: Any = None
    weights: Mapping[str, Tensor] | None = None


class Session:
    """`collect()` gives what all ranks have in common and what this one has; all ranks call it at
    the same time, and rank 0's `shared` is saved. `config` is what a checkpoint has to have been
    made with. Install it in the main thread; `close` it. Raises RuntimeError, ValueError, OSError
    where nothing could be saved."""

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
        self._saved_at = self._stepped_at = time.monotonic()
        self._collected: tuple[Any, dict[str, Tensor]] | None = None
        self._losses: dict[int, tuple[float | None, int, float]] = {}
        self.progress = Progress(
            self.link.send,
            every_s=self.job.progress_every_s,
            steps=0,
            silent=self.ranks.rank > 0,
            per_node=self.ranks.per_node,
        )
        self._closed, self._trigger = False, "cadence"
        self._dial: SaverConnector | None = None
        self._checkpointer: Checkpointer | None = None
        if not self.ranks.rank:
            self._dial = SaverConnector(self.job, self.link, env)
            self._checkpointer = Checkpointer(
                self._dial.line,
                job_id=self.job.job_id,
                generation=self.job.generation,
                report=self.link.send,
                seat=RankGroup(pin=partial(pin, say=self._warn)),
            )
        self._planning = SavePlanner(
            self.job, self._checkpointer, self.stop, self.link.send, speaks=self._speaks
        )
        self._tenure: HeadOwnership | None = None
        if self._checkpointer is not None:
            self._tenure = HeadOwnership(
                self.link, self.stop, self._checkpointer, self._planning, self._save_collected
            )

    # --- the beginning

    def begin(self) -> Resumed | None:
        """Claim HEAD; where to go on, None at the beginning. Ends the program where it is not to
        train (SystemExit). Raises SaverError, ValueError for what no waiting helps."""
        if self._speaks:
            self.link.send(READY, {"prepared": "the program's own objects", "plans": True})
        outcome, found = EXIT_ERROR, None
        try:
            if self._tenure is not None:
                outcome, found = self._take_over(self._tenure)
        finally:
            outcome, about = self.ranks.follow((outcome, found[0] if found else None))
        if outcome != _GO_ON:
            self.end(outcome)
        resumed = None
        if about is not None:
            resumed = self._resume(about, self.ranks.spread(found[1] if found else None))
        self.rest()
        return resumed

    def rest(self) -> None:
        """What took place up to now is part of no step, and no reason to save."""
        self._saved_at = self._stepped_at = time.monotonic()

    def _take_over(self, tenure: HeadOwnership) -> tuple[int, tuple[Any, dict[str, Tensor]] | None]:
        """On rank 0: the exit code, or _GO_ON and what was found."""
        checkpointer = self._checkpointer
        assert checkpointer is not None  # noqa: S101 - rank 0
        tensors: dict[str, Tensor] = {}
        try:
            if tenure.claim()["final"]:
                print(f"job {self.job.job_id} is finished: nothing to do", flush=True)
                return EXIT_FINISHED, None
            began_s = time.perf_counter()
            found = tenure.patiently(
                lambda: checkpointer.restore(
                    self._config,
                    lambda memory: tensors.update(read(checkpointer.pieces, memory)),
                ),
                "the checkpoint cannot be read yet",
            )
        except StoppedError:
            return (tenure.release() if checkpointer.claimed else EXIT_RELEASED), None
        except FencedError as error:
            print(error, file=sys.stderr, flush=True)
            return EXIT_FENCED, None
        except OSError as error:
            if self.managed:
                raise
            self._do_without(error)
            return _GO_ON, None
        self._say_found(found, time.perf_counter() - began_s)
        return _GO_ON, None if found is None else ([found.step, dict(found.state)], tensors)

    def _do_without(self, error: OSError) -> None:
        """Outside of spotd, and no saver to be had."""
        print(
            f"spotd_hook: nothing is saved: {error}. It runs under spotd, or where spotd is "
            "installed",
            file=sys.stderr,
            flush=True,
        )
        self._checkpointer = self._tenure = None
        self._planning = SavePlanner(self.job, None, self.stop, self.link.send)

    def _say_found(self, found: FoundCheckpoint | None, took_s: float) -> None:
        step, manifest = (found.step, found.ref["manifest"]) if found else (0, "")
        restore_s = round(took_s, 6)
        self.link.send(CLAIMED, {"step": step, "manifest": manifest, "restore_s": restore_s})
        where = "" if self.managed else f"; checkpoints are in {self.job.store_url}"
        words = f"goes on after step {step}" if step else "begins"
        if found and MARK in found.state:
            words += f" with {len(found.tensors)} imported tensors"
        print(f"spotd_hook: generation {self.job.generation} {words}{where}", flush=True)

    def _resume(self, about: Any, tensors: Mapping[str, Tensor]) -> Resumed:
        step, state = about
        if MARK in state:
            return Resumed(step, weights=tensors)
        rank, size = self.ranks.rank, self.ranks.size
        own = own_of(state, step, rank, size, any_ranks=self._any_ranks)
        if state["threads"]:  # on which the last bits of parallel sums depend
            torch.set_num_threads(state["threads"])
        if state["torch"] != torch.__version__ and not self.ranks.rank:
            text = f"the checkpoint was made with torch {state['torch']}, and here it is"
            self._warn(f"{text} {torch.__version__}: results may differ in their last bits")
        self.step = self._saved_step = step
        shared = put_together(state["shared"], tensors)
        return Resumed(step, shared, put_together(own, tensors))

    # --- each step

    def after(self, loss: float | None = None, tokens: int = 0) -> Next:
        """One more step is done. What all ranks do now; with several ranks, as of what they said
        after the step before."""
        self.step += 1
        now = time.monotonic()
        busy_s, self._stepped_at = now - self._stepped_at, now
        self._losses[self.step] = loss, tokens, busy_s
        self.link.at(self.step)
        checkpointer = self._checkpointer
        fenced = checkpointer is not None and checkpointer.fenced is not None
        due = self._planning.is_due(self.step - self._saved_step, now - self._saved_at)
        asked = self.stop.take_saves()
        words = self._planning.words(self.ranks.rank, self.ranks.size, busy_s)
        numbers = [math.nan if loss is None else loss, self.stop.stopping, fenced, due, asked]
        said = self.ranks.exchange([*map(float, numbers), *words])
        if said is None:
            return Next.TRAIN
        return self._decide(said)

    def _decide(self, said: list[float]) -> Next:
        (loss, stops, fences, dues, asked), words = said[:_FIXED], said[_FIXED:]
        self._note(loss / self.ranks.size)
        if fences:
            return Next.FENCED
        plan = self._planning.agree(words, self.step)
        if stops or (plan is not None and plan.leaves):
            return Next.LEAVE
        self._trigger = "asked" if asked else "cadence"
        return Next.SAVE if dues or asked else Next.TRAIN

    def _note(self, loss: float) -> None:
        """The mean loss of the oldest step that nobody was told of."""
        step = min(self._losses)
        own, tokens, busy_s = self._losses.pop(step)
        self.progress.add(step, None if own is None else loss, tokens * self.ranks.size, busy_s)

    def save(self, trigger: str = "") -> None:
        """A snapshot of now; all ranks call it. Blocks for the copy."""
        self.progress.flush()  # before the save is durable: no step survives whose loss is unknown
        began = time.monotonic()
        self._gather()
        if self._collected is not None:
            self._save_collected(self.step, trigger or self._trigger)
        self._collected = None
        self._saved_step, self._saved_at = self.step, time.monotonic()
        self._stepped_at += self._saved_at - began
        self.progress.held_up(self._saved_at - began)

    # --- the end

    def leave(self) -> None:
        """Save, if that fits, release, and end the program (SystemExit)."""
        self._settle()
        plan = self._planning.plan
        if plan is None or plan.action not in (Action.FINISH, Action.RELEASE):
            self._gather()
        code = EXIT_RELEASED
        if self._tenure is not None:
            code = self._tenure.leave(self.step)
        code = self.ranks.announce(code)
        self._planning.await_agent()
        self.end(code)

    def leave_fenced(self) -> None:
        """End the program: nothing more would be committed."""
        self._settle()
        if self._checkpointer is not None:
            print(self._checkpointer.fenced, file=sys.stderr, flush=True)
        self.end(EXIT_FENCED)

    def finish(self) -> None:
        """Commit the final manifest: only then is the job done. Ends the program where that cannot
        be (SystemExit)."""
        self._settle()
        self.link.excuse(FINAL_GRACE_S)  # no step comes any more, of any rank
        self._gather()
        code: int | None = EXIT_FINISHED
        if self._tenure is not None:
            code = self._tenure.finish(self.step)
        code = self.ranks.announce(EXIT_ERROR if code is None else code)
        if code != EXIT_FINISHED:
            self.end(code)
        self.close(code)

    def end(self, code: int) -> None:
        """End the program with this exit code."""
        self.close(code)
        raise SystemExit(code)

    def close(self, code: int = EXIT_ERROR) -> None:
        """Say how we end, and hang up; what is staged is saved all the same."""
        if self._closed:
            return
        self._closed = True
        if self._checkpointer is not None:
            self._checkpointer.close()
        if self._dial is not None:
            self._dial.close(SAVER_S)
        self.link.close(exit_code=code)

    # --- within

    @property
    def _speaks(self) -> bool:
        return self.ranks.local_rank == 0

    def _warn(self, text: str) -> None:
        self.link.send(WARNING, {"text": text})

    def _settle(self) -> None:
        """What is under way among the ranks comes to its end, and all steps are told of."""
        said = self.ranks.settle()
        if said is not None:
            self._note(said[0] / self.ranks.size)
        self.progress.flush()

    def _gather(self) -> None:
        """What is to be saved, on rank 0."""
        shared, own = self._collect()
        everyone = self.ranks.gather(*take_apart(own, f"rank{self.ranks.rank}"))
        if self._checkpointer is None:
            return
        tree, tensors = _take_all_apart(shared)
        state = {
            "shared": tree,
            "ranks": [one for one, _ in everyone],
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        for _, more in everyone:
            tensors |= more
        self._collected = state, tensors

    def _save_collected(
        self, step: int, trigger: str, *, released: bool = False, final: bool = False
    ) -> bool:
        checkpointer = self._checkpointer
        if checkpointer is None or self._collected is None:
            return False
        state, tensors = self._collected
        layout, copying = lay_out(tensors), copying_for(tensors.values())
        checkpointer.lay_out(layout.pieces, layout.size)
        copying.begin()
        checkpointer.save(
            step,
            lambda memory, filled: stage(tensors, layout, memory, filled, copying),
            {"step": step, "config": self._config, **state},
            trigger=trigger,
            released=released,
            final=final,
        )
        return True


def _take_all_apart(objects: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Each by itself: their tensors' names begin with the object's."""
    trees, tensors = {}, dict[str, Tensor]()
    for name, one in objects.items():
        trees[name], found = take_apart(one, name)
        tensors |= found
    return trees, tensors


def own_of(state: Mapping[str, Any], step: int, rank: int, size: int, *, any_ranks: bool) -> Any:
    """What the rank has of its own. Raises ValueError unless so many ranks saved it; with
    `any_ranks` none has anything, and each gets what the first one has."""
    saved = state["ranks"]
    if len(saved) == size:
        return saved[rank]
    if any_ranks:
        return saved[0]
    raise ValueError(
        f"the checkpoint of step {step} was saved by {len(saved)} ranks, and here are {size}: "
        "start as many, or a new job; any_ranks=True says that your program keeps its batch"
    )
