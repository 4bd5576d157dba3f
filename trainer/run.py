"""What one training process is made of, and how it computes and saves."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spotd.wire import WARNING
from trainer.data import Corpus, Order
from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.link import Link
from trainer.hook.spotd_hook.planning import Planning
from trainer.hook.spotd_hook.tenure import Tenure
from trainer.model import Gpt
from trainer.state import Schedule, TrainState
from trainer.world import World


@dataclass
class Run:
    """Everything that is prepared before HEAD is claimed. Rank 0 alone has a checkpointer."""

    args: argparse.Namespace
    world: World
    link: Link
    corpus: Corpus
    order: Order
    schedule: Schedule
    model: Gpt
    state: TrainState
    checkpointer: Checkpointer | None
    config: Mapping[str, Any]
    job: Job
    planning: Planning
    tenure: Tenure | None = None  # rank 0 alone has it
    data_s: float = 0.0  # what the last batch took to come

    def compute(self, step: int) -> torch.Tensor:
        """Forward and backward of one step on this rank's batch; returns the loss."""
        torch.manual_seed(self.order.seed_of(step, self.world.rank))
        began_s = time.perf_counter()
        inputs, targets = self.order.batch_of(self.corpus.data, step, self.world.rank)
        self.data_s = time.perf_counter() - began_s
        loss: torch.Tensor = self.model(inputs.to(self.world.device), targets.to(self.world.device))
        torch.autograd.backward(loss)
        return loss.detach()

    def save(self, step: int, trigger: str, *, released: bool = False, final: bool = False) -> bool:
        """Hand a snapshot after `step` steps to the checkpointer, where there is one. False when
        there is nothing to be saved: the state is no numbers any more."""
        if self.checkpointer is None:
            return True
        if not self.state.finite():
            text = f"step {step} is not saved: its weights are no finite numbers"
            self.link.send(WARNING, {"text": text})
            return False
        state = {
            "step": step,  # also the position in the data: see trainer.data
            "config": self.config,
            "learning_rate": self.schedule.rate(step),
            "random": "stateless: a function of (seed, step, rank)",
            "torch": torch.__version__,
            "device": self.world.device.type,
            "threads": torch.get_num_threads(),
        }
        self.checkpointer.save(
            step, self.state.stage, state, trigger=trigger, released=released, final=final
        )
        return True
