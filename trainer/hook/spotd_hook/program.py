"""A training program as a whole: its connections, its right to HEAD, and its trainings in order.

A program may train several times, one after the other: folds, stages, several calls of `fit`. All
share one history of checkpoints, whose steps are counted on from one training to the next. A
program that starts again runs from its beginning: trainings that have ended get their results back
and do no step, and the one that was interrupted continues.

Needs torch, Python >= 3.10.
"""

from __future__ import annotations

import atexit
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

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
from .deadline_guard import DeadlineGuard
from .engine import FoundCheckpoint
from .head_ownership import HeadOwnership, StoppedError
from .job import Job
from .memory_check import check_config
from .ranks import Ranks
from .save_planner import SavePlanner
from .saver_client import CorruptError, FencedError, SaverError
from .saver_connect import SaverConnector
from .stop import StopRequests
from .tensor_copy import pin

Load = Callable[[FoundCheckpoint, memoryview], None]

RELEASE_S = 3.0  # to release HEAD and to disconnect
GUARD_TIMEOUT_S = 30 * 86_400.0  # a rank may hold Python's lock for long
SAVER_S = 2.0  # for our own saver to end; important saves were waited for before
BETWEEN_TRAININGS = -2  # a place; those of trainings count from 0
ENGINE = "spotd"
_UNREADABLE = "the checkpoint cannot be read yet"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


@dataclass(frozen=True)
class EndedTraining:
    """A training that has ended: the job's step at its end, and the checkpoint of its results.

    `ref` is how HEAD names that checkpoint.
    """

    name: str
    step: int
    ref: Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """The place of a training in the job: `first_step` is the job's step at its begin.

    `checkpoint` is what was restored; None for a training that begins.
    """

    first_step: int
    checkpoint: FoundCheckpoint | None = None
    ended: bool = False


class Leaving(Protocol):
    """A training that can be saved from another thread; see `deadline_guard.Guarded`."""

    @property
    def place(self) -> int:
        """The place at which this rank could be saved now."""
        ...

    def prepare(self, place: int, *, still: bool) -> bool:
        """Whether this rank can be saved as it was at `place`."""
        ...

    def leave(self) -> int:
        """Save if that fits, and release HEAD; return the exit code."""
        ...


class TrainingOrderError(ValueError):
    """It is not clear which training of the program a checkpoint belongs to."""


