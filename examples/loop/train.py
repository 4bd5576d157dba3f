"""A training loop of one's own that survives whatever happens to its machine.

    python train.py --steps 300

What is spotd's are the lines with a comment. Without spotd it trains all the same.
"""

import argparse
import time

import spotd_hook  # on the path of every job; by hand, with spotd installed
import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--step-time-ms", type=float, default=0.0, help="a step takes so much longer"
    )
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    examples = torch.randn(4096, 16)
    answers = examples.square().sum(dim=1, keepdim=True)

    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    with spotd_hook.Run(seed=args.seed, **objects) as run:  # restores what was saved
        for step in run.steps(args.steps):  # goes on there, saves when it is time, leaves in time
            start = step * 64 % len(examples)
            batch = slice(start, start + 64)
            loss = nn.functional.mse_loss(model(examples[batch]), answers[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            time.sleep(args.step_time_ms / 1000)
            run.report(loss)  # for `spotctl logs` and the dashboard; it may be left out


if __name__ == "__main__":
    main()
