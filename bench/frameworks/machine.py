"""Run the programs: alone, and on machines that are taken away.

A machine is a folder and the processes that began in it; when it ends, both are gone, and the next
one has nothing but the job's store. The agent's end is the one of the tests (tests/trainer/rig.py);
the hook and the saver, or the agent's part that saves a folder, are the real ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.frameworks.environments import ROOT, Framework, preloaded, program_of
from bench.frameworks.preemptions import LATE, LATE_NOTICE_S, SIGTERM, STOP, Preemption
from bench.frameworks.programs.place import HELD, RESULT
from providers.local import process_tree
from providers.stores import open_store
from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.fixtures.forks import Nursery
from tests.fixtures.waiting import wait_until
from tests.trainer.rig import AgentEnd
from trainer.agent.run.prepare import hook_path
from trainer.directory.sync import DirectorySettings, DirectorySync
from trainer.fence import Fence

LIMIT_S = 240.0  # of one run, on a busy machine
SYNC_S = 0.1  # between two looks at a folder


class RunError(Exception):
    """A program did not end as it has to; the message has the end of its output."""


class Process(Protocol):
    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


@dataclass
class Runner:
    """Starts the programs of one framework with its Python.

    They are forked from a process that has imported the libraries; `fresh`: each in an interpreter
    of its own.
    """

    framework: Framework
    python: Path
    fresh: bool = False
    _nursery: Nursery | None = None

    def start(self, arguments: Sequence[str], env: Mapping[str, str], folder: Path) -> Process:
        folder.mkdir(parents=True, exist_ok=True)
        module, log = program_of(self.framework), folder / "out.log"
        if self.fresh:
            with log.open("ab") as file:
                return subprocess.Popen(
                    [str(self.python), "-m", module, *arguments],
                    cwd=folder,
                    env=dict(env),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        if self._nursery is None:
            threads = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "0"}
            modules = preloaded(self.framework)
            self._nursery = Nursery(modules, python=str(self.python), **threads)
        return self._nursery.fork(module, arguments, env, folder, log)

    def close(self) -> None:
        if self._nursery is not None:
            self._nursery.close()


@dataclass
class Machine:
    """One machine of a job: its folder, its agent, and its program."""

    runner: Runner
    settings: Path
    folder: Path
    store: Path
    generation: int
    every: int
    agent: AgentEnd = field(default_factory=AgentEnd)
    process: Process | None = None

    def start(self, preemption: Preemption | None) -> None:
        held = {}
        if preemption is not None:
            held = {"HELD_AT": preemption.at, "HELD_UNTIL": str(self.go_on)}
        env = _environment() | {
            "SPOTD_JOB_ID": "job",
            "SPOTD_GENERATION": str(self.generation),
            "SPOTD_TOKEN": f"token{self.generation}",
            "SPOTD_STORE_URL": self.store.as_uri(),
            "SPOTD_EVERY_STEPS": str(self.every),
            "SPOTD_PROGRESS_EVERY_S": "0",
            "SPOTD_SOCKET": self.agent.path,
            **held,
        }
        self.process = self.runner.start([str(self.settings)], env, self.folder)

    @property
    def go_on(self) -> Path:
        return self.folder / "go on"

    def preempt(self, preemption: Preemption) -> None:
        """Wait until the program is where its machine ends, and give notice or wait for the end.

        Raises RunError if the program ends otherwise.
        """
        assert self.process is not None
        wait_until("it is there, or has ended", self._is_held_or_ended, LIMIT_S)
        if self.process.poll() is not None:
            if self.process.poll() != EXIT_FINISHED:
                raise RunError(f"it ended before {preemption.at}: {self._describe()}")
            return  # what is left of the training does not come to this place
        begun = self.agent.wait("claimed").data["step"]
        if preemption.saved and preemption.step > begun + self.every:
            self.agent.wait("checkpoint", lambda data: data["step"] > begun)
        if preemption.notice:
            self._give_notice(preemption.notice)
            code = self.process.wait(LIMIT_S)
            if code not in (EXIT_RELEASED, EXIT_FINISHED):
                raise RunError(f"it ended after a notice at {preemption.at}: {self._describe()}")
        if preemption.delay_s:
            self.go_on.touch()
            time.sleep(preemption.delay_s)

    def _give_notice(self, notice: str) -> None:
        assert self.process is not None
        if notice == LATE:
            self.agent.tell(notice_s=LATE_NOTICE_S)
            return
        if notice == STOP:
            self.agent.tell(stop=True, reason="the machine goes", deadline_s=120.0)
        elif notice == SIGTERM:
            os.kill(self.process.pid, signal.SIGTERM)
        self.go_on.touch()

    def end(self) -> None:
        """Kill everything that runs here, and wipe the folder."""
        if self.process is not None and self.process.poll() is None:
            pids = process_tree.stop_tree(self.process.pid)
            process_tree.send(pids, signal.SIGKILL)
            self.process.wait(LIMIT_S)
        self.agent.wait_left()
        self.agent.close()
        shutil.rmtree(self.folder)

    def finish(self) -> dict[str, Any]:
        """Wait for the end of the program; return its result. Raises RunError."""
        assert self.process is not None
        if self.process.wait(LIMIT_S) != EXIT_FINISHED:
            raise RunError(f"it failed: {self._describe()}")
        return read_result(self.folder)

    def _is_held_or_ended(self) -> bool:
        assert self.process is not None
        return (self.folder / HELD).exists() or self.process.poll() is not None

    def _describe(self) -> str:
        assert self.process is not None
        output = (self.folder / "out.log").read_text(errors="replace")
        return f"exit code {self.process.poll()}; {output[-1500:]}"


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOOK": hook_path(),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "0",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def read_result(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / RESULT).read_text())
    return result


def run_alone(runner: Runner, settings: Path, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Run the program without spotd, undisturbed: return its result and the places it came to.

    Raises RunError.
    """
    places = folder / "places"
    env = _environment() | {"PLACES": str(places)}
    process = runner.start([str(settings), "--plain"], env, folder)
    code = process.wait(LIMIT_S)
    if code != EXIT_FINISHED:
        output = (folder / "out.log").read_text(errors="replace")
        raise RunError(f"alone it ended with exit code {code}; {output[-1500:]}")
    return read_result(folder), places.read_text().splitlines()


