"""One training of a program: restore, agree after each step, save, exit.

Used by run.py, hf.py and lightning.py. Needs torch, Python >= 3.10.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from . import rng_state
from .constants import EXIT_ERROR, EXIT_FENCED, EXIT_FINISHED, EXIT_RELEASED
from .deadline import Action
from .deadline_guard import NOWHERE
from .engine import FoundCheckpoint
from .head_ownership import FINAL_GRACE_S
from .layout import lay_out, read_tensors, stage
from .memory_check import IMPORTED
from .program import Place, Program, TrainingOrderError
from .progress import Progress
from .ranks import Ranks
from .state_tree import flatten_state, unflatten_state
from .tensor_copy import blocking_copy_for

SAME_TRAININGS = (
    "all ranks of a program create the same trainings in the same order; give each a name that is "
    "the same on all ranks, Run(name=...)"
)
_FIXED_VALUES = 5  # before the planner's values: loss, stop, fenced, due, save requested


class NextAction(Enum):
    """The action after a step, the same for all ranks."""

    TRAIN = "train"
    SAVE = "save"
    LEAVE = "leave"
    FENCED = "fenced"


@dataclass(frozen=True)
class Resumed:
    """The restored state after `step` steps of the training.

    `shared` is common to all ranks, `per_rank` is this rank's. If `weights` is not None, only
    weights were restored, for a model that starts training. `ended`: the training has ended, and
    this is its result.
    """

    step: int
    shared: Any = None
    per_rank: Any = None
    weights: Mapping[str, Tensor] | None = None
    ended: bool = False


@dataclass(frozen=True)
class _OwnState:
    """A rank's own state, flattened, and its losses that are not reported yet, by step."""

    state: tuple[Any, dict[str, Tensor]]
    losses: Mapping[int, float]

    def copy(self) -> _OwnState:
        """Return it with tensors of its own."""
        tree, tensors = self.state
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        return _OwnState((tree, copies), self.losses)


