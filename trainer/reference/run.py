"""One training process: its parts, and how it computes gradients, restores and saves."""

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
from trainer.hook.spotd_hook.async_copy import MIN_BYTES
from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.engine import FoundCheckpoint
from trainer.hook.spotd_hook.head_ownership import HeadOwnership
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.multi_rank_saver import MultiRankSaver
from trainer.hook.spotd_hook.save_planner import SavePlanner
from trainer.hook.spotd_hook.saver_client import SaverError
from trainer.hook.spotd_hook.tensor_copy import background_copy
from trainer.reference.data import Corpus, Order
from trainer.reference.model import Gpt
from trainer.reference.state import Schedule, TrainState
from trainer.reference.virtual_ranks import average_in_order, shares_of
from trainer.reference.world import World

if TYPE_CHECKING:
    from trainer.reference.batch_loader import BatchLoader
    from trainer.reference.sharded import ShardedState  # slow to import, rarely used

_OTHER_RANKS = re.compile(r"made with world_size = (\d+), this program has \d+")


@dataclass
class Run:
    """Everything that is prepared before HEAD is claimed.

    Only rank 0 has a checkpointer, except with `--shard`, where each rank saves its own shards with
    its own checkpointer, coordinated by `multi_rank_saver`.
    """

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
    save_planner: SavePlanner
    head_ownership: HeadOwnership | None = None  # on rank 0 only
    multi_rank_saver: MultiRankSaver | None = None
    batch_loader: BatchLoader | None = None
    data_s: float = 0.0  # time spent waiting for the batches of the last step
    copy_wait_s: float = 0.0  # time the last update waited for the copy of a snapshot

    def compute_gradients(self, step: int) -> tuple[list[float], float]:
        """Compute the gradients of one step, averaged over all ranks, into the state.

        Returns the losses by share, 0 for those of other ranks (a single loss without virtual
        ranks or shares), and the seconds per batch of this rank. The latter serve to find slow
        ranks, so a rank that computes one share more is not slower by that measure.
        """
        self.data_s, world, count = 0.0, self.world, self.args.virtual_ranks
        started_s = time.perf_counter()
        if not isinstance(self.state, TrainState):
            return self._compute_sharded(self.state, step)
        if self.args.shares:
            return self._compute_shares(self.state, step)
        grads = self.state.grads
        if not count:
            loss = self.compute(step, world.rank)
            alone_s = world.device_done_s() - started_s
            world.average(grads)
            return [loss.item()], alone_s
        losses, own = [0.0] * count, {}
        for share in shares_of(world.rank, world.size, count):
            losses[share] = self.compute(step, share).item()
            own[share] = grads.clone()
            grads.zero_()
        alone_s = (world.device_done_s() - started_s) / len(own)
        average_in_order(own, grads, world.size, count)
        return losses, alone_s

    def _compute_shares(self, state: TrainState, step: int) -> tuple[list[float], float]:
        """Like `compute_gradients` with `--shares`: sums this rank's shares locally first."""
        world, count, losses = self.world, self.args.shares, [0.0] * self.args.shares
        started_s = time.perf_counter()
        own = shares_of(world.rank, world.size, count)
        for share in own:
            losses[share] = self.compute(step, share).item()
        alone_s = (world.device_done_s() - started_s) / len(own)
        world.sum_tensor(state.grads)
        state.grads.div_(count)
        return losses, alone_s

    def _compute_sharded(self, state: ShardedState, step: int) -> tuple[list[float], float]:
        """Like `compute_gradients` with `--shard`: gradients are reduce-scattered per layer.

        All ranks take part in each layer's exchange, so every rank takes the time of the slowest.
        """
        world, count = self.world, self.order.world_size
        losses, started_s, rounds = [0.0] * count, time.perf_counter(), state.round_count(count)
        for number in range(rounds):
            state.start_round(number, count)
            share = number * world.size + world.rank
            if share < count:
                losses[share] = self.compute(step, share).item()
            else:
                self.compute(step, world.rank, weight=0.0)
        state.scale(count)
        fixed = self.args.virtual_ranks or self.args.shares
        alone_s = (world.device_done_s() - started_s) / rounds
        return losses if fixed else [sum(losses)], alone_s

    def compute(self, step: int, rank: int, weight: float = 1.0) -> torch.Tensor:
        """Run forward and backward passes on the batch of `rank` (or virtual rank, or share), with
        gradients scaled by `weight`; return the loss."""
        torch.manual_seed(self.order.seed_of(step, rank))
        started_s = time.perf_counter()
        batch = (
            self.batch_loader.take(step, rank) if self.batch_loader is not None and weight else None
        )
        inputs, targets = batch or self.order.batch_of(self.corpus.data, step, rank)
        self.data_s += time.perf_counter() - started_s
        loss: torch.Tensor = self.model(inputs.to(self.world.device), targets.to(self.world.device))
        torch.autograd.backward(loss if weight == 1 else loss * weight)
        return loss.detach()

    def start_batch_loader(self, step: int) -> None:
        """Start the worker processes for batches from `step` on, if any are configured."""
        if not self.args.workers:
            return
        from trainer.reference.batch_loader import BatchLoader  # noqa: PLC0415 - slow to import, rarely used

        world, count = self.world, self.order.world_size
        shares = shares_of(world.rank, world.size, count)
        workers, last = self.args.workers, self.args.steps
        self.batch_loader = BatchLoader(self.order, self.corpus.data, shares, step, last, workers)

    def restore(self, back: int = 0) -> FoundCheckpoint | None:
        """Restore the newest usable checkpoint, or the one `back` before it. Call on rank 0.

        Without `multi_rank_saver` call `broadcast_state` afterwards on all ranks. Raises as
        `Checkpointer.restore`.
        """
        try:
            if self.multi_rank_saver is not None:
                return self.multi_rank_saver.restore(self.config, back)
            assert self.checkpointer is not None  # noqa: S101 - rank 0
            assert isinstance(self.state, TrainState)  # noqa: S101 - no multi_rank_saver
            return self.checkpointer.restore(self.config, self.state.load, back)
        except SaverError as error:
            ranks = _OTHER_RANKS.search(str(error))
            if ranks is None:
                raise
            advice = f"; or add --shares {ranks[1]}, and any number of ranks up to it will do"
            raise SaverError(error.kind, f"{error}{advice}") from error

    def sync_outcome(self, outcome: int) -> int:
        """Return rank 0's `outcome` of a restore on all ranks. With `multi_rank_saver` the other
        ranks meanwhile do their part of the restore."""
        if self.multi_rank_saver is None:
            return self.world.broadcast(outcome)
        return (
            self.multi_rank_saver.follow_rank_0()
            if self.world.rank
            else self.multi_rank_saver.release_ranks(outcome)
        )

    def broadcast_state(self) -> None:
        """Copy the state that rank 0 restored to all ranks."""
        if isinstance(self.state, TrainState):
            self.world.broadcast_tensors(self.state.flat_tensors())

    def finish_all(self, end: Callable[[], int]) -> int:
        """Call `end` and return rank 0's exit code on every rank.

        On rank 0 the failure of another rank is ignored.
        """
        if self.multi_rank_saver is None:
            return self.world.broadcast_exit_code(end())
        if self.world.rank:
            return self.multi_rank_saver.follow_rank_0()
        code = end()
        with suppress(RuntimeError):
            self.multi_rank_saver.release_ranks(code)
        return code

    def save(self, step: int, trigger: str, *, released: bool = False, final: bool = False) -> bool:
        """Start saving a snapshot after `step` steps, if this rank has a checkpointer.

        Returns False without saving if the state is not finite.
        """
        if self.checkpointer is None:
            return True
        if not self.state.is_finite():
            message = f"step {step} is not saved: its weights are not finite numbers"
            if not self.world.rank:
                self.link.send(WARNING, {"text": message})
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
        in_background = not (released or final) and self.state.size >= MIN_BYTES
        stage = self.state.stage
        if in_background:  # only `update` changes the state, and it waits for the copy
            copying = background_copy(self.world.device)
            copying.begin()
            stage = partial(stage, copying=copying)
        self.checkpointer.save(
            step,
            stage,
            state,
            trigger=trigger,
            released=released,
            final=final,
            background=in_background,
        )
        return True

    def update(self, step: int) -> bool:
        """Wait for the copy of a snapshot, then apply `TrainState.update`."""
        if self.checkpointer is not None:
            self.copy_wait_s = self.checkpointer.wait_for_copy()
        return self.state.update(self.schedule.rate(step), step)
