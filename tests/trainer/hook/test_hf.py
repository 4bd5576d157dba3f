"""transformers' Trainer with spotd's callback.

examples/transformers on one process, and with adapters on two sharded ranks. The library is
imported once for all tests.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from spotd.spec.checkpoint_every import parse_every
from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.fixtures.forks import TORCH
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.hook.rig import Program
from tests.trainer.rig import AgentEnd

# Looked for, not loaded: what plays here is loaded once, where it is forked from.
pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="pip install '.[examples]'"
)

MODULES = (
    *TORCH,
    "peft",
    "transformers.trainer",
    "transformers.models.gpt2.modeling_gpt2",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.launcher.api",
    "accelerate.utils.fsdp_utils",
)
# Before 1.15 the trainer's own resume takes the rows of an epoch in another order, and FSDP2 is set
# up on GPUs alone.
needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None
    or [int(part) for part in version("accelerate").split(".")[:2]] < [1, 15],
    reason="accelerate before 1.15",
)
EXAMPLE = "examples/transformers/train.py"
SHARDED = "tests/trainer/hook/sharded.py"
EPOCHS = "tests/trainer/hook/epochs.py"
STEPS = 30  # more than an epoch


@pytest.mark.behaviour("FSDP2 with LoRA adapters on two ranks", way="transformers")
@pytest.mark.parametrize(
    ("path", "ranks", "more"),
    [
        pytest.param(EXAMPLE, 1, (), marks=pytest.mark.soak),
        pytest.param(SHARDED, 2, ("--lora", "--fsdp"), marks=needs_accelerate),
    ],
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
        first.wait(LIMIT_S)
        codes = {data["code"] for data in agent.of("exit") if data["rank"] >= 0}
        assert codes == {EXIT_RELEASED}, program.output()
        assert 5 <= agent.wait("released").data["step"] < STEPS
        agent.tell(stop=False, deadline_s=None)
        assert program.run(2, agent) == EXIT_FINISHED, program.output()
        assert program.difference(whole) is None
        assert agent.losses() == losses
        assert not list((tmp_path / "parts" / "out").glob("checkpoint-*")), "the trainer's own"


@pytest.mark.behaviour(
    "saves that the arguments ask for (save_strategy=epoch), without a notice",
    way="transformers",
)
@pytest.mark.req("CKP-22")
def test_it_saves_by_the_hour_and_at_the_end_of_each_epoch(tmp_path: Path) -> None:
    """256 rows in batches of 8 are 32 steps; the hourly interval alone would save nothing.

    Killed in the second epoch, the program resumes from the end of the first.
    """
    every, until = parse_every("hourly"), tmp_path / "go on"
    assert (every.steps, every.seconds) == (0, 3600.0)
    by_time = {"SPOTD_EVERY_STEPS": "0", "SPOTD_EVERY_S": str(every.seconds)}
    env = {"HF_HUB_OFFLINE": "1", "HELD_AFTER": "36", "HELD_UNTIL": str(until), **by_time}
    program = Program(tmp_path / "run", EPOCHS, ("--steps", "80"), 1, env, MODULES)
    with AgentEnd() as agent:
        first = program.start(1, agent)
        agent.wait("checkpoint")
        agent.wait("progress", lambda data: data["to_step"] >= 35)
        first.kill()
        first.wait(LIMIT_S)
        agent.wait_left()
        assert [save["step"] for save in agent.of("checkpoint")] == [32]
        losses = agent.losses()
    program.env = {**env, "HELD_AFTER": "70"}
    with AgentEnd() as agent:
        second = program.start(2, agent)
        assert agent.wait("claimed").data["step"] == 32
        agent.wait("checkpoint")
        until.touch()
        assert second.wait(LIMIT_S) == EXIT_FINISHED, program.output()
        saves = [save["step"] for save in agent.of("checkpoint") if not save["final"]]
        assert saves == [64, 80]
        again = agent.losses()
    repeated = sorted(losses.keys() & again.keys())
    assert repeated[:3] == [33, 34, 35]
    assert [losses[step] for step in repeated] == [again[step] for step in repeated]
