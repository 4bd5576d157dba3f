"""Real training in which gradients are NaN: nothing of it is kept, and the job goes on or gives
up."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from providers.stores import open_store
from providers.stores.base import NotFoundError
from spotd.wire import EXIT_DIVERGED, EXIT_FINISHED, Head
from tests.trainer.rig import AgentEnd, Trainer
from trainer.fence import read_head
from trainer.reference.model import Shape, make_model
from trainer.reference.state import TrainState
from trainer.saver.reader import read_manifest

STEPS = 30


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    made = Trainer(tmp_path, steps=STEPS, module="tests.trainer.poisoned")
    try:
        yield made
    finally:
        made.end()


def run(trainer: Trainer, poison: str, agent: AgentEnd) -> int:
    trainer.env = {"POISON": poison}
    return trainer.run(1, agent)


def head_of(trainer: Trainer) -> Head:
    entry = read_head(open_store(trainer.store_url), trainer.job_id)
    assert entry is not None
    return entry[0]


def saved_numbers(trainer: Trainer) -> Iterator[float]:
    """All tensors of all checkpoints that HEAD lists."""
    store, head = open_store(trainer.store_url), head_of(trainer)
    assert head.current is not None
    for ref in [head.current, *head.previous]:
        try:
            manifest = read_manifest(store, ref)
        except NotFoundError:
            return
        for shard in manifest.shards:
            data, _ = store.get(shard.key)
            yield from (number for (number,) in struct.iter_unpack("<f", data))


def test_one_batch_that_gives_no_number_is_passed_over(trainer: Trainer) -> None:
    with AgentEnd() as agent:
        assert run(trainer, "0:12-12", agent) == EXIT_FINISHED, trainer.output()
        texts = [data["text"] for data in agent.of("warning")]
        assert [text for text in texts if "gradient of step 12" in text]
        assert agent.of("rolled_back") == []
        assert sorted(agent.losses()) == list(range(1, STEPS + 1))
        assert all(math.isfinite(loss) for loss in agent.losses().values())
    assert head_of(trainer).final
    assert all(math.isfinite(number) for number in saved_numbers(trainer))


@pytest.mark.parametrize(("ranks", "poison"), [(1, "0:17-19"), (2, "1:17-19")])
def test_several_in_a_row_take_it_back_to_the_last_checkpoint(
    trainer: Trainer, ranks: int, poison: str
) -> None:
    trainer.ranks = ranks
    with AgentEnd() as agent:
        assert run(trainer, poison, agent) == EXIT_FINISHED, trainer.output()
        assert agent.of("rolled_back") == [{"step": 15, "from_step": 19}]
        assert sorted(agent.losses()) == list(range(1, STEPS + 1)), "no batch is trained twice"
        assert agent.of("checkpoint")[-1]["final"]
    head = head_of(trainer)
    assert head.final
    assert all(math.isfinite(number) for number in saved_numbers(trainer))


def test_what_does_not_help_twice_ends_it_and_head_is_a_good_one(trainer: Trainer) -> None:
    with AgentEnd() as agent:
        assert run(trainer, "0:17-1000", agent) not in (EXIT_FINISHED, EXIT_DIVERGED)
        first, second = (data["step"] for data in agent.of("rolled_back"))
        assert second < first <= 15, (
            "further back; a save that is under way keeps the next one away"
        )
        assert [data["code"] for data in agent.of("exit")] == [EXIT_DIVERGED]
    assert "diverged" in trainer.output()
    head = head_of(trainer)
    assert not head.final
    assert all(math.isfinite(number) for number in saved_numbers(trainer))


def test_without_a_checkpoint_there_is_nothing_to_go_back_to(trainer: Trainer) -> None:
    with AgentEnd() as agent:
        run(trainer, "0:1-1000", agent)
        assert agent.of("rolled_back") == []
        assert [data["code"] for data in agent.of("exit")] == [EXIT_DIVERGED]
    assert head_of(trainer).current is None


def test_weights_that_are_no_numbers_are_never_saved(trainer: Trainer) -> None:
    """Finite gradients with a rate of learning beyond all reason."""
    plain = replace(trainer, module="trainer.train", arguments=("--lr", "1e38"))
    with AgentEnd() as agent:
        assert plain.run(1, agent) != EXIT_FINISHED
        assert [data["code"] for data in agent.of("exit")] == [EXIT_DIVERGED]
    head = head_of(trainer)
    assert head.current is None or all(math.isfinite(number) for number in saved_numbers(trainer))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_no_step_is_made_of_what_is_no_number(poison: float) -> None:
    state = TrainState(make_model(Shape(1, 2, 16, 16, 0.0), 1), torch.device("cpu"))
    state.grads.fill_(0.5)
    assert state.update(1e-3, 0)
    before = [flat.clone() for flat in state.flat_tensors()]
    state.grads.fill_(0.5)
    state.grads[3] = poison
    assert not state.update(1e-3, 1)
    assert all(torch.equal(was, now) for was, now in zip(before, state.flat_tensors(), strict=True))
    assert not state.grads.any(), "nothing of it is left for the next step"
    assert state.is_finite()
    state.square[5] = poison
    assert not state.is_finite()
