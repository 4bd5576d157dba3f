"""A program whose steps change nothing: it ends with the weights that it was given."""

from __future__ import annotations

import argparse

import spotd_hook
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--wide", type=int, default=40)
parser.add_argument("--until", type=int, default=3)
args = parser.parse_args()
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(30, args.wide, bias=False, dtype=torch.bfloat16)
        self.columns = nn.Linear(40, 30, bias=False)
        self.again = nn.Linear(40, 30, bias=False)
        self.again.weight = self.columns.weight  # as language models share theirs
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("none", torch.empty(0, 3, dtype=torch.float16))
        self.register_buffer("mask", torch.zeros(5, dtype=torch.bool))


model = Model()
optimizer = torch.optim.AdamW(model.parameters())
with spotd_hook.Run(config={"wide": args.wide}, model=model, optimizer=optimizer) as run:
    for step in run.steps(args.until):
        print("step", step, float(model.scale), flush=True)
