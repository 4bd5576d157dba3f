"""A training loop of several ranks under DistributedDataParallel. Not a test itself.

Random generators are saved, and each rank has its own data.

    ranked.py --steps N [--fail-at STEP] [--save-at STEP [--once FILE]]

With `--once` it waits for FILE before it saves, and makes no step meanwhile.
"""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import spotd_hook
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


class Data:
    """Data with a position, like stateful loaders."""

    def __init__(self, rank: int) -> None:
        self.rank, self.at = rank, 0

    def batch(self) -> torch.Tensor:
        self.at += 1 + self.rank
        noise = random.random() + torch.rand(8, 4)
        return torch.full((8, 4), float(self.at % 7)) + noise

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--save-at", type=int, default=-1)
    parser.add_argument("--once", type=Path)
    args = parser.parse_args()
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    data = Data(rank)
    with spotd_hook.Run(model=model, optimizer=optimizer, data=data) as run:
        for step in run.steps(args.steps):
            if step == args.fail_at:
                raise RuntimeError("the batch is bad")
            if step == args.save_at:
                while args.once and not args.once.exists():
                    time.sleep(0.005)
                run.save()
            loss = model(data.batch()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.report(loss)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
