"""A program that trains twice, one after the other, and saves the model after each.

    python stages.py [--names A,B] [--names-of-rank-1 B,A] [--wait-in STAGE STEP FILE]

The second model begins with random weights, drawn after the first training. On several ranks the
models are under DistributedDataParallel, and rank 0 saves them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import spotd_hook
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.trainer.hook.holding import hold_until

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
STEPS = 12


def train(stage: str, *, name: str, hold: tuple[str, int, Path] | None, plain: bool) -> None:
    """Train a model of this stage, and save it as `stage`.pt."""
    inner = torch.nn.Linear(4, 3 if stage == "one" else 2)
    model = inner if plain else DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with spotd_hook.Run(name=name, model=model, optimizer=optimizer) as run:
        for step in run.steps(STEPS):
            if hold is not None and (stage, step) == hold[:2]:
                hold_until(hold[2])
            loss = (model(torch.randn(8, 4)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.report(loss)
    if RANK == 0:
        torch.save(inner.state_dict(), f"{stage}.pt")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", default=",")
    parser.add_argument("--names-of-rank-1")
    parser.add_argument("--plain-models", action="store_true")  # DDP meets the other ranks itself
    parser.add_argument("--order", default="one,two")
    parser.add_argument("--hold", nargs=3, metavar=("STAGE", "STEP", "FILE"))
    parser.add_argument("--hold-after", metavar="FILE")
    parser.add_argument("--fail-after", metavar="FILE")
    arguments = parser.parse_args()
    hold = None
    if arguments.hold:
        stage, step, path = arguments.hold
        hold = (stage, int(step), Path(path))
    if RANKS > 1:
        distributed.init_process_group("gloo")
    torch.manual_seed(7 + RANK)
    names = arguments.names_of_rank_1 if RANK and arguments.names_of_rank_1 else arguments.names
    for stage, name in zip(arguments.order.split(","), names.split(","), strict=False):
        train(stage, name=name, hold=hold, plain=RANKS == 1 or arguments.plain_models)
    if RANK == 0:
        print(f"drawn at the end: {torch.rand(1).item():.9f}", flush=True)
    if arguments.hold_after:
        hold_until(Path(arguments.hold_after))


if __name__ == "__main__":
    main()
