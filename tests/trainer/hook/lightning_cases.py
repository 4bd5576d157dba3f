"""Trainings with Lightning's Trainer, each of which a resume could spoil in a way of its own.

    lightning_cases.py CASE [--plain] [--leave-at BATCH]

In the batch of that number the program asks itself to stop, as a machine that ends does. With
`--plain` it runs without spotd. Writes what is left at the end to result.json; seen.txt has each
batch with its epoch, its number and the trainer's step, and logged.txt what the logger was given,
on all machines. Not a test itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as pl
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn
from torch.optim import lr_scheduler

BATCHES = 8  # of an epoch


class Rows:
    """Batches by their number, and a position, as loaders with a state have."""

    def __init__(self, first: int = 0, count: int = BATCHES) -> None:
        self.first, self.count, self.at = first, count, 0
        self.resumed = False

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Tensor]:
        self.at = self.at % self.count if self.resumed else 0
        self.resumed = False
        while self.at < self.count:
            self.at += 1
            seed = self.first + self.at
            yield torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.resumed = state["at"], True


class Stateless(Rows):
    """The same without a state."""

    state_dict = load_state_dict = None  # type: ignore[assignment]


class Data(pl.LightningDataModule):
    """Counts the batches that it moved to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def train_dataloader(self) -> Rows:
        return Rows()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        del dataloader_idx
        self.moved += self.trainer.training
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"moved": self.moved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.moved = state_dict["moved"]


class Model(pl.LightningModule):
    """Notes each batch."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.Dropout(0.2), nn.Linear(width, 1))
        self.kept: dict[str, Any] = {"sum": 0.0}

    def loss_of(self, rows: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.layers(rows), rows.square().sum(dim=1, keepdim=True))

    def training_step(self, rows: Any, batch_idx: int) -> Tensor:
        leave(self)
        rows = sum(rows) if isinstance(rows, list | tuple) else rows
        note("seen.txt", self.current_epoch, batch_idx, self.global_step, float(rows.sum()))
        loss = self.loss_of(rows)
        self.kept["sum"] += float(loss)
        self.log("loss", loss)
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["kept"] = dict(self.kept)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.kept = dict(checkpoint["kept"])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.05)


class Scheduled(Model):
    """Two schedules, of which one goes on every other step and one every epoch."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        restarts = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)
        each = {"scheduler": restarts, "interval": "step", "frequency": 2}
        return [optimizer], [each, lr_scheduler.ExponentialLR(optimizer, 0.9)]


