"""Run a user's program for several generations of one job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from providers.stores import open_store
from tests.fixtures.forks import Fork, nursery
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.hook.holding import let_go
from tests.trainer.rig import ROOT, AgentEnd
from trainer.reference.compare import first_difference


@dataclass
class Program:
    """A user's program at `path` below the repository.

    `env` overrides what spotd would set. `modules` are imported once for all programs with the same
    list.
    """

    folder: Path
    path: str
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    started: list[Fork] = field(default_factory=list)

    def environment(self, generation: int, agent: AgentEnd | None = None) -> dict[str, str]:
        """What spotd would set, and ours."""
        store = (self.folder / "store").as_uri()
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SPOTD_JOB_ID": "job",
            "SPOTD_GENERATION": str(generation),
            "SPOTD_TOKEN": f"token{generation}",
            "SPOTD_STORE_URL": store,
            "SPOTD_EVERY_STEPS": "20",
            "SPOTD_PROGRESS_EVERY_S": "0",
            "SPOTD_SOCKET": agent.path if agent else "",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            **self.env,
        }

    def start(self, generation: int, agent: AgentEnd | None = None) -> Fork:
        env = self.environment(generation, agent)
        module, arguments = "tests.trainer.hook.program", [str(ROOT / self.path), *self.arguments]
        if self.ranks > 1:
            arguments, module = [str(self.ranks), module, *arguments], "tests.fixtures.ranks"
        self.folder.mkdir(exist_ok=True)
        pool = nursery(*self.modules)
        process = pool.fork(module, arguments, env, self.folder, self.folder / "out.log")
        self.started.append(process)
        return process

    def run(self, generation: int = 1, agent: AgentEnd | None = None) -> int:
        return self.start(generation, agent).wait(LIMIT_S)

    def output(self) -> str:
        return (self.folder / "out.log").read_text()

    def difference(self, other: Program) -> str | None:
        """Return the first difference between the newest states of two programs."""
        own_store, other_store = (
            open_store((program.folder / "store").as_uri()) for program in (self, other)
        )
        return first_difference(own_store, "job", other_store, "job")


def stop_held(process: Fork, agent: AgentEnd, hold: Path) -> int:
    """Stop generation 1, which waits for `hold`, by a notice; return its exit code."""
    agent.tell(stop=True, reason="the machine goes", deadline_s=120.0)
    let_go(hold, stopped=1)
    code = process.wait(LIMIT_S)
    agent.tell(stop=False, deadline_s=None)
    return code


def kill_held(process: Fork, hold: Path, *, pids: Iterable[int] = ()) -> None:
    """Kill a program that waits for `hold`, or its ranks `pids`, as a machine does that dies."""
    for pid in [*pids] or [process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait(LIMIT_S)
    let_go(hold)
