"""Lightning's Trainer, saved by spotd's engine: one line more than without.

    # to try it without a job, in spotd's checkout: pip install '.[torch,examples]'
    python train.py

A tiny model and made-up data, so that it runs anywhere in seconds.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import lightning as pl
import spotd_hook
import torch
from torch import nn

BATCHES = 20  # of an epoch


class Rows:
    """Batches that are a function of their number, and where it is: any loader with a state does,
    such as torchdata's StatefulDataLoader."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.at %= BATCHES
        while self.at < BATCHES:
            self.at += 1
            yield torch.randn(16, 8, generator=torch.Generator().manual_seed(self.at))

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def training_step(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.layers(rows), rows.square().sum(dim=1, keepdim=True))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pl.seed_everything(1)
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,  # Lightning's own
        enable_progress_bar=False,
        callbacks=[spotd_hook.lightning.Callback()],  # the line
    )
    trainer.fit(Model(), Rows())


if __name__ == "__main__":
    main()
