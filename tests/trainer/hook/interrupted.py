"""A training that is interrupted, beside the same one that is not: both leave the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.trainer.hook.rig import Program, kill_held, stop_held
from tests.trainer.rig import AgentEnd


@dataclass(frozen=True)
class Interruption:
    """The machine ends after step `left_at`, with a `notice` or without; saves are each `every`.

    The program is `held_in` that step.

    With the `same_disk` the next machine has the files of the first. The trainer began after
    `before` steps that are not of this job.
    """

    left_at: int
    notice: bool = False
    every: int = 4
    same_disk: bool = False
    before: int = 0
    held_in: str = "step"


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]


def to_another_machine(program: Program) -> None:
    """Remove what the trainers wrote."""
    for path in [*program.folder.glob("root-*"), *program.folder.glob("out*")]:
        if path.is_dir():
            shutil.rmtree(path)


def play(
    program: Program,
    agent: AgentEnd,
    interruption: Interruption,
    *,
    then: tuple[str, ...] | None = None,
    code: int = EXIT_FINISHED,
) -> None:
    """Run it on a machine that ends, and on another one, with other arguments if there are any."""
    hold, env = program.folder.with_name("go on"), dict(program.env)
    program.env = {
        **env,
        "HELD_IN": f"{interruption.held_in} {interruption.left_at}",
        "HELD_UNTIL": str(hold),
        "SPOTD_EVERY_STEPS": str(interruption.every),
    }
    process = program.start(1, agent)
    at = interruption.left_at - interruption.before
    at -= program.ranks > 1  # a step is reported during the one after it
    agent.wait("progress", lambda data: data["to_step"] >= at)
    if interruption.notice:
        ended = stop_held(process, agent, hold)
        codes = {data["code"] for data in agent.of("exit") if data["rank"] >= 0}
        assert (codes if program.ranks > 1 else {ended}) == {EXIT_RELEASED}, program.output()
    else:
        agent.wait("checkpoint", lambda data: data["step"] > at - interruption.every)
        kill_held(process, hold)
    agent.wait_left()
    program.env = env
    if not interruption.same_disk:
        to_another_machine(program)
    program.arguments = program.arguments if then is None else then
    assert program.run(2, agent) == code, program.output()


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
