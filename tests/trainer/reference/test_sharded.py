"""FSDP2 under torchrun's own agent: each rank saves its shards, and any number of ranks goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from providers.stores import open_store
from spotd.wire import parse_manifest
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.rig import AgentEnd, Trainer
from trainer.saver.reader import read_stream
from trainer.saver.tensors import assemble

STEPS = 24


def trainer_of(folder: Path, ranks: int, *arguments: str) -> Trainer:
    folder.mkdir(exist_ok=True)
    return Trainer(
        folder,
        steps=STEPS,
        every_steps=100,
        ranks=ranks,
        arguments=("--shard", *arguments),
        modules=("trainer.reference.sharded", "torch._dynamo", "torch.distributed.launcher.api"),
    )


def straight(folder: Path, ranks: int, *arguments: str) -> tuple[Trainer, dict[int, float]]:
    """The job left alone, and its losses by step."""
    trainer = trainer_of(folder, ranks, *arguments)
    with AgentEnd() as agent:
        assert trainer.run(1, agent) == 0, trainer.output()
        return trainer, agent.losses()


def run_for_a_while(trainer: Trainer, generation: int) -> dict[int, float]:
    """Until its machine is to go, which is soon; the losses by step."""
    with AgentEnd() as agent:
        process = trainer.held(4 * generation).start(generation, agent)
        agent.wait("progress")
        agent.tell(stop=True, deadline_s=20.0, reason="preempted")
        # The exit code of torchrun, whatever the exit codes of its ranks.
        assert process.wait(LIMIT_S) == 1, trainer.output()
        losses = agent.losses()
    head = head_of(trainer)
    assert head["released"]
    assert head["current"]["step"] == max(losses) < STEPS
    return losses


def head_of(trainer: Trainer) -> dict[str, Any]:
    text = (trainer.folder / "store" / "jobs" / "job" / "HEAD").read_text()
    head: dict[str, Any] = json.loads(text)["head"]
    return head


def damage(trainer: Trainer) -> None:
    """What the last rank has in the newest checkpoint cannot be used."""
    folder = trainer.folder / "store" / Path(head_of(trainer)["current"]["manifest"]).parent
    shard = max(folder.glob("r*"))
    shard.write_bytes(bytes(shard.stat().st_size))


def final_tensors(trainer: Trainer) -> dict[str, torch.Tensor]:
    head, store = head_of(trainer), open_store(trainer.store_url, {})
    assert (head["current"]["step"], head["final"]) == (STEPS, True)
    manifest = parse_manifest(store.get(head["current"]["manifest"])[0])
    assert manifest.world_size == len(manifest.streams) == trainer.ranks
    streams = [read_stream(store, manifest, number) for number in range(trainer.ranks)]
    return {
        tensor.name: torch.frombuffer(assemble(tensor, streams), dtype=torch.float32)
        for tensor in manifest.tensors
    }


def weights_of(trainer: Trainer) -> torch.Tensor:
    """All in one: a key's bias has a gradient of rounding alone, of which AdamW makes much."""
    tensors = final_tensors(trainer)
    return torch.cat(
        [tensor for name, tensor in sorted(tensors.items()) if name.startswith("model.")]
    )


@pytest.mark.req("CKP-26")
def test_virtual_ranks_come_to_the_same_bits_on_any_number_of_ranks(tmp_path: Path) -> None:
    alone, _ = straight(tmp_path / "alone", 2, "--virtual-ranks", "4")
    trainer = trainer_of(tmp_path / "changing", 4, "--virtual-ranks", "4")
    ends = []
    ahead = (*trainer.arguments, "--workers", "2")
    for generation, ranks in enumerate((4, 2, 4), start=1):
        arguments = trainer.arguments if generation == 1 else ahead
        turn = replace(trainer, ranks=ranks, arguments=arguments)
        ends.append(max(run_for_a_while(turn, generation)))
    damage(trainer)  # all ranks pass it over, though the others could have read theirs
    trainer = replace(trainer, ranks=3)
    assert trainer.run(4) == 0, trainer.output()
    assert f"generation 4 continues after step {ends[-2]}" in trainer.output()
    resumed, theirs = final_tensors(trainer), final_tensors(alone)
    assert resumed.keys() == theirs.keys()
    assert all(torch.equal(resumed[name], theirs[name]) for name in resumed)


def test_shares_keep_the_batch_on_any_number_of_ranks(tmp_path: Path) -> None:
    alone, expected = straight(tmp_path / "alone", 4, "--shares", "4")
    trainer = trainer_of(tmp_path / "changing", 4, "--shares", "4")
    for generation, ranks in enumerate((4, 4, 2, 4), start=1):
        losses = run_for_a_while(replace(trainer, ranks=ranks), generation)
        near = 0.0 if generation <= 2 else 1e-6
        for step, loss in losses.items():
            assert loss == pytest.approx(expected[step], rel=near, abs=0)
    trainer = replace(trainer, ranks=3)
    assert trainer.run(5) == 0, trainer.output()
    resumed, theirs = weights_of(trainer), weights_of(alone)
    assert (resumed - theirs).norm() <= 1e-6 * theirs.norm()
