"""Ranks under DistributedDataParallel, one of which stands still once. Not a test itself.

    evaluating.py --steps N [--held FORM STEP FILE]

Each step ends with a block `run.evaluation()`. At STEP a rank waits for FILE:

    both     both ranks do, in the block
    rank-0   rank 0 does; rank 1 has nothing to do there, and begins the next step
    barrier  rank 0 does; rank 1 waits for it at a barrier within the block
    rank-1   the other way round
    data     rank 0 waits for the batch of the next step; rank 1 has its own, and waits for rank 0
    compute  rank 0 does not come to the end of the next step, as in a first compilation
    after    both do so when the training has ended
"""

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import spotd_hook
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


class Held:
    """Where the ranks are held, which both know."""

    def __init__(self, form: str = "", step: str = "-1", until: str = "-") -> None:
        self.form, self.step, self.until = form, int(step), Path(until)
        self.rank = distributed.get_rank()

    def wait(self, form: str, step: int) -> None:
        if (form, step) == (self.form, self.step):
            Path(f"held {self.rank}").touch()
            while not self.until.exists():
                time.sleep(0.01)

    def evaluate(self, step: int) -> None:
        self.wait("both", step)
        for form in ("rank-1",) if self.rank else ("rank-0", "barrier"):
            self.wait(form, step)
        if self.form in ("barrier", "rank-1"):
            distributed.barrier()

    def batches(self, first: int, end: int) -> Iterator[torch.Tensor]:
        for step in range(first, end):
            if self.rank == 0:
                self.wait("data", step)
            yield torch.randn(8, 4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--held", nargs=3, default=())
    args = parser.parse_args()
    distributed.init_process_group("gloo")
    held = Held(*args.held)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(held.rank)
    inner = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters())
    with spotd_hook.Run(model=model, optimizer=optimizer) as run:
        loader = run.batches(held.batches(run.done, args.steps))
        for step in run.steps(args.steps):
            batch = next(loader)
            if held.rank == 0:
                held.wait("compute", step)
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.report(loss)
            with run.evaluation():
                held.evaluate(step + 1)
    held.wait("after", held.step)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
