"""A small model with Lightning's Trainer."""

from __future__ import annotations

from typing import Any

import lightning as pl
import torch
from lightning.pytorch import callbacks
from torch import Tensor, nn

from bench.frameworks.programs.loop import FEATURES, Rows, optimizer_of, scheduler_of
from bench.frameworks.programs.place import (
    digest,
    digest_optimizer,
    reach,
    read_arguments,
    write_result,
)


class Model(pl.LightningModule):
    """What it saw is part of its checkpoints, as Lightning's documentation has it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(16, 1),
        )
        self.seen: dict[str, list[Any]] = {"losses": [], "evaluations": [], "rates": []}

    def _loss(self, rows: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.layers(rows), rows.square().sum(dim=1, keepdim=True))

    def training_step(self, rows: Tensor) -> Tensor:
        reach("step", self.trainer.global_step)
        loss = self._loss(rows)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.seen["losses"].append(loss.item())
        return loss

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.seen["rates"].append(optimizer.param_groups[0]["lr"])

    def validation_step(self, rows: Tensor) -> None:
        reach("evaluation", self.trainer.global_step)
        self.log("val_loss", self._loss(rows))

    def on_validation_epoch_end(self) -> None:
        loss = self.trainer.callback_metrics["val_loss"].item()
        self.seen["evaluations"].append([self.trainer.global_step, loss])

    def on_train_epoch_end(self) -> None:
        reach("epoch", self.trainer.global_step)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen"] = {name: list(values) for name, values in self.seen.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seen = {name: list(values) for name, values in checkpoint["seen"].items()}

    def configure_optimizers(self) -> Any:
        settings = self.settings
        optimizer = optimizer_of(settings, self)
        scheduler: dict[str, Any] = {
            "scheduler": scheduler_of(settings, optimizer),
            "interval": settings["interval"],
        }
        if settings["scheduler"] == "plateau":
            scheduler |= {"monitor": "val_loss", "interval": "epoch"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def loader_of(settings: dict[str, Any]) -> Any:
    rows = Rows(settings["rows"], settings["noise"])
    if settings["loader"] == "plain":
        return torch.utils.data.DataLoader(rows, batch_size=settings["batch"], shuffle=True)
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        rows, batch_size=settings["batch"], shuffle=True, num_workers=settings["workers"]
    )


def main() -> None:
    settings, plain = read_arguments()
    pl.seed_everything(settings["seed"], verbose=False)
    made: list[Any] = []
    if settings["patience"]:
        made.append(callbacks.EarlyStopping("val_loss", patience=settings["patience"]))
    if settings["averages"]:
        made.append(callbacks.StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=2))
    if not plain:
        import spotd_hook

        made.append(spotd_hook.lightning.Callback())
    trainer = pl.Trainer(
        callbacks=made,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings["arguments"],
    )
    model = Model(settings)
    check = torch.utils.data.DataLoader(Rows(8, 0.0), batch_size=4)
    trainer.fit(model, loader_of(settings), check)
    [optimizer] = trainer.optimizers
    write_result(
        {
            **model.seen,
            "rate": optimizer.param_groups[0]["lr"],
            "weights": digest(model.state_dict()),
            "optimizer": digest_optimizer(optimizer),
            "metrics": {name: one.item() for name, one in trainer.callback_metrics.items()},
            "trainer": [trainer.global_step, trainer.current_epoch],
        }
    )


if __name__ == "__main__":
    main()
