"""A training that is interrupted, beside the same one that is not: both leave the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.hook.rig import Program
from tests.trainer.rig import AgentEnd


@dataclass(frozen=True)
class Interruption:
    """The machine ends in the step after `left_at`, on another `held` step with `every` steps.

    With a `notice` it is left there, else killed.
    """

    left_at: int
    notice: bool = False
    every: int = 4


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]


def play(program: Program, agent: AgentEnd, interruption: Interruption) -> None:
    """Run it on a machine that ends, and then on another one, which has no files of the first."""
    hold, env = program.folder.with_name("go on"), dict(program.env)
    program.env = {
        **env,
        "HELD_IN": f"step {interruption.left_at}",
        "HELD_UNTIL": str(hold),
        "SPOTD_EVERY_STEPS": str(interruption.every),
    }
    process = program.start(1, agent)
    at = interruption.left_at
    agent.wait("progress", lambda data: data["to_step"] >= at)
    if interruption.notice:
        agent.tell(stop=True, reason="the machine goes", deadline_s=120.0)
        hold.touch()
        assert process.wait(LIMIT_S) == EXIT_RELEASED, program.output()
        agent.tell(stop=False, deadline_s=None)
    else:
        agent.wait("checkpoint", lambda data: data["step"] > at - interruption.every)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(LIMIT_S)
        hold.touch()
    agent.wait_left()
    for path in program.folder.glob("root-*"):
        shutil.rmtree(path)
    shutil.rmtree(program.folder / "out", ignore_errors=True)
    program.env = env
    assert program.run(2, agent) == EXIT_FINISHED, program.output()


def assert_same(
    folder: Path,
    agent: AgentEnd,
    program: tuple[str, Sequence[str], tuple[str, ...]],
    interruption: Interruption,
    env: dict[str, str] | None = None,
) -> tuple[Program, Program]:
    """Compare what is left; `program` is a path, its arguments, and the modules to load before."""
    path, arguments, modules = program
    whole = Program(folder / "whole", path, (*arguments, "--plain"), 1, env or {}, modules)
    assert whole.run() == EXIT_FINISHED, whole.output()
    parts = Program(folder / "parts", path, tuple(arguments), 1, env or {}, modules)
    play(parts, agent, interruption)
    assert results(parts.folder) == results(whole.folder)
    return whole, parts
