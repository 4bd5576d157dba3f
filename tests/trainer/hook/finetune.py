"""A small GPT-2 with transformers' Trainer and whatever arguments of it a test gives.

    finetune.py '{"max_steps": 30, ...}' [--patience N] [--trainings N] [--data KIND]
        [--loader torchdata|counting] [--plain]

Prints the evaluations and writes what `train()` left to result-N.json. With `--plain` it runs
without spotd. Not a test itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tests.trainer.hook.finetune_data import KINDS, CountingLoader


def hold(where: str, step: int) -> None:
    """Wait at the place and step that HELD_IN names until the file HELD_UNTIL exists."""
    if os.environ.get("HELD_IN") == f"{where} {step}":
        Path(f"held in {where}").touch()
        while not Path(os.environ["HELD_UNTIL"]).exists():
            time.sleep(0.005)


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    trainer: Trainer | None = None

    def __init__(self, count: int, seed: int, name: str) -> None:
        self.name = name
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(0, 64, (count, 16), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if Rows.trainer is not None:
            hold(self.name, Rows.trainer.state.global_step)
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Hold(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control, kwargs
        hold("step", state.global_step)


def digest(model: torch.nn.Module) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return total.hexdigest()


def give_loader(trainer: Trainer, kind: str) -> None:
    """Have the trainer read its data by a loader that keeps a state."""
    options: dict[str, Any] = {
        "batch_size": trainer.args.per_device_train_batch_size,
        "num_workers": trainer.args.dataloader_num_workers,
        "collate_fn": trainer.data_collator,
    }
    if kind == "torchdata":
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader: Any = StatefulDataLoader(trainer.train_dataset, **options)
    else:
        loader = CountingLoader(trainer.train_dataset, **options)
    trainer.get_train_dataloader = lambda: loader  # type: ignore[method-assign]


def train(arguments: argparse.Namespace, number: int, model: torch.nn.Module) -> Trainer:
    settings = {
        "output_dir": "out",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 8,
        "logging_steps": 3,
        "seed": 11 + number,
        **json.loads(arguments.settings),
    }
    callbacks: list[TrainerCallback] = [Hold()]
    if arguments.patience:
        callbacks.append(EarlyStoppingCallback(arguments.patience))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**settings),
        train_dataset=KINDS[arguments.data]() if arguments.data else Rows(40, number, "data"),
        eval_dataset=Rows(16, 99, "evaluation"),
        callbacks=callbacks,
    )
    if arguments.loader:
        give_loader(trainer, arguments.loader)
    if not arguments.plain:
        import spotd_hook

        trainer.add_callback(spotd_hook.hf.Callback(trainer))
    Rows.trainer = trainer
    output = trainer.train()
    timed = ("runtime", "per_second", "flos")
    history = [
        {name: value for name, value in line.items() if not any(word in name for word in timed)}
        for line in trainer.state.log_history
    ]
    result = {
        "weights": digest(trainer.model),
        "log_history": history,
        "training_loss": output.training_loss,
        "global_step": trainer.state.global_step,
        "best_step": trainer.state.best_global_step,
        "best_metric": trainer.state.best_metric,
        "best_folder": trainer.state.best_model_checkpoint,
    }
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint:
        best = GPT2LMHeadModel.from_pretrained(trainer.state.best_model_checkpoint)
        result["best_weights"] = digest(best)
    Path(f"result-{number}.json").write_text(json.dumps(result, indent=1))
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("settings")
    parser.add_argument("--patience", type=int, default=0)
    parser.add_argument("--trainings", type=int, default=1)
    parser.add_argument("--data", choices=KINDS, default="")
    parser.add_argument("--loader", default="")
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(5)
    torch.set_num_threads(1)
    for number in range(arguments.trainings):
        config = GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=16, vocab_size=64)
        model = GPT2LMHeadModel(config)
        train(arguments, number, model)


if __name__ == "__main__":
    main()
