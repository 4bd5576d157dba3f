"""Trainings with transformers' Trainer, each of which a resume could spoil in a way of its own.

    hf_cases.py CASE [--plain] [--leave-at STEP] [--more STEPS]

In step `--leave-at` the program asks itself to stop, as a machine that ends does. With `--plain` it
runs without spotd, with `--more` for another number of steps. Writes what is left at the end to
result.json; seen.txt has the rows of each batch, on all machines. Not a test itself.
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

import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState

Row = dict[str, Tensor]
ROWS = 38  # in batches of 4: nine, and a partial one


class Tiny(nn.Module):
    """Notes the rows that it is trained with."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(64, 8), nn.Dropout(0.1), nn.Linear(8, 64)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        if self.training:
            note_seen(input_ids)
        logits = self.head(self.drop(self.embed(input_ids)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), input_ids.flatten())
        return {"loss": loss, "logits": logits}

    def num_parameters(self, **_: Any) -> int:
        return 100


def note_seen(rows: Tensor) -> None:
    with Path("seen.txt").open("a") as file:
        file.write(" ".join(str(int(row[0])) for row in rows) + f" | {int(rows.sum())}\n")


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=16, vocab_size=64)
    )


class Rows(torch.utils.data.Dataset[Row]):
    """Row `n` begins with `n`. Its length may differ, or its last token be drawn at random."""

    def __init__(self, *, length: Callable[[int], int] = lambda _: 6, random: bool = False) -> None:
        self.length, self.random = length, random

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Row:
        if index >= ROWS:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(index)
        row = torch.randint(0, 64, (self.length(index),), generator=generator)
        row[0] = index
        if self.random:
            row[-1] = torch.randint(0, 64, (1,))
        return {"input_ids": row, "labels": row}


class Stream(torch.utils.data.IterableDataset[Row]):
    """Rows in an order that the epoch sets, or the number of times that it was iterated."""

    def __init__(self, *, counts: bool) -> None:
        self.epoch, self.counts, self.rows = 0, counts, Rows()
        if not counts:
            self.set_epoch = lambda epoch: setattr(self, "epoch", epoch)

    def __iter__(self) -> Iterator[Row]:
        generator = torch.Generator().manual_seed(self.epoch)
        self.epoch += self.counts
        for index in torch.randperm(ROWS, generator=generator).tolist():
            yield self.rows[index]


def padded(rows: list[Row]) -> Row:
    tokens = nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {"input_ids": tokens, "labels": tokens}


def masked(rows: list[Row]) -> Row:
    """Tokens are masked at random while rows are made into a batch."""
    batch = padded(rows)
    hidden = torch.rand(batch["input_ids"].shape) < 0.3
    hidden[:, 0] = False
    tokens = batch["input_ids"].masked_fill(hidden, 63)
    return {"input_ids": tokens, "labels": batch["labels"]}


class Counting(TrainerCallback, ExportableState):
    """A callback with a state of its own: the sum of the numbers of the steps."""

    def __init__(self, total: int = 0) -> None:
        self.total = total

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control, kwargs
        self.total += state.global_step

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"total": self.total}}


@dataclass
class Case:
    """`left` returns what the case is about, from the trainer, as JSON."""

    settings: dict[str, Any]
    rows: Any = field(default_factory=Rows)
    model: Callable[[], Any] = Tiny
    collate: Any = padded
    callbacks: tuple[TrainerCallback, ...] = ()
    optimizers: Callable[[Any], Any] = lambda _: (None, None)
    trainings: int = 1
    left: Callable[[Any], Any] = lambda _: None


def own_optimizers(model: Any) -> Any:
    groups = [
        {"params": [one for name, one in model.named_parameters() if "embed" in name], "lr": 0.05},
        {"params": [one for name, one in model.named_parameters() if "head" in name], "lr": 0.01},
    ]
    optimizer = torch.optim.RMSprop(groups, momentum=0.5)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5)


def groups_of(trainer: Any) -> Any:
    return [[group["lr"], group["initial_lr"]] for group in trainer.optimizer.param_groups]


def adapters() -> Any:
    """Two adapters and a layer that is trained whole, on a frozen model."""
    from peft import LoraConfig, get_peft_model

    settings = {"r": 2, "target_modules": ["c_attn"], "lora_dropout": 0.1}
    config = LoraConfig(**settings, modules_to_save=["ln_f"])
    model = get_peft_model(gpt2(), config, "first")
    model.add_adapter("second", LoraConfig(**settings))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("first" in name or "second" in name)
    model.base_model.set_adapter(["first", "second"])
    return model


