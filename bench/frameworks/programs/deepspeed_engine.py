"""DeepSpeed's engine with its own checkpoints, in a folder that spotd saves (mode: directory).

It begins again from `latest`, as DeepSpeed's documentation has it, and saves at SIGTERM.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

from bench.frameworks.programs.loop import FEATURES, scheduler_of
from bench.frameworks.programs.place import (
    digest,
    digest_optimizer,
    reach,
    read_arguments,
    write_result,
)

FOLDER = "checkpoints"


class Training:
    """The engine, and what the program keeps with its checkpoints."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings["rate"])
        self.engine, self.optimizer, _, self.scheduler = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            lr_scheduler=scheduler_of(settings, optimizer),
            config=settings["config"],
            dist_init_required=True,
        )
        self.seen: dict[str, list[Any]] = {"losses": [], "evaluations": [], "rates": []}
        self.step = 0
        self.ends = False
        signal.signal(signal.SIGTERM, self.end)

    def end(self, *_: Any) -> None:
        self.ends = True

    def resume(self) -> None:
        if not Path(FOLDER, "latest").exists():
            return
        _, kept = self.engine.load_checkpoint(FOLDER)
        self.step, self.seen = kept["step"], kept["seen"]
        torch.set_rng_state(kept["random"])

    def save(self) -> None:
        kept = {"step": self.step, "seen": self.seen, "random": torch.get_rng_state()}
        self.engine.save_checkpoint(FOLDER, client_state=kept)

    def train(self) -> None:
        settings, engine = self.settings, self.engine
        while self.step < settings["steps"]:
            total = 0.0
            for part in range(settings["accumulation"]):
                reach("step", self.step)
                number = self.step * settings["accumulation"] + part
                generator = torch.Generator().manual_seed(number)
                rows = torch.randn(settings["batch"], FEATURES, generator=generator)
                rows = rows.to(next(engine.module.parameters()).dtype)
                target = rows.square().sum(dim=1, keepdim=True)
                loss = nn.functional.mse_loss(engine(rows), target)
                engine.backward(loss)
                engine.step()
                total += loss.item()
            self.step += 1
            self.seen["losses"].append(total)
            self.seen["rates"].append(self.optimizer.param_groups[0]["lr"])
            if self.step % settings["eval_steps"] == 0:
                self.evaluate()
            if self.step % settings["save_steps"] == 0 or self.ends:
                self.save()
                reach("epoch", self.step)
            if self.ends:
                raise SystemExit(128 + signal.SIGTERM)

    def evaluate(self) -> None:
        total = 0.0
        self.engine.eval()
        for number in range(2):
            reach("evaluation", self.step)
            rows = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(1000 + number))
            with torch.no_grad():
                rows = rows.to(next(self.engine.module.parameters()).dtype)
                total += float(self.engine(rows).float().square().sum())
        self.engine.train()
        self.seen["evaluations"].append([self.step, total])


def main() -> None:
    settings, _ = read_arguments()
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    torch.manual_seed(settings["seed"])
    meet = f"file://{Path('meet').absolute()}"
    torch.distributed.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    training = Training(settings)
    training.resume()
    training.train()
    optimizer = training.engine.optimizer  # DeepSpeed's own, around the program's
    write_result(
        {
            **training.seen,
            "weights": digest(training.engine.module.state_dict()),
            "optimizer": digest_optimizer(getattr(optimizer, "optimizer", optimizer)),
        }
    )


if __name__ == "__main__":
    main()