class Session:
    """One training of one rank.

    `collect()` returns the state common to all ranks, of which rank 0's is saved; all ranks call it
    at the same time. `collect_own()` returns this rank's own. `name` tells the program's trainings
    apart; by default it is the number in the order of creation. A checkpoint made with another
    `config` is refused. The first one of a program is to be created in the main thread. Raises
    RuntimeError, ValueError, OSError if nothing could be saved.
    """

    def __init__(
        self,
        collect: Callable[[], Any],
        collect_own: Callable[[], Any],
        *,
        name: str = "",
        config: Mapping[str, Any] | None = None,
        any_ranks: bool = False,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self.program = program = Program.current(env)
        self.name = program.name_training(name)
        self._collect, self._collect_own = collect, collect_own
        self._config = dict(config or {})
        self._any_ranks = any_ranks
        self.ranks, self.stop, self.link = program.ranks, program.stop, program.link
        self.step = self._saved_step = 0  # of this training
        self._first_step = 0  # the job's step when it began
        self._ended = False
        self._saved_at_s = self._stepped_at_s = time.monotonic()
        self._collected: tuple[Any, dict[str, Tensor]] | None = None
        self._losses: dict[int, tuple[float | None, int, float]] = {}
        self.progress = Progress(
            self.link.send,
            every_s=program.job.progress_every_s,
            steps=0,
            disabled=self.ranks.rank > 0,
            per_node=self.ranks.per_node,
        )
        self._trigger, self._busy_s = "cadence", 0.0
        self.evaluating = False
        self.rng: dict[str, Any] | None = None  # while idle: the random generators' state
        self._ahead: Callable[[], tuple[float | None, int]] | None = None
        self.needs_all = False  # collecting the state of one rank takes work of the others
        self._place = NOWHERE
        self._kept: dict[int, _OwnState] = {}  # of a rank other than 0, by place
        self._kept_own: _OwnState | None = None  # the one to be saved

    # --- start

    def begin(self) -> Resumed | None:
        """Return the state to resume from; None for a training that begins.

        Ends the program if it must not train (SystemExit). Raises SaverError, ValueError for errors
        that waiting does not cure.
        """
        program = self.program
        program.report_ready()
        self.busy()
        program.save, program.session = self._save_collected, self
        self._agree_on_name()
        outcome: Place | int = EXIT_ERROR
        tensors: dict[str, Tensor] = {}

        def load(_: FoundCheckpoint, memory: memoryview) -> None:
            assert program.checkpointer is not None  # noqa: S101 - it restores
            tensors.update(read_tensors(program.checkpointer.pieces, memory))

        try:
            if self.ranks.rank:
                outcome = Place(0)
            else:
                outcome = program.begin_training(self.name, self._config, load)
        finally:
            description = self.ranks.broadcast(_describe(outcome))
        if isinstance(description, int):
            program.exit(description)
        self._first_step, self._ended, point = description
        resumed = None
        if point is not None:
            resumed = self._resume(
                point, self.ranks.broadcast_tensors(None if self.ranks.rank else tensors)
            )
        self._print_begin(resumed)
        self.reset_timers()
        return resumed

    def _agree_on_name(self) -> None:
        """Raise TrainingOrderError, on all ranks, unless all begin the same training."""
        rank = self.ranks.rank
        try:
            everyone = self.ranks.gather(self.name, {})
            names = self.ranks.broadcast([name for name, _ in everyone])
        except RuntimeError as error:  # raised by torch's backends
            raise TrainingOrderError(
                f"training {self.name!r} begins on rank {rank}, and another rank has ended without "
                f"it: {SAME_TRAININGS} ({error})"
            ) from error
        other = next((at for at, name in enumerate(names) if name != names[0]), None)
        if other is not None:
            self.ranks.maximum(other)  # each knows it before the first ends
            raise TrainingOrderError(
                f"training {names[0]!r} begins on rank 0, and training {names[other]!r} on rank "
                f"{other}: {SAME_TRAININGS}"
            )

    def reset_timers(self) -> None:
        """Start the times of the next step and of the next save now."""
        self._saved_at_s = self._stepped_at_s = time.monotonic()

    def expect_steps(self, total: int) -> None:
        """Set the number of steps of this training; 0 if it is not known.

        It is the job's total only if the program has no other training.
        """
        self.progress.steps = self._first_step + total if total else 0
        self.progress.at_least = self.program.may_train_again

    def _print_begin(self, resumed: Resumed | None) -> None:
        program = self.program
        if self.ranks.rank or (program.checkpointer is None and not program.managed):
            return
        where = "" if program.managed else f"; checkpoints are in {program.job.store_url}"
        message = f"continues after step {self.step}" if self.step else "begins"
        if self._ended:
            message = f"ended at step {self.step}; its results are restored"
        if resumed is not None and resumed.weights is not None:
            message += f" with {len(resumed.weights)} imported tensors"
        if self._first_step or self._ended or self.name != "1":
            message = f"training {self.name} {message}"
        print(f"spotd_hook: generation {program.job.generation} {message}{where}", flush=True)

    def _resume(self, point: Any, tensors: Mapping[str, Tensor]) -> Resumed:
        step, state = point
        if IMPORTED in state:
            return Resumed(0, weights=tensors)
        self.step = self._saved_step = step - self._first_step
        rank, size = self.ranks.rank, self.ranks.size
        per_rank = rank_state_of(state, self.step, rank, size, any_ranks=self._any_ranks)
        if state["threads"]:  # affects the last bits of parallel sums
            torch.set_num_threads(state["threads"])
        if state["torch"] != torch.__version__ and not self.ranks.rank:
            text = f"the checkpoint was made with torch {state['torch']}, and here it is"
            self.program.warn(f"{text} {torch.__version__}: results may differ in their last bits")
        shared = unflatten_state(state["shared"], tensors)
        return Resumed(self.step, shared, unflatten_state(per_rank, tensors), ended=self._ended)

    # --- each step

    def after_step(self, loss: float | None = None, tokens: int = 0) -> NextAction:
        """Count a finished step and return the action for all ranks; see `decide`."""
        self.count_step(loss, tokens)
        return self.decide()

    def count_step(self, loss: float | None = None, tokens: int = 0) -> None:
        """Count a step whose changes are made; what belongs to it may follow, as an evaluation."""
        self.step += 1
        now = time.monotonic()
        self._busy_s, self._stepped_at_s = now - self._stepped_at_s, now
        self._losses[self._job_step] = loss, tokens, self._busy_s
        self.link.set_step(self._job_step)

    @property
    def step_loss(self) -> float | None:
        """This rank's loss of the counted step, if it is not decided yet."""
        return self._losses.get(self._job_step, (None,))[0]

    def resume_step(self, loss: float | None) -> None:
        """Go back before the decision after the restored step: its evaluation is repeated."""
        self._losses[self._job_step] = loss, 0, 0.0

    def decide(self) -> NextAction:
        """Return the action after the counted step, the same for all ranks.

        With several ranks it is based on their values after the previous step.
        """
        checkpointer = self.program.checkpointer
        fenced = checkpointer is not None and checkpointer.fenced is not None
        passed_s = time.monotonic() - self._saved_at_s
        due = self.program.planner.is_due(self.step - self._saved_step, passed_s)
        save_requested = self.stop.take_save_requests()
        values = self.program.planner.rank_values(self.ranks.rank, self.ranks.size, self._busy_s)
        loss = self._losses[self._job_step][0]
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

    # --- between two steps

    def idle(
        self,
        *,
        ahead: Callable[[], tuple[float | None, int]] | None = None,
        rng: dict[str, Any] | None = None,
        keeps: bool = True,
    ) -> None:
        """From now on nothing changes that is saved, until `busy`: it may be saved at any moment.

        With `ahead` the step is done and not counted yet; it returns the step's loss and tokens.
        A rank other than 0 `keeps` its own state, for it may begin the next step and then wait for
        rank 0, which is idle still.
        """
        self._ahead = ahead
        self.rng = rng or rng_state.capture()
        step = self._job_step + (ahead is not None)
        self._place = 2 * step - (ahead is not None or self.evaluating)
        if self.ranks.rank and keeps:
            newest = [*self._kept.items()][-1:]
            self._kept = {**dict(newest), self._place: self._own_state().copy()}
        self.program.guard.idle()

    def busy(self) -> None:
        """From now on it changes."""
        self.program.guard.busy()
        self._place = NOWHERE
        self.rng, self._ahead = None, None

    @property
    def place(self) -> int:
        """The place at which this rank could be saved now; of two to a step, the odd one is before
        the decision after it.
        """
        return NOWHERE if self.needs_all and self.ranks.size > 1 else self._place

    def prepare(self, place: int, *, still: bool) -> bool:
        """Whether this rank can be saved as it was at `place`; see `deadline_guard.Guarded`."""
        self._kept_own = self._kept.get(place)
        return self._kept_own is not None or (still and self._place == place)

    def begin_evaluation(self, rng: dict[str, Any] | None = None) -> None:
        """An evaluation begins that belongs to the counted step. All ranks call it.

        `rng` is the state of the random generators before it; by default the present one.
        """
        self._finish_exchange()
        self.evaluating = True
        self.idle(rng=rng)

    def leaves_evaluation(self) -> bool:
        """Whether all ranks leave the evaluation now, as the machine ends. All ranks call it."""
        if not self.evaluating:
            return False
        planner = self.program.planner
        values = planner.rank_values(self.ranks.rank, self.ranks.size)
        sums = self.ranks.exchange([float(self.stop.stopping), *values])
        if sums is None:
            return False
        plan = planner.plan_for(sums[1:], self._job_step)
        return sums[0] > 0 or (plan is not None and plan.ends_training)

    def end_evaluation(self) -> None:
        """The evaluation has ended. All ranks call it."""
        self.ranks.finish_exchange()  # another rank may still evaluate: nothing changes here
        self.busy()
        self.evaluating = False
        self._stepped_at_s = time.monotonic()

    def _decide(self, sums: list[float]) -> NextAction:
        loss, stopping, fenced, save_due, save_requested = sums[:_FIXED_VALUES]
        values = sums[_FIXED_VALUES:]
        self._report_step(loss / self.ranks.size)
        if fenced:
            return NextAction.FENCED
        plan = self.program.planner.plan_for(values, self._job_step)
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
            self._save_collected(self._job_step, trigger or self._trigger)
        self._collected = None
        self._saved_step, self._saved_at_s = self.step, time.monotonic()
        self._stepped_at_s += self._saved_at_s - began_s
        self.progress.add_save_time(self._saved_at_s - began_s)

    # --- end

    def exit_saved(self) -> None:
        """Save if that fits, release HEAD, and end the program (SystemExit)."""
        rng = self.rng
        self.busy()
        self.program.guard.dismiss()
        self.rng = rng
        code = self.ranks.broadcast_exit_code(self._save_and_release())
        self.program.planner.wait_for_agent()
        self.program.exit(code)

    def leave(self) -> int:
        """Save if that fits, and release HEAD, from a thread of each rank; return the exit code.

        The main threads may be anywhere, and their group with them.
        """
        ranks, own = self.program.guard_ranks, self._kept_own or self._own_state()
        if self._ahead is not None:
            self.count_step(*self._ahead())
        sums = ranks.totals([value for _, value in sorted(own.losses.items())])
        for value in sums if not ranks.rank else ():
            self._report_step(value / ranks.size)
        self.progress.flush()
        self._gather_state(ranks, own.state, None if ranks.rank else self._collect())
        code = ranks.broadcast_exit_code(self._release_saved())
        self.program.planner.wait_for_agent()
        return code

    def _own_state(self) -> _OwnState:
        losses = {} if self.evaluating else {step: one[0] for step, one in self._losses.items()}
        if self._ahead is not None:
            losses[self._job_step + 1] = self._ahead()[0]
        unknown = math.nan
        return _OwnState(
            flatten_state(self._collect_own(), f"rank{self.ranks.rank}"),
            {step: unknown if loss is None else loss for step, loss in losses.items()},
        )

    def _save_and_release(self) -> int:
        self._finish_exchange()
        plan = self.program.planner.plan
        if plan is None or plan.action not in (Action.FINISH, Action.RELEASE):
            self._collect_state()
        return self._release_saved()

    def _release_saved(self) -> int:
        if self.program.head_ownership is None:
            return EXIT_RELEASED
        return self.program.head_ownership.save_and_release(self._job_step)

    def exit_fenced(self) -> None:
        """End the program: nothing more would be committed."""
        self._finish_exchange()
        if self.program.checkpointer is not None:
            print(self.program.checkpointer.fenced, file=sys.stderr, flush=True)
        self.program.exit(EXIT_FENCED)

    def finish(self) -> None:
        """Commit the results of the training; SystemExit if that fails.

        The job ends with the program, which may train again.
        """
        if self._ended:
            self.program.end_training(self.name, self._job_step)
            return
        self._finish_exchange()
        self.link.report_busy(FINAL_GRACE_S)  # no rank does another step
        self._collect_state()
        self._ended = True
        code: int | None = EXIT_FINISHED
        if self.program.head_ownership is not None:
            code = self.program.head_ownership.finish(self._job_step, final=False)
        code = self.ranks.broadcast_exit_code(EXIT_ERROR if code is None else code)
        if code != EXIT_FINISHED:
            self.program.exit(code)
        self._collected = None
        self.program.end_training(self.name, self._job_step)

    def fail(self) -> None:
        """Record that the training ended with an error; staged snapshots are saved nevertheless."""
        self.program.fail_training(self.name)

    # --- internal

    @property
    def _job_step(self) -> int:
        """Number of steps of the job: those of earlier trainings count too."""
        return self._first_step + self.step

    def _finish_exchange(self) -> None:
        """Wait for the running exchange between the ranks, and report all steps."""
        sums = self.ranks.finish_exchange()
        if sums is not None and not self.evaluating:
            self._report_step(sums[0] / self.ranks.size)
        self.progress.flush()

    def _collect_state(self) -> None:
        """Collect the state of all ranks on rank 0."""
        self._gather_state(self.ranks, self._own_state().state, self._collect())

    def _gather_state(self, ranks: Ranks, own: tuple[Any, dict[str, Tensor]], shared: Any) -> None:
        everyone = ranks.gather(*own)
        if self.program.checkpointer is None:
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
        checkpointer = self.program.checkpointer
        if checkpointer is None or self._collected is None:
            return False
        state, tensors = self._collected
        layout, tensor_copy = lay_out(tensors), blocking_copy_for(tensors.values())
        checkpointer.lay_out(layout.pieces, layout.size)
        tensor_copy.begin()
        checkpointer.save(
            step,
            lambda memory, filled: stage(tensors, layout, memory, filled, tensor_copy),
            {"step": step, "config": self._config, **self._history(), **state},
            trigger=trigger,
            released=released,
            final=final,
        )
        return True

    def _history(self) -> dict[str, Any]:
        """The part of a checkpoint that says which training of the program it is of."""
        return {
            "training": {
                "name": self.name,
                "first_step": self._first_step,
                "ended": self._ended,
            },
            "ended": [vars(one) for one in self.program.ended],
        }


def _describe(outcome: Place | int) -> Any:
    """Return what other ranks have to know, as JSON: the exit code, or place and state."""
    if isinstance(outcome, int):
        return outcome
    found = outcome.checkpoint
    point = None if found is None else [found.step, dict(found.state)]
    return [outcome.first_step, outcome.ended, point]


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
