"""What one training process is made of, and how it computes and saves."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from spotd.wire import WARNING
from trainer.hook.spotd_hook.agent_client import AgentClient
from trainer.hook.spotd_hook.async_copy import LEAST_BYTES
from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.engine import FoundCheckpoint
from trainer.hook.spotd_hook.head_ownership import HeadOwnership
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.multi_rank_saver import MultiRankSaver
from trainer.hook.spotd_hook.save_planner import SavePlanner
from trainer.hook.spotd_hook.saver_client import SaverError
from trainer.hook.spotd_hook.tensor_copy import copying_beside
from trainer.reference.data import Corpus, Order
from trainer.reference.model import Gpt
from trainer.reference.state import Schedule, TrainState
from trainer.reference.virtual_ranks import average_in_order, shares_of
from trainer.reference.world import World

if TYPE_CHECKING:
    from trainer.reference.batch_loader import Loading
    from trainer.reference.sharded import ShardedState  # slow to load, and few want it

_OTHER_RANKS = re.compile(r"made with world_size = (\d+), this program has \d+")


@dataclass
class Run:
    """Everything that is prepared before HEAD is claimed. Rank 0 alone has a checkpointer, unless
    each rank saves its part: then they do so `together`."""

    args: argparse.Namespace
    world: World
    link: AgentClient
    corpus: Corpus
    order: Order
    schedule: Schedule
    model: Gpt
    state: TrainState | ShardedState
    checkpointer: Checkpointer | None
    config: Mapping[str, Any]
    job: Job
    planning: SavePlanner
    tenure: HeadOwnership | None = None  # rank 0 alone has it
    together: MultiRankSaver | None = None
    loading: Loading | None = None
    data_s: float = 0.0  # what the batches of the last step took to come
    held_s: float = 0.0  # for how long its update had to wait for the copy of a snapshot

    def learn(self, step: int) -> tuple[list[float], float]:
        """The gradients of one step, averaged over all ranks, into the state. Returns losses by
        virtual rank (without those: one), 0 for those of other ranks, and the seconds that a
        batch took this rank alone: who has one more than others is not the slower for it."""
        self.data_s, world, count = 0.0, self.world, self.args.virtual_ranks
        began_s = time.perf_counter()
        if not isinstance(self.state, TrainState):
            return self._learn_sharded(self.state, step)
        if self.args.shares:
            return self._learn_shares(self.state, step)
        grads = self.state.grads
        if not count:
            loss = self.compute(step, world.rank)
            alone_s = world.settled_s() - began_s
            world.average(grads)
            return [loss.item()], alone_s
        losses, own = [0.0] * count, {}
        for share in shares_of(world.rank, world.size, count):
            losses[share] = self.compute(step, share).item()
            own[share] = grads.clone()
            grads.zero_()
        alone_s = (world.settled_s() - began_s) / len(own)
        average_in_order(own, grads, world.size, count)
        return losses, alone_s

    def _learn_shares(self, state: TrainState, step: int) -> tuple[list[float], float]:
        """As `learn`: what this rank's shares give is added up here first."""
        world, count, losses = self.world, self.args.shares, [0.0] * self.args.shares
        began_s = time.perf_counter()
        own = shares_of(world.rank, world.size, count)
        for share in own:
            losses[share] = self.compute(step, share).item()
        alone_s = (world.settled_s() - began_s) / len(own)
        world.total(state.grads)
        state.grads.div_(count)
        return losses, alone_s

    def _learn_sharded(self, state: ShardedState, step: int) -> tuple[list[float], float]:
        """As `learn`, with gradients that are divided among the ranks while they are summed up. All
        ranks take part in each layer's exchange, so that none is slow alone."""
        world, count = self.world, self.order.world_size
        losses, began_s, rounds = [0.0] * count, time.perf_counter(), state.rounds(count)
        for number in range(rounds):
            state.expect(number, count)
            share = number * world.size + world.rank
            if share < count:
                losses[share] = self.compute(step, share).item()
            else:
                self.compute(step, world.rank, weight=0.0)
        state.scale(count)
        fixed = self.args.virtual_ranks or self.args.shares
        alone_s = (world.settled_s() - began_s) / rounds
        return losses if fixed else [sum(losses)], alone_s

    def compute(self, step: int, rank: int, weight: float = 1.0) -> torch.Tensor:
        """Forward and backward of one step on the batch of `rank`, which may be a virtual one or a
        share, whose gradients count with `weight`; returns the loss."""
        torch.manual_seed(self.order.seed_of(step, rank))
        began_s = time.perf_counter()
        batch = self.loading.take(step, rank) if self.loading is not None and weight else None
        inputs, targets = batch or self.order.batch_of(self.corpus.data, step, rank)
        self.data_s += time.perf_counter() - began_s
        loss: torch.Tensor = self.model(inputs.to(self.world.device), targets.to(self.world.device))
        torch.autograd.backward(loss if weight == 1 else loss * weight)
        return loss.detach()

    def load_ahead(self, step: int) -> None:
        """Have the batches from here on made by processes, if there are to be any."""
        if not self.args.workers:
            return
        from trainer.reference.batch_loader import Loading  # noqa: PLC0415 - slow to load, and few want it

        world, count = self.world, self.order.world_size
        shares = shares_of(world.rank, world.size, count)
        workers, last = self.args.workers, self.args.steps
        self.loading = Loading(self.order, self.corpus.data, shares, step, last, workers)

    def restore(self, back: int = 0) -> FoundCheckpoint | None:
        """The newest checkpoint that can be used, or one `back` further, on rank 0; without
        `together` it has to be spread. Raises as `Checkpointer.restore`."""
        try:
            if self.together is not None:
                return self.together.restore(self.config, back)
            assert self.checkpointer is not None  # noqa: S101 - rank 0
            assert isinstance(self.state, TrainState)  # noqa: S101 - as `together` says
            return self.checkpointer.restore(self.config, self.state.load, back)
        except SaverError as error:
            ranks = _OTHER_RANKS.search(str(error))
            if ranks is None:
                raise
            advice = f"; or add --shares {ranks[1]}, and any number of ranks up to it will do"
            raise SaverError(error.kind, f"{error}{advice}") from error

    def hear(self, word: int) -> int:
        """On all ranks what rank 0 says when it has restored, or done without. Before that the
        others do with it what each has to do itself."""
        if self.together is None:
            return self.world.follow(word)
        return self.together.attend() if self.world.rank else self.together.dismiss(word)

    def spread(self) -> None:
        """What rank 0 has restored, on all ranks."""
        if isinstance(self.state, TrainState):
            self.world.spread(self.state.flats())

    def conclude(self, end: Callable[[], int]) -> int:
        """Have rank 0 `end` the run; its exit code, on every rank. Rank 0 goes by it alone if
        another one died before it heard."""
        if self.together is None:
            return self.world.announce(end())
        if self.world.rank:
            return self.together.attend()
        code = end()
        with suppress(RuntimeError):
            self.together.dismiss(code)
        return code

    def save(self, step: int, trigger: str, *, released: bool = False, final: bool = False) -> bool:
        """Hand a snapshot after `step` steps to the checkpointer, where there is one. False when
        there is nothing to be saved: the state is no numbers any more."""
        if self.checkpointer is None:
            return True
        if not self.state.finite():
            text = f"step {step} is not saved: its weights are no finite numbers"
            if not self.world.rank:
                self.link.send(WARNING, {"text": text})
            return False
        state = {
            "step": step,  # also the position in the data: see trainer.reference.data
            "config": self.config,
            "learning_rate": self.schedule.rate(step),
            "random": "stateless: a function of (seed, step, rank)",
            "torch": torch.__version__,
            "device": self.world.device.type,
            "threads": torch.get_num_threads(),
        }
        beside = not (released or final) and self.state.size >= LEAST_BYTES
        stage = self.state.stage
        if beside:  # weights and moments change in `update` alone, which waits for it
            copying = copying_beside(self.world.device)
            copying.begin()
            stage = partial(stage, copying=copying)
        self.checkpointer.save(
            step,
            stage,
            state,
            trigger=trigger,
            released=released,
            final=final,
            beside=beside,
        )
        return True

    def update(self, step: int) -> bool:
        """The optimizer's step, as `TrainState.update`; what is being copied is waited for."""
        if self.checkpointer is not None:
            self.held_s = self.checkpointer.fence()
        return self.state.update(self.schedule.rate(step), step)
