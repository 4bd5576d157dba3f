"""A loop whose learning rate follows an evaluation at the start of a step. Not a test itself.

    evaluated.py

It waits in the evaluation of the step HELD_AT until the file HELD_UNTIL exists, and writes what it
keeps to result.json.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import spotd_hook
import torch

from tests.trainer.hook.holding import hold_until

STEPS, EVERY = 12, 3


class Losses:
    def __init__(self) -> None:
        self.all: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"all": self.all}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.all = state["all"]


def evaluate(model: torch.nn.Module, step: int) -> float:
    if os.environ.get("HELD_AT") == str(step):
        Path("held").touch()
        hold_until(Path(os.environ["HELD_UNTIL"]))
    with torch.no_grad():
        return float(model(torch.randn(8, 4)).square().mean())


def main() -> None:
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    losses = Losses()
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "losses": losses}
    with spotd_hook.Run(**objects) as run:
        for step in run.steps(STEPS):
            if step and step % EVERY == 0:
                with run.evaluation(at_start=True):
                    loss = evaluate(model, step)
                scheduler.step(loss)
                losses.all.append(loss)
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with run.evaluation(at_start=True):
            losses.all.append(evaluate(model, STEPS))
    result = {"losses": losses.all, "rate": optimizer.param_groups[0]["lr"], "done": run.done}
    Path("result.json").write_text(json.dumps(result | {"weights": model.weight.tolist()}))


if __name__ == "__main__":
    main()
