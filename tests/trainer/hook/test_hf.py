"""transformers' Trainer with spotd's callback: examples/transformers, by itself, and with adapters
on two sharded ranks. The library is imported once for all of it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.rigs.forks import TORCH
from tests.trainer.hook.rig import Program
from tests.trainer.rig import AgentEnd

# Looked for, not loaded: what plays here is loaded once, where it is forked from.
pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="pip install 'spotd[examples]'"
)

MODULES = (
    *(*TORCH, "peft", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2"),
    *("torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"),
    *("torch.distributed.launcher.api", "accelerate.utils.fsdp_utils"),
)
EXAMPLE = "examples/transformers/train.py"
SHARDED = "tests/trainer/hook/sharded.py"
STEPS = 30  # more than an epoch


@pytest.mark.parametrize(
    ("path", "ranks", "more"),
    [pytest.param(EXAMPLE, 1, (), marks=pytest.mark.soak), (SHARDED, 2, ("--lora", "--fsdp"))],
)
def test_a_run_that_was_interrupted_ends_in_the_same_bits(
    tmp_path: Path, path: str, ranks: int, more: tuple[str, ...]
) -> None:
    arguments = ("--steps", str(STEPS), *more)
    env = {"HF_HUB_OFFLINE": "1"}
    whole = Program(tmp_path / "whole", path, arguments, ranks, env, MODULES)
    with AgentEnd() as agent:
        assert whole.run(1, agent) == EXIT_FINISHED, whole.output()
        losses = agent.losses()
    assert sorted(losses) == list(range(1, STEPS + 1))
    program = Program(tmp_path / "parts", path, arguments, ranks, env, MODULES)
    with AgentEnd() as agent:
        first = program.start(1, agent)
        agent.wait("progress", lambda data: data["to_step"] >= 5)
        agent.tell(stop=True, reason="the machine goes", deadline_s=20.0)
        first.wait(40)
        codes = {data["code"] for data in agent.of("exit") if data["rank"] >= 0}
        assert codes == {EXIT_RELEASED}, program.output()
        assert 5 <= agent.wait("released").data["step"] < STEPS
        agent.tell(stop=False, deadline_s=None)
        assert program.run(2, agent) == EXIT_FINISHED, program.output()
        assert program.difference(whole) is None
        assert agent.losses() == losses
        assert not list((tmp_path / "parts" / "out").glob("checkpoint-*")), "the trainer's own"
