"""An evaluation of a loop of one's own that the machine's end interrupts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.hook.rig import Program
from tests.trainer.rig import AgentEnd

EVALUATED = "tests/trainer/hook/evaluated.py"


def result(program: Program) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((program.folder / "result.json").read_text())
    return found


@pytest.mark.parametrize("step", [6, 12])
def test_at_the_start_of_a_step_it_is_repeated(tmp_path: Path, step: int) -> None:
    """Its result counts: the learning rate follows it. Step 12 is the evaluation at the end."""
    env = {"SPOTD_EVERY_STEPS": "1000"}
    whole = Program(tmp_path / "whole", EVALUATED, env=env)
    assert whole.run() == EXIT_FINISHED, whole.output()
    go_on = tmp_path / "go on"
    held = {**env, "HELD_AT": str(step), "HELD_UNTIL": str(go_on)}
    program = Program(tmp_path / "parts", EVALUATED, env=held)
    with AgentEnd() as agent:
        process = program.start(1, agent)
        wait_until("it is held", (program.folder / "held").exists)
        agent.tell(notice_s=8.0)
        assert process.wait(LIMIT_S) == EXIT_RELEASED, program.output()
        assert agent.wait("released").data["step"] == step
        go_on.touch()
        agent.tell(notice_s=None)
        agent.wait_left()
        assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert result(program) == result(whole)