def adapters_of(trainer: Any) -> Any:
    names = [name for name, one in trainer.model.named_parameters() if one.requires_grad]
    return sorted({name.split(".")[-2] for name in names}), trainer.model.active_adapters


def tied(trainer: Any) -> Any:
    return trainer.model.lm_head.weight is trainer.model.transformer.wte.weight


EPOCHS = {"num_train_epochs": 3}
CASES = {
    "accumulation": Case({**EPOCHS, "gradient_accumulation_steps": 3}),
    "workers": Case(
        {**EPOCHS, "dataloader_drop_last": True, "dataloader_num_workers": 2, "data_seed": 3}
    ),
    "lengths": Case(
        {**EPOCHS, "train_sampling_strategy": "group_by_length"},
        Rows(length=lambda index: 2 + 7 * index % 9),
    ),
    "tokens": Case(
        {**EPOCHS, "include_num_input_tokens_seen": "all"},
        Rows(length=lambda index: 2 + index % 5),
        left=lambda one: [one.state.num_input_tokens_seen, one.state.total_flos],
    ),
    "callback": Case(
        EPOCHS,
        callbacks=(Counting(),),
        left=lambda one: [
            callback.total
            for callback in one.callback_handler.callbacks
            if isinstance(callback, Counting)
        ],
    ),
    "restarts": Case(
        {**EPOCHS, "lr_scheduler_type": "cosine_with_restarts", "optim": "adafactor"}
        | {"lr_scheduler_kwargs": {"num_cycles": 3}, "warmup_steps": 4}
    ),
    "optimizers": Case(EPOCHS, optimizers=own_optimizers, left=groups_of),
    "mean_of_epoch": Case({**EPOCHS, "logging_strategy": "epoch"}),
    "bfloat16": Case({**EPOCHS, "optim": "sgd", "bf16": True}),
    "compiled": Case({**EPOCHS, "torch_compile": True, "torch_compile_backend": "eager"}),
    "noise": Case({**EPOCHS, "neftune_noise_alpha": 5.0}, model=gpt2, left=tied),
    "adapters": Case({**EPOCHS, "learning_rate": 0.1}, model=adapters, left=adapters_of),
    "twice": Case({"max_steps": 8}, trainings=2),
    "constant": Case({"max_steps": 12, "lr_scheduler_type": "constant"}),
    "stream": Case({"max_steps": 9}, Stream(counts=False)),
    "stream_of_epochs": Case({"max_steps": 25}, Stream(counts=False)),
    "stream_that_counts": Case({"max_steps": 25}, Stream(counts=True)),
    "random_batches": Case(EPOCHS, collate=masked),
    "random_rows": Case({**EPOCHS, "dataloader_num_workers": 1}, Rows(random=True)),
    "other_data": Case({**EPOCHS, "ignore_data_skip": True}),
    "first_evaluation": Case({**EPOCHS, "eval_on_start": True, "eval_strategy": "epoch"}),
}


class Leave(TrainerCallback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control, kwargs
        if state.global_step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def train(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    settings = {
        "output_dir": "out",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.02,
        "logging_steps": 4,
        **case.settings,
    }
    if arguments.more:
        settings["max_steps"] = arguments.more
    model = case.model()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**settings),
        train_dataset=case.rows,
        eval_dataset=Rows(),
        data_collator=case.collate,
        callbacks=[Leave(arguments.leave_at), *case.callbacks],
        optimizers=case.optimizers(model),
    )
    if not arguments.plain:
        import spotd_hook

        trainer.add_callback(spotd_hook.hf.Callback(trainer))
    for _ in range(case.trainings):
        trainer.train()
    timed = ("runtime", "per_second")
    return {
        "weights": digest(trainer.model),
        "log_history": [
            {name: value for name, value in line.items() if not any(one in name for one in timed)}
            for line in trainer.state.log_history
        ],
        "step": [trainer.state.global_step, trainer.state.epoch, trainer.state.max_steps],
        "left": case.left(trainer),
    }


def digest(model: nn.Module) -> str:
    from tests.trainer.hook import kinds

    return kinds.digest(dict(sorted(model.state_dict().items())))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--leave-at", type=int, default=-1)
    parser.add_argument("--more", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(5)
    result = train(CASES[arguments.case], arguments)
    Path("result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
