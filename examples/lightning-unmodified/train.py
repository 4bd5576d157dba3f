"""Lightning's Trainer as it is: nothing of spotd in it. job.yaml beside it names its folder.

    pip install lightning && python train.py

A tiny model and made-up data, so that it runs anywhere in seconds.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import lightning as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

BATCHES = 20  # of an epoch


class Rows:
    """Batches that are a function of their number, and that take a while; its state is where it is,
    as that of torchdata's StatefulDataLoader."""

    def __init__(self, batch_s: float) -> None:
        self._batch_s, self._given = batch_s, 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[torch.Tensor]:
        for at in range(self._given % BATCHES, BATCHES):
            time.sleep(self._batch_s)
            self._given = at + 1
            yield torch.randn(16, 8, generator=torch.Generator().manual_seed(at))

    def state_dict(self) -> dict[str, Any]:
        return {"given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._given = state["given"]


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.layers(rows), rows.square().sum(dim=1, keepdim=True))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--step-time-ms", type=float, default=0.0, help="at least")
    parser.add_argument("--out", default="out")
    parser.add_argument("--ckpt-path", default="", help="to go on from; empty: from the beginning")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pl.seed_everything(1)
    saves = ModelCheckpoint(
        dirpath=args.out, filename="{step}", save_top_k=-1, every_n_epochs=1, save_on_exception=True
    )
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[saves],
    )
    print("goes on from", args.ckpt_path or None, flush=True)
    trainer.fit(Model(), Rows(args.step_time_ms / 1000), ckpt_path=args.ckpt_path or None)


if __name__ == "__main__":
    main()