class InTurn(Model):
    """Two optimizers that the module itself steps, one of them every other batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(8, 1)

    def training_step(self, rows: Tensor, batch_idx: int) -> Any:
        leave(self)
        note("seen.txt", self.current_epoch, batch_idx, self.global_step, float(rows.sum()))
        first, second = self.optimizers()
        for optimizer, model in ((first, self.layers), (second, self.other)):
            if optimizer is second and batch_idx % 2:
                continue
            optimizer.zero_grad()
            loss = model(rows).square().mean()
            self.manual_backward(loss)
            optimizer.step()
            self.log("loss", loss.detach())
        return None

    def configure_optimizers(self) -> Any:
        return (
            torch.optim.AdamW(self.layers.parameters(), lr=0.01),
            torch.optim.SGD(self.other.parameters(), lr=0.01, momentum=0.9),
        )


class Means(Model):
    """Logs the mean of the epoch."""

    def training_step(self, rows: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(rows, batch_idx)
        self.log("mean", loss.detach(), on_step=False, on_epoch=True)
        return loss


class Half(Model):
    """bfloat16 weights with float32 sums in the optimizer."""

    def configure_optimizers(self) -> Any:
        from tests.trainer.hook.kinds import Exact

        return Exact(self.parameters())


class Norm(Model):
    """Buffers and an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers.insert(1, nn.BatchNorm1d(16))
        self.steps = 0

    def training_step(self, rows: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        return super().training_step(rows, batch_idx)

    def get_extra_state(self) -> Any:
        return {"steps": self.steps}

    def set_extra_state(self, state: Any) -> None:
        self.steps = state["steps"]


class Validated(Model):
    def validation_step(self, rows: Tensor, batch_idx: int) -> None:
        del batch_idx
        self.log("val_loss", self.loss_of(rows))


class Counting(callbacks.Callback):
    """A callback with a state, and with a part of its own in the checkpoint."""

    def __init__(self) -> None:
        self.batches, self.noted = 0, [0]

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self.batches += 1
        self.noted.append(self.noted[-1] + self.batches)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches = state_dict["batches"]

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        del trainer, pl_module
        checkpoint["noted"] = list(self.noted)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        del trainer, pl_module
        self.noted = list(checkpoint["noted"])


class Lines(Logger):
    """A logger that appends to logged.txt."""

    name, version = "lines", 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        note("logged.txt", step, dict(sorted(metrics.items())))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is kept of them."""


@dataclass
class Case:
    """`left` returns what the case is about, from the trainer and the model, as JSON."""

    settings: dict[str, Any] = field(default_factory=dict)
    model: Callable[[], Model] = Model
    data: Callable[[], Any] = Rows
    check: Callable[[], Any] = lambda: None
    callbacks: Callable[[], list[Any]] = list
    left: Callable[[Any, Any], Any] = lambda _trainer, _model: None


def both() -> Any:
    from lightning.pytorch.utilities import CombinedLoader

    return CombinedLoader([Rows(), Rows(100)], "min_size")


def callback_of(trainer: Any, kind: type) -> Any:
    return next(one for one in trainer.callbacks if isinstance(one, kind))


def checked() -> Rows:
    return Rows(50, 2)


CASES = {
    "progress": Case(left=lambda _, model: [model.kept, dict(model.hparams)]),
    "steps_of_several": Case({"accumulate_grad_batches": 3}),
    "accumulation_by_epoch": Case(
        callbacks=lambda: [callbacks.GradientAccumulationScheduler({0: 2, 1: 4})]
    ),
    "scheduled": Case(
        model=Scheduled,
        left=lambda trainer, _: [group["lr"] for group in trainer.optimizers[0].param_groups],
    ),
    "in_turn": Case(model=InTurn),
    "callback": Case(
        callbacks=lambda: [Counting()],
        left=lambda trainer, _: [
            callback_of(trainer, Counting).batches,
            callback_of(trainer, Counting).noted,
        ],
    ),
    "data_module": Case(data=Data, left=lambda trainer, _: trainer.datamodule.moved),
    "loaders": Case(data=both),
    "norm": Case(model=Norm, left=lambda _, model: model.steps),
    "average": Case(
        callbacks=lambda: [callbacks.EMAWeightAveraging(decay=0.9)],
    ),
    "stochastic": Case(
        callbacks=lambda: [callbacks.StochasticWeightAveraging(0.01, swa_epoch_start=1)],
    ),
    "checkpoints": Case(
        left=lambda trainer, _: {
            name: str(value)
            for name, value in trainer.checkpoint_callback.state_dict().items()
            if name not in ("dirpath", "best_model_path", "best_k_models", "last_model_path")
        }
    ),
    "validated": Case(
        {"val_check_interval": 3, "log_every_n_steps": 1},
        model=Validated,
        check=checked,
        left=lambda trainer, _: {
            name: float(value) for name, value in trainer.callback_metrics.items()
        },
    ),
    "clipped": Case({"gradient_clip_val": 0.1, "limit_train_batches": 5}),
    "half": Case({"precision": "bf16-true"}, model=Half),
    "mean_of_epoch": Case(model=Means),
    "without_a_state": Case(data=Stateless),
}


def leave(model: Any) -> None:
    batch = model.trainer.fit_loop.epoch_loop.total_batch_idx
    if batch == model.leave_at:
        os.kill(os.getpid(), signal.SIGTERM)


def note(file: str, *words: Any) -> None:
    with Path(file).open("a") as opened:
        opened.write(" ".join(map(str, words)) + "\n")


def fit(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    made = case.callbacks()
    if not arguments.plain:
        import spotd_hook

        made.append(spotd_hook.lightning.Callback())
    settings = {
        "accelerator": "cpu",
        "logger": Lines(),
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "max_epochs": 3,
        "default_root_dir": "root",
        **case.settings,
    }
    trainer = pl.Trainer(callbacks=made, **settings)
    model = case.model()
    model.leave_at = arguments.leave_at
    data = case.data()
    if isinstance(data, pl.LightningDataModule):
        trainer.fit(model, datamodule=data)
    else:
        trainer.fit(model, data, case.check())
    from tests.trainer.hook.kinds import digest

    return {
        "weights": digest(dict(model.state_dict())),
        "optimizers": digest([one.state_dict() for one in trainer.optimizers]),
        "step": [trainer.global_step, trainer.current_epoch],
        "random": torch.rand(1).item(),
        "left": case.left(trainer, model),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--leave-at", type=int, default=-1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pl.seed_everything(3)
    result = fit(CASES[arguments.case], arguments)
    Path("result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