def run_preempted(
    runner: Runner, settings: Path, folder: Path, ends: Sequence[Preemption]
) -> tuple[dict[str, Any], dict[int, set[float]]]:
    """Run it on machines that end so, and on a last one that does not.

    Return its result, and each loss that the machines reported, by step. Raises RunError.
    """
    every = json.loads(settings.read_text())["every"]
    losses: dict[int, set[float]] = {}
    make: Callable[..., Machine] = FolderMachine if runner.framework.directory else Machine
    for generation, preemption in enumerate([*ends, None], start=1):
        place = folder / f"machine-{generation}"
        machine = make(runner, settings, place, folder / "store", generation, every)
        try:
            machine.start(preemption)
            if preemption is None:
                return machine.finish(), losses
            machine.preempt(preemption)
            if (place / RESULT).exists():  # it was through before the end came
                return read_result(place), losses
            for step, loss in machine.agent.losses().items():
                losses.setdefault(step, set()).add(loss)
        finally:
            machine.end()
    raise AssertionError("the last machine returns")


@dataclass
class FolderMachine(Machine):
    """A machine whose agent saves the folder of a program that knows nothing of spotd."""

    def start(self, preemption: Preemption | None) -> None:
        self._stop = threading.Event()
        fence = Fence(
            open_store(self.store.as_uri()), "job", self.generation, f"token{self.generation}"
        )
        self._fence = fence
        self._sync = DirectorySync(
            DirectorySettings(self.folder / "checkpoints", keep=3),
            lambda: fence,
            lambda _kind, _data: None,
        )
        self._sync.restore(fence.claim())
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        super().start(preemption)

    def preempt(self, preemption: Preemption) -> None:
        """As the agent does it: what the program left behind is saved after a notice alone."""
        assert self.process is not None
        wait_until("it is there, or has ended", self._is_held_or_ended, LIMIT_S)
        if self.process.poll() is not None:
            raise RunError(f"it ended before {preemption.at}: {self._describe()}")
        if preemption.saved and preemption.step > 4:
            wait_until("a save", self._has_saved, LIMIT_S)
        if preemption.notice:
            self._give_notice(preemption.notice)
            self.process.wait(LIMIT_S)
            self._end_sync(saves=True)
        elif preemption.delay_s:
            self.go_on.touch()
            time.sleep(preemption.delay_s)

    def end(self) -> None:
        self._end_sync(saves=False)
        super().end()

    def _has_saved(self) -> bool:
        return self._fence.head is not None and self._fence.head.current is not None

    def _follow(self) -> None:
        while not self._stop.wait(SYNC_S):
            self._sync.sync()

    def _end_sync(self, *, saves: bool) -> None:
        self._stop.set()
        self._thread.join()
        if saves:
            self._sync.finish()


@contextlib.contextmanager
def running(runner: Runner) -> Iterator[Runner]:
    try:
        yield runner
    finally:
        runner.close()
