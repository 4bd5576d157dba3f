"""A small GPT-2 with transformers' Trainer, and whatever arguments of it the settings give."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from bench.frameworks.programs.place import (
    digest,
    digest_optimizer,
    random_tokens,
    reach,
    reach_in,
    read_arguments,
    write_result,
)

QUIET = {"output_dir": "out", "report_to": [], "use_cpu": True, "disable_tqdm": True}
_TIMES = ("runtime", "per_second", "flos")


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, count: int, seed: int) -> None:
        self.rows = random_tokens(count, seed)
        lengths = torch.randint(4, 13, (count,), generator=torch.Generator().manual_seed(seed))
        self.lengths = lengths.tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        labels = row.clone()
        labels[self.lengths[index] :] = -100  # the tokens of a batch differ in number
        return {"input_ids": row, "labels": labels, "length": self.lengths[index]}


class Places(TrainerCallback):
    """Comes to the end of each epoch."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control, kwargs
        reach("epoch", state.global_step)


def arguments_of(kind: Any, settings: dict[str, Any]) -> Any:
    """Return the arguments as this version of transformers names them."""
    given = {**QUIET, **settings}
    known = {field.name for field in fields(kind)}
    if given.pop("group_by_length", False):
        by_length = "group_by_length" in known
        name, value = (
            ("group_by_length", True)
            if by_length
            else (
                "train_sampling_strategy",
                "group_by_length",
            )
        )
        given[name] = value
    if unknown := given.keys() - known:
        raise SystemExit(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**given)


def result_of(trainer: Any, output: Any) -> dict[str, Any]:
    """Return what `train()` left, by what is compared."""
    history = [
        {name: one for name, one in line.items() if not any(word in name for word in _TIMES)}
        for line in trainer.state.log_history
    ]
    state = trainer.state
    best = state.best_model_checkpoint if trainer.args.load_best_model_at_end else None
    files = sorted(Path(best).glob("*.safetensors")) if best else []
    returned = [[file.name, digest(load_file(file))] for file in files]
    metrics = {
        name: one
        for name, one in output.metrics.items()
        if not any(word in name for word in _TIMES)
    }
    return {
        "losses": [one for one in history if "loss" in one],
        "evaluations": [one for one in history if "eval_loss" in one],
        "rates": [one["learning_rate"] for one in history if "learning_rate" in one],
        "history": history,
        "weights": digest(trainer.model.state_dict()),
        "optimizer": digest_optimizer(trainer.optimizer),
        "best": [returned, best, state.best_metric, state.best_global_step],
        "output": [output.global_step, output.training_loss, metrics],
        "trainer": [state.global_step, state.epoch, state.num_input_tokens_seen],
    }


def train(trainer: Any, *, plain: bool) -> dict[str, Any]:
    if not plain:
        import spotd_hook

        trainer.add_callback(spotd_hook.hf.Callback(trainer))
    reach_in(trainer.model, lambda: trainer.state.global_step)
    return result_of(trainer, trainer.train())


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the share of tokens that were guessed."""
    logits = (
        prediction.predictions[0]
        if isinstance(prediction.predictions, tuple)
        else (prediction.predictions)
    )
    guessed = logits.argmax(-1)[:, :-1] == prediction.label_ids[:, 1:]
    return {"accuracy": float(guessed.mean())}


def main() -> None:
    settings, plain = read_arguments()
    torch.manual_seed(settings["seed"])
    config = GPT2Config(
        n_layer=1, n_head=2, n_embd=16, n_positions=16, vocab_size=64, **settings["model"]
    )
    callbacks: list[TrainerCallback] = [Places()]
    if settings["patience"]:
        callbacks.append(EarlyStoppingCallback(settings["patience"]))
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments_of(TrainingArguments, settings["arguments"]),
        train_dataset=Rows(settings["rows"], 1),
        eval_dataset=Rows(12, 99),
        compute_metrics=accuracy if settings["metrics"] else None,
        callbacks=callbacks,
    )
    Path("out").mkdir(exist_ok=True)
    write_result(train(trainer, plain=plain))


if __name__ == "__main__":
    main()
