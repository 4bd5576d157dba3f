"""Lightning's Trainer with spotd's callback: examples/lightning, interrupted within an epoch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.fixtures.forks import TORCH
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.hook.rig import Program
from tests.trainer.rig import AgentEnd

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="pip install '.[examples]'")

MODULES = (*TORCH, "lightning")
EXAMPLE = "examples/lightning/train.py"
STEPS = 60


@pytest.mark.soak
def test_a_run_that_was_interrupted_ends_in_the_same_bits(tmp_path: Path) -> None:
    arguments = ("--epochs", "3")
    whole = Program(tmp_path / "whole", EXAMPLE, arguments, modules=MODULES)
    with AgentEnd() as agent:
        assert whole.run(1, agent) == EXIT_FINISHED, whole.output()
        losses = agent.losses()
    assert sorted(losses) == list(range(1, STEPS + 1))
    program = Program(tmp_path / "parts", EXAMPLE, arguments, modules=MODULES)
    with AgentEnd() as agent:
        first = program.start(1, agent)
        agent.wait("progress", lambda data: data["to_step"] >= 5)
        agent.tell(stop=True, reason="the machine goes", deadline_s=20.0)
        assert first.wait(LIMIT_S) == EXIT_RELEASED, program.output()
        assert 5 <= agent.wait("released").data["step"] < STEPS
        agent.tell(stop=False, deadline_s=None)
        assert program.run(2, agent) == EXIT_FINISHED, program.output()
        assert program.difference(whole) is None
        assert agent.losses() == losses
