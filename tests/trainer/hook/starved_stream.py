"""Three steps on an IterableDataset, by a loop or by Lightning. Not a test itself.

starved_stream.py loop|saved|lightning
"""

from __future__ import annotations

import sys
from typing import Any

import spotd_hook
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.trainer.hook.finetune_data import Stateful, Stream


def loop(*, saved: bool) -> None:
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = Stateful() if saved else Stream()
    with spotd_hook.Run(model=model, optimizer=optimizer, data=rows if saved else None) as run:
        batches = run.batches(DataLoader(rows, batch_size=2))
        for _ in run.steps(3):
            loss = model(next(batches)["input_ids"].float()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def lightning() -> None:
    import lightning as pl

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 1)

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch["input_ids"].float()).square().mean()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = pl.Trainer(
        max_steps=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[spotd_hook.lightning.Callback()],
    )
    trainer.fit(Model(), DataLoader(Stream(), batch_size=2))


if __name__ == "__main__":
    torch.manual_seed(1)
    if sys.argv[1] == "lightning":
        lightning()
    else:
        loop(saved=sys.argv[1] == "saved")