class Program:
    """The training program of one rank. `current()` returns the one of this process.

    Only rank 0 has a `checkpointer` and a `head_ownership`; without a saver, outside of spotd,
    nobody has.
    """

    _current: ClassVar[Program | None] = None

    def __init__(self, env: Mapping[str, str]) -> None:
        engine = env.get("SPOTD_ENGINE", ENGINE)
        if engine != ENGINE:
            raise RuntimeError(
                f"spotd_hook saves nothing in a job with engine: {engine}. Write this into its "
                "file: spotd: {checkpoint: {engine: spotd}}"
            )
        self.managed = bool(env.get("SPOTD_SOCKET") or env.get("SPOTD_STORE_URL"))
        self.job, self.ranks, self.stop = Job.from_env(env), Ranks.join(env), StopRequests()
        self.guard_ranks = Ranks.join(env, timeout_s=GUARD_TIMEOUT_S)
        if threading.current_thread() is threading.main_thread():
            self.stop.install()
        self.link = AgentClient.connect(env, self.ranks.rank)
        self.stop.listen(self.link)
        self.checkpointer: Checkpointer | None = None
        self._connector: SaverConnector | None = None
        if not self.ranks.rank:
            self._connector = SaverConnector(self.job, self.link, env)
            self.checkpointer = Checkpointer(
                self._connector.connect,
                job_id=self.job.job_id,
                generation=self.job.generation,
                report=self.link.send,
                group=RankGroup(pin=partial(pin, warn=self.warn)),
            )
        self.planner = SavePlanner(
            self.job, self.checkpointer, self.stop, self.link.send, reports=self.reports
        )
        self.head_ownership: HeadOwnership | None = None
        if self.checkpointer is not None:
            self.head_ownership = HeadOwnership(
                self.link, self.stop, self.checkpointer, self.planner, self._save
            )
        self.save: Callable[..., bool] = lambda *_args, **_labels: False  # of the active training
        self.session: Leaving | None = None  # of the active training
        several = self.ranks.size > 1
        self.guard = DeadlineGuard(self, rows=self.guard_ranks.rows if several else None)
        self.ended: list[EndedTraining] = []
        self.step = 0  # of the job, when the newest training began or ended
        self._names: list[str] = []  # of all trainings, in the order of creation
        self._has_named = False  # the program itself names a training
        self._active = self._failed = ""  # names of trainings
        self._newest: FoundCheckpoint | None = None  # that is still to be continued from
        self._reported_claim: tuple[int, str] | None = None
        self._ready = self._claimed = self._closed = False
        self._pid = os.getpid()
        atexit.register(self._at_exit)

    @classmethod
    def current(cls, env: Mapping[str, str] = os.environ) -> Program:
        """Return the program of this process; the first call connects it.

        Raises RuntimeError, ValueError, OSError if nothing could be saved.
        """
        if cls._current is None or not cls._current.is_usable:
            cls._current = cls(env)
        return cls._current

    @property
    def is_usable(self) -> bool:
        """Whether it is connected, and of this process and not of one that forked it."""
        return not self._closed and self._pid == os.getpid()

    @property
    def reports(self) -> bool:
        """Whether this rank reports to the agent of its machine."""
        return self.ranks.local_rank == 0

    def report_ready(self) -> None:
        """Report, at the first training, that the program is set up."""
        if self.reports and not self._ready:
            self.link.send(READY, {"prepared": "the program's own objects", "plans": True})
        self._ready = True
        self.guard.start()

    def warn(self, message: str) -> None:
        """Report a warning to the agent."""
        self.link.send(WARNING, {"text": message})

    def warn_user(self, message: str) -> None:
        """Warn once for all ranks: in the output, by the job's events and by an alert."""
        if not self.ranks.rank:
            print(f"spotd_hook: warning: {message}", file=sys.stderr, flush=True)
            self.link.send(WARNING, {"text": message, "alert": True})

    # --- trainings

    def name_training(self, name: str = "") -> str:
        """Return the name of a new training: `name`, or its number in the order of creation.

        Raises ValueError for a name that is in use or cannot be part of a file name.
        """
        chosen = name or str(len(self._names) + 1)
        if not _NAME.fullmatch(chosen):
            raise ValueError(
                f"name={chosen!r} is no name of a training: use letters, digits, dots, dashes and "
                "underscores, at most 40"
            )
        if chosen in self._names:
            raise ValueError(
                f"two trainings of this program are called {chosen!r}: give each a name of its "
                "own, the same in every run of the program"
            )
        self._names.append(chosen)
        self._has_named = self._has_named or bool(name)
        return chosen

    @property
    def may_train_again(self) -> bool:
        """Whether trainings may follow the newest: the program has several, or names them."""
        return self._has_named or len(self._names) > 1

    def begin_training(self, name: str, config: Mapping[str, Any], load: Load) -> Place | int:
        """On rank 0: restore the training, and return its place, or the exit code if it must not
        train.

        `load(checkpoint, memory)` takes the restored bytes. Raises TrainingOrderError, SaverError,
        ValueError for errors that waiting does not cure.
        """
        self._check_order(name)
        self._active = name
        ownership, checkpointer = self.head_ownership, self.checkpointer
        if ownership is None or checkpointer is None:
            return Place(self.step)
        try:
            if not self._claimed:
                if ownership.claim()["final"]:
                    print(f"job {self.job.job_id} is finished: nothing to do", flush=True)
                    return EXIT_FINISHED
                self._claimed = True
                find = partial(checkpointer.find_checkpoint, None)
                self._set_newest(ownership.retry_while_away(find, _UNREADABLE))
            restore = partial(self._restore, checkpointer, name, config, load)
            return ownership.retry_while_away(restore, _UNREADABLE)
        except StoppedError:
            return ownership.release() if checkpointer.claimed else EXIT_RELEASED
        except FencedError as error:
            print(error, file=sys.stderr, flush=True)
            return EXIT_FENCED
        except OSError as error:
            if self.managed:
                raise
            self._continue_without_saver(error)
            return Place(self.step)

    def end_training(self, name: str, step: int) -> None:
        """Record that a training has ended, whose last checkpoint is committed.

        The program may train again, or do something else without steps.
        """
        self._active, self.step = "", max(step, self.step)
        ref = self.checkpointer.newest_ref if self.checkpointer is not None else None
        if ref is not None and name not in [one.name for one in self.ended]:
            self.ended.append(EndedTraining(name, step, ref))
        self.session = None
        self.link.report_idle()
        self.guard.idle()

    def fail_training(self, name: str) -> None:
        """Record that a training has ended with an error: no other may follow it."""
        self.guard.stand_aside()
        self._active, self._failed = "", name

    def _check_order(self, name: str) -> None:
        """Raises TrainingOrderError unless the trainings follow one another."""
        if self._active:
            raise TrainingOrderError(
                f"training {name!r} begins before training {self._active!r} has ended: spotd_hook "
                "saves one at a time; give all objects to one Run, or use one after the other"
            )
        if self._failed:
            raise TrainingOrderError(
                f"training {name!r} cannot begin: training {self._failed!r} of this program ended "
                "with an error, and would be repeated on the next machine"
            )

    def _set_newest(self, newest: FoundCheckpoint | None) -> None:
        """Set the checkpoint that this program continues from; commits follow it."""
        self._newest, self.ended = newest, _ended_in(newest)
        if newest is not None:
            assert self.checkpointer is not None  # noqa: S101 - it found the checkpoint
            self.checkpointer.confirm_resume()

    def _restore(
        self, checkpointer: Checkpointer, name: str, config: Mapping[str, Any], load: Load
    ) -> Place:
        while True:
            place = self._place_of(checkpointer, name)
            if place.checkpoint is None:
                self._report_claim(0.0)
                self.step, self._newest = place.first_step, None
                return place
            check_config(place.checkpoint.state, place.checkpoint.step, config)
            began_s = time.perf_counter()
            try:
                load(place.checkpoint, checkpointer.fetch_all(place.checkpoint))
            except CorruptError as error:
                if place.checkpoint is not self._newest:
                    text = f"the results of training {name!r} cannot be restored: {error}"
                    raise SaverError("CorruptError", text) from None
                self._set_newest(checkpointer.skip(str(error)))
                continue
            self._report_claim(time.perf_counter() - began_s)
            self.step = max(self.step, place.checkpoint.step)
            if place.checkpoint is self._newest:
                self._newest = None  # what follows it is new
            return place

    def _place_of(self, checkpointer: Checkpointer, name: str) -> Place:
        """Return where a training stands. Raises TrainingOrderError."""
        newest = self._newest
        known = next((one for one in self.ended if one.name == name), None)
        if known is not None:
            is_newest = newest is not None and newest.ref == known.ref
            checkpoint = newest if is_newest else checkpointer.find_by_ref(known.ref)
            assert checkpoint is not None  # noqa: S101 - both branches have one
            return Place(_training_in(checkpoint, name)["first_step"], checkpoint, ended=True)
        if newest is None:
            return Place(self.step)
        training = _training_in(newest, name)
        if training["ended"]:
            return Place(newest.step)
        if training["name"] != name:
            raise TrainingOrderError(
                f"the job's newest checkpoint is of training {training['name']!r}, which has not "
                f"ended, and this program begins with training {name!r}: give each training a "
                "name that is the same in every run of the program, Run(name=...), and begin them "
                "in the same order; or start a new job"
            )
        return Place(training["first_step"], newest)

    def _report_claim(self, took_s: float) -> None:
        """Report where the job continues: once, and again if a checkpoint turns out damaged."""
        newest = self._newest
        claim = (newest.step, newest.ref["manifest"]) if newest else (self.step, "")
        if self._reported_claim is not None and (newest is None or claim == self._reported_claim):
            return
        self._reported_claim = claim
        restore_s = round(took_s, 6)
        self.link.send(CLAIMED, {"step": claim[0], "manifest": claim[1], "restore_s": restore_s})

    def _continue_without_saver(self, error: OSError) -> None:
        """Train without saving: outside of spotd, and no saver can be started."""
        print(
            f"spotd_hook: nothing is saved: {error}. It runs under spotd, or where spotd is "
            "installed",
            file=sys.stderr,
            flush=True,
        )
        self.checkpointer = self.head_ownership = None
        self.planner = SavePlanner(self.job, None, self.stop, self.link.send)

    # --- end

    def stops_in_s(self) -> float | None:
        """Seconds until the machine ends or the process is killed; see `deadline_guard`."""
        remaining_s = self.planner.known_remaining_s()
        if remaining_s is None and self.stop.stopping:
            return math.inf
        return remaining_s

    def needed_s(self) -> float:
        """Seconds that saving and releasing HEAD take."""
        return RELEASE_S if self.session is None else self.planner.last_save_s()

    def place(self) -> int:
        """The place at which this rank could be saved now; between two trainings nothing is."""
        return BETWEEN_TRAININGS if self.session is None else self.session.place

    def prepare(self, place: int, *, still: bool) -> bool:
        """Whether this rank can be saved as it was at `place`."""
        session = self.session
        if session is None:
            return still and place == BETWEEN_TRAININGS
        return session.prepare(place, still=still)

    def leave(self, *, saves: bool) -> int:
        """Save if there is a training that can be saved here, release HEAD, and disconnect."""
        code = EXIT_RELEASED
        if saves and self.session is not None:
            code = self.session.leave()
        elif self.head_ownership is not None and self._claimed:
            code = self.head_ownership.release()
        self.close(code)
        return code

    def _save(self, *args: Any, **labels: Any) -> bool:
        return self.save(*args, **labels)

    def exit(self, code: int) -> None:
        """End the program with this exit code (SystemExit)."""
        self.close(code)
        raise SystemExit(code)

    def close(self, code: int) -> None:
        """Report the exit code and disconnect; staged snapshots are saved nevertheless."""
        if self._closed:
            return
        self._closed = True
        self.guard.dismiss()
        self._finish_job(code)
        if self.checkpointer is not None:
            self.checkpointer.close()
        if self._connector is not None:
            self._connector.close(SAVER_S)
        self.link.close(exit_code=code)

    def _finish_job(self, code: int) -> None:
        """Record the job's end, if the agent has no saver that does it once the program ended."""
        own_saver = self._connector is not None and self._connector.pid
        if code != EXIT_FINISHED or not (self.managed and own_saver and self.checkpointer):
            return
        try:
            self.checkpointer.finish_job()
        except (SaverError, OSError) as error:
            self.warn(f"the end of the job is not recorded: {error}")

    def _at_exit(self) -> None:
        """Close when Python ends; a process that was forked from this one leaves it alone."""
        if self._pid == os.getpid():
            failed = self._active or self._failed or getattr(sys, "last_value", None) is not None
            self.close(EXIT_ERROR if failed else EXIT_FINISHED)


def _training_in(checkpoint: FoundCheckpoint, name: str) -> Mapping[str, Any]:
    """Return the training that a checkpoint is of; of an older version's, the one that asks."""
    unnamed = {"name": name, "first_step": 0, "ended": False}
    training: Mapping[str, Any] = checkpoint.state.get("training", unnamed)
    return training


def _ended_in(checkpoint: FoundCheckpoint | None) -> list[EndedTraining]:
    """Return the trainings that had ended when this checkpoint was made, its own included."""
    if checkpoint is None:
        return []
    ended = [EndedTraining(**one) for one in checkpoint.state.get("ended", ())]
    training = _training_in(checkpoint, "")
    if training["ended"]:
        ended.append(EndedTraining(training["name"], checkpoint.step, checkpoint.ref))
    return ended
