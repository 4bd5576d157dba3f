"""Lightning's Trainer with its default checkpoints, and fit() goes on from the newest."""

import os
import time

import lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, at):
        time.sleep(0.01)
        return torch.randn(8, generator=torch.Generator().manual_seed(at))


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, rows):
        return nn.functional.mse_loss(self.layers(rows), rows.square().sum(dim=1, keepdim=True))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = pl.Trainer(
    default_root_dir="out",
    max_epochs=int(os.environ.get("EPOCHS", "8")),
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(
    Model(),
    DataLoader(Rows(), batch_size=4),
    ckpt_path=os.environ.get("SPOTD_RESUME") or None,
)
