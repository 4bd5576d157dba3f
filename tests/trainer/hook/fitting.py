"""A small model with Lightning's Trainer and whatever arguments of it a test gives.

    fitting.py '{"max_epochs": 3, ...}' [--callbacks '[["Timer", {...}]]'] [--shuffle | --ends] ...
    fitting.py ... --plain

Writes what `fit()` left to result-N.json, with the files of ModelCheckpoint. `--shuffle` takes
torch's own loader, which keeps no state; else the loader does. One that `--ends` has a last state
from which it has no more batches, and draws its rows from the program's generators. With `--plain`
it runs without spotd. Not a test itself.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as pl
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import nn

from tests.trainer.hook.holding import hold_until

BATCHES = 10  # of an epoch


class Rows:
    """Batches by their number, and a position, as loaders with a state have."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.at %= BATCHES
        while self.at < BATCHES:
            self.at += 1
            yield torch.randn(4, 8, generator=torch.Generator().manual_seed(self.at))

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Ending(Rows):
    """As torchdata's loader with workers: the state of an epoch's end yields an empty one."""

    def __init__(self) -> None:
        super().__init__()
        self.restored = False

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.at, self.restored = self.at if self.restored else 0, False
        return self._rest()

    def _rest(self) -> Iterator[torch.Tensor]:
        while self.at < BATCHES:
            self.at += 1
            yield torch.randn(4, 8)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.restored = True


MEANS = ("mean", "highest", "of ranks")  # over an epoch


class Model(pl.LightningModule):
    """Its learning rate is set by the validation's loss."""

    fit = 0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
        self.seen: list[tuple[int, float]] = []
        self.losses: list[float] = []  # of the validation under way

    def training_step(self, rows: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.layers(rows), rows.square().sum(dim=1, keepdim=True))
        if self.trainer.training:
            self.log("mean", loss, on_step=False, on_epoch=True)
            self.log("highest", loss, on_step=False, on_epoch=True, reduce_fx="max")
            several, own = self.trainer.world_size > 1, loss * (1 + self.trainer.global_rank)
            self.log("of ranks", own, on_step=False, on_epoch=True, sync_dist=several)
        return loss

    def validation_step(self, rows: torch.Tensor) -> None:
        hold("evaluation", self.trainer.global_step)
        loss = self.training_step(rows)
        self.log("val_loss", loss, sync_dist=self.trainer.world_size > 1)
        self.losses.append(float(loss))

    def on_validation_epoch_end(self) -> None:
        self.seen.append((self.trainer.global_step, sum(self.losses)))
        self.losses = []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen"] = [list(one) for one in self.seen]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seen = [(int(step), float(loss)) for step, loss in checkpoint["seen"]]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.3)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {
            "optimizer": optimizer,
            # Not strict: there may be epochs without a validation.
            "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss", "strict": False},
        }


def hold(where: str, step: int) -> None:
    """Wait at the place and step that HELD_IN names until the file HELD_UNTIL exists.

    With HELD_RANK only that rank does, and with HELD_FIT in the fit of that number.
    """
    env = os.environ
    is_held = (
        env.get("HELD_IN") == f"{where} {step}"
        and env.get("RANK", "0") == env.get("HELD_RANK", env.get("RANK", "0"))
        and str(Model.fit) == env.get("HELD_FIT", str(Model.fit))
    )
    if is_held:
        Path(f"held in {where}").touch()
        hold_until(Path(os.environ["HELD_UNTIL"]))


class Hold(Callback):
    def on_train_batch_start(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        hold("step", trainer.global_step)


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        total.update(name.encode() + tensor.numpy().tobytes())
    return total.hexdigest()


def files_of(checkpoint: Any) -> dict[str, Any]:
    """What a ModelCheckpoint knows and has written; paths are those in its folder."""
    folder = Path(checkpoint.dirpath)

    def name(path: str) -> str:
        return str(Path(path).absolute().relative_to(folder.absolute())) if path else ""

    found = {}
    for path in sorted(folder.rglob("*.ckpt")):
        loaded = torch.load(path, weights_only=False)
        found[name(str(path))] = {
            "link": path.is_symlink(),
            "weights": digest(loaded["state_dict"]),
            "global_step": loaded["global_step"],
            "whole": "optimizer_states" in loaded,
        }
    return {
        "files": found,
        "best": name(checkpoint.best_model_path),
        "last": name(checkpoint.last_model_path),
        "score": None
        if checkpoint.best_model_score is None
        else float(checkpoint.best_model_score),
        "top": {name(path): float(score) for path, score in checkpoint.best_k_models.items()},
    }


def made_of(given: str) -> Iterator[Callback]:
    """The callbacks that the command line names, with their arguments."""
    for kind, values in json.loads(given):
        if "train_time_interval" in values:
            values["train_time_interval"] = timedelta(seconds=values["train_time_interval"])
        if kind == "GradientAccumulationScheduler":
            scheduling = {int(epoch): count for epoch, count in values.items()}
            yield callbacks.GradientAccumulationScheduler(scheduling)
            continue
        yield getattr(callbacks, kind)(**values)


def fit(arguments: argparse.Namespace, number: int) -> None:
    made = [Hold(), *made_of(arguments.callbacks)]
    if arguments.patience:
        made.append(EarlyStopping("val_loss", patience=arguments.patience))
    if not arguments.plain:
        import spotd_hook

        made.append(spotd_hook.lightning.Callback())
    settings = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": f"root-{number}",
        **json.loads(arguments.settings),
    }
    if settings.get("plugins") == "AsyncCheckpointIO":
        settings["plugins"] = AsyncCheckpointIO()
    trainer = pl.Trainer(callbacks=made, **settings)
    model = Model()
    Model.fit = number
    loader: Any = Ending() if arguments.ends else Rows()
    if arguments.shuffle:
        rows = [torch.randn(8, generator=torch.Generator().manual_seed(n)) for n in range(40)]
        loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
    check = torch.utils.data.DataLoader(
        [torch.randn(8, generator=torch.Generator().manual_seed(n)) for n in range(90, 98)],
        batch_size=4,
    )
    more = {}
    if arguments.ckpt_path:
        more = {"ckpt_path": arguments.ckpt_path}
        if "weights_only" in inspect.signature(trainer.fit).parameters:
            more["weights_only"] = False
    trainer.fit(model, loader, check, **more)
    [optimizer] = trainer.optimizers
    result = {
        "weights": digest(model.state_dict()),
        "validations": model.seen,
        "means": {name: float(trainer.callback_metrics[name]) for name in MEANS},
        "rate": optimizer.param_groups[0]["lr"],
        "global_step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
        "random": torch.rand(1).item(),
        "checkpoints": [
            files_of(one)
            for one in trainer.checkpoint_callbacks
            # Rank 0 alone writes and deletes files, and has done so when it comes here.
            if trainer.is_global_zero and isinstance(one, ModelCheckpoint)
        ],
    }
    if not trainer.is_global_zero:
        return
    Path(f"result-{number}.json").write_text(json.dumps(result, indent=1))
    for timer in (one for one in trainer.callbacks if isinstance(one, callbacks.Timer)):
        before_s = timer.time_elapsed() - (timer.end_time() - timer.start_time())
        Path("seconds-before").write_text(str(before_s))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("settings")
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--callbacks", default="[]")
    parser.add_argument("--ckpt-path")
    parser.add_argument("--ends", action="store_true")
    parser.add_argument("--patience", type=int, default=0)
    parser.add_argument("--fits", type=int, default=1)
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pl.seed_everything(3)
    for number in range(arguments.fits):
        fit(arguments, number)


if __name__ == "__main__":
    main()
