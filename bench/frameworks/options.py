"""The settings of the programs, drawn by a seed: small models, and options as people mix them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

_SCHEDULERS = ("plateau", "one cycle", "warm restarts", "sequential", "step")
NEVER = 1000  # of patience: training does not stop early


def draw_settings(name: str, seed: int) -> dict[str, Any]:
    """Return the settings of a program: the same for the same seed."""
    return _DRAWN[name](Random(f"{name} {seed}"), seed)


def _loop(draw: Random, seed: int) -> dict[str, Any]:
    data = draw.choice(("computed", "stateful", "stateful"))
    return {
        "seed": seed,
        "steps": draw.randint(20, 36),
        "batch": draw.choice((2, 4)),
        "rows": draw.choice((18, 24, 30)),
        "noise": draw.choice((0.0, 0.1)),
        "data": data,
        "workers": draw.choice((0, 0, 2)),
        "accumulation": draw.choice((1, 1, 2, 3)),
        "optimizer": draw.choice(("adamw", "sgd", "amsgrad", "rmsprop")),
        "rate": draw.choice((0.02, 0.1)),
        "scheduler": draw.choice(_SCHEDULERS),
        "eval_steps": draw.randint(2, 5),
        "evaluates": draw.choice(("first", "first", "last")),
        "patience": draw.choice((NEVER, NEVER, 3)),
        "save_steps": draw.choice((0, 5)),
        "step_seed": draw.choice((None, 7)),
        "every": draw.randint(2, 6),
        "forgotten": [],
    }


def _accelerate(draw: Random, seed: int) -> dict[str, Any]:
    accumulation = draw.choice((1, 2, 3))
    batch = draw.choice((2, 4))
    return {
        "seed": seed,
        "steps": draw.randint(20, 36),
        "batch": batch,
        "rows": batch * accumulation * draw.randint(4, 7) + draw.choice((0, 1)),
        "workers": draw.choice((0, 0, 2)),
        "accumulation": accumulation,
        "precision": draw.choice(("no", "no", "bf16")),
        "optimizer": draw.choice(("adamw", "sgd", "amsgrad", "rmsprop")),
        "rate": draw.choice((0.02, 0.1)),
        "scheduler": draw.choice(_SCHEDULERS),
        "eval_steps": draw.randint(2, 5),
        "patience": draw.choice((NEVER, NEVER, 3)),
        "every": draw.randint(2, 6),
    }


def _trainer_arguments(draw: Random, seed: int) -> dict[str, Any]:
    """Return arguments that all trainers built on transformers' have."""
    by_epoch = draw.random() < 0.3
    arguments: dict[str, Any] = {
        "seed": seed,
        "per_device_train_batch_size": draw.choice((2, 4)),
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": draw.choice((1, 1, 2, 3)),
        "learning_rate": draw.choice((0.003, 0.05, 0.3)),
        "lr_scheduler_type": draw.choice(
            ("linear", "cosine", "constant_with_warmup", "polynomial", "reduce_lr_on_plateau")
        ),
        "optim": draw.choice(("adamw_torch", "adamw_torch", "adafactor", "sgd")),
        "weight_decay": draw.choice((0.0, 0.01)),
        "max_grad_norm": draw.choice((1.0, 0.0)),
        "logging_steps": draw.randint(1, 5),
        "logging_first_step": draw.choice((False, True)),
        "dataloader_num_workers": draw.choice((0, 0, 2)),
        "dataloader_drop_last": draw.choice((False, True)),
        "gradient_checkpointing": draw.choice((False, False, True)),
        "bf16": draw.choice((False, False, True)),
        "eval_strategy": "epoch" if by_epoch else "steps",
        "save_strategy": "epoch" if by_epoch else "steps",
    }
    if by_epoch:
        arguments["num_train_epochs"] = draw.randint(3, 5)
    else:
        arguments["max_steps"] = draw.randint(18, 32)
        arguments["eval_steps"] = arguments["save_steps"] = draw.randint(2, 4)
    if arguments["lr_scheduler_type"] == "reduce_lr_on_plateau":
        arguments["lr_scheduler_kwargs"] = {"patience": draw.choice((0, 1)), "factor": 0.5}
    elif arguments["lr_scheduler_type"] != "linear":
        arguments["warmup_steps"] = draw.choice((0, 5))
    return arguments


def _best(draw: Random, settings: dict[str, Any], metric: str) -> None:
    """Have the best model returned, and perhaps training stopped early."""
    arguments = settings["arguments"]
    if draw.random() < 0.6:
        arguments["load_best_model_at_end"] = True
        arguments["metric_for_best_model"] = metric
        arguments["save_total_limit"] = draw.choice((None, 1, 2))
        if draw.random() < 0.5:
            settings["patience"] = draw.randint(2, 4)
        if arguments["save_strategy"] == "steps" and draw.random() < 0.4:
            arguments["save_strategy"] = "best"
    elif draw.random() < 0.5:
        arguments["save_strategy"] = "no"


def _transformers(draw: Random, seed: int) -> dict[str, Any]:
    arguments = _trainer_arguments(draw, seed)
    settings: dict[str, Any] = {
        "seed": seed,
        "rows": draw.choice((30, 33, 40)),
        "model": {"resid_pdrop": draw.choice((0.0, 0.1)), "embd_pdrop": draw.choice((0.1, 0.2))},
        "metrics": draw.choice((False, True)),
        "arguments": arguments,
        "patience": 0,
        "every": draw.randint(2, 6),
    }
    _best(draw, settings, draw.choice(("loss", "accuracy")) if settings["metrics"] else "loss")
    arguments |= {
        "label_smoothing_factor": draw.choice((0.0, 0.0, 0.1)),
        "neftune_noise_alpha": draw.choice((None, None, 5.0)),
        "group_by_length": draw.choice((False, False, True)),
        "eval_on_start": draw.choice((False, False, True)),
        "dataloader_persistent_workers": bool(
            arguments["dataloader_num_workers"] and draw.random() < 0.5
        ),
        "data_seed": draw.choice((None, 17)),
        "logging_nan_inf_filter": draw.choice((True, False)),
        "eval_delay": draw.choice((0, 0, 2)),
    }
    return settings


def _trl(draw: Random, seed: int, trainer: str) -> dict[str, Any]:
    arguments = _trainer_arguments(draw, seed)
    settings: dict[str, Any] = {
        "seed": seed,
        "trainer": trainer,
        "rows": draw.choice((24, 30)),
        "lora": draw.choice((False, True)),
        "arguments": arguments,
        "patience": 0,
        "every": draw.randint(2, 6),
    }
    _best(draw, settings, "loss")
    if settings["lora"]:  # the best model of adapters is a folder of adapters
        arguments["gradient_checkpointing"] = False
    if trainer == "sft":
        arguments |= {"packing": draw.choice((False, False, True)), "max_length": 16}
    else:
        arguments |= {
            "beta": draw.choice((0.1, 0.5)),
            "precompute_ref_log_probs": draw.choice((False, True)),
            "max_length": 32,
        }
    return settings


def _lightning(draw: Random, seed: int) -> dict[str, Any]:
    batch = draw.choice((2, 4))
    batches, workers = draw.randint(6, 9), draw.choice((0, 0, 2))
    arguments: dict[str, Any] = {
        "accumulate_grad_batches": draw.choice((1, 1, 2)),
        "gradient_clip_val": draw.choice((None, 1.0)),
        "num_sanity_val_steps": draw.choice((0, 0, 2)),
        "log_every_n_steps": draw.choice((1, 50)),
    }
    if draw.random() < 0.5:
        arguments["max_epochs"] = draw.randint(3, 5)
    else:
        arguments |= {"max_epochs": -1, "max_steps": draw.randint(14, 30)}
    within = draw.choice((None, None, 3, 4))
    if within:
        arguments["val_check_interval"] = within
    elif draw.random() < 0.3:
        arguments["check_val_every_n_epoch"] = 2
    settings = {
        "seed": seed,
        "batch": batch,
        "rows": batch * batches,
        "workers": workers,
        "noise": 0.0 if workers else draw.choice((0.0, 0.1)),
        "loader": "stateful",
        "optimizer": draw.choice(("adamw", "sgd", "amsgrad", "rmsprop")),
        "rate": draw.choice((0.02, 0.1)),
        "scheduler": draw.choice(("plateau", "step", "sequential", "warm restarts")),
        "interval": draw.choice(("step", "epoch")),
        "steps": 40,
        "patience": draw.choice((0, 0, 2)),
        "averages": draw.random() < 0.2 and "max_steps" not in arguments,
        "arguments": arguments,
        "every": draw.randint(2, 6),
    }
    if settings["scheduler"] == "plateau":  # it needs a validation at each of its steps
        arguments.pop("check_val_every_n_epoch", None)
    return settings


def _deepspeed(draw: Random, seed: int) -> dict[str, Any]:
    accumulation, batch = draw.choice((1, 2)), draw.choice((2, 4))
    bf16 = draw.choice((False, True))
    return {
        "seed": seed,
        "steps": draw.randint(16, 24),
        "accumulation": accumulation,
        "batch": batch,
        "rate": 0.05,
        "scheduler": draw.choice(("step", "sequential", "warm restarts")),
        "eval_steps": draw.randint(2, 5),
        "save_steps": draw.randint(2, 4),
        "every": 0,
        "config": {
            "train_batch_size": accumulation * batch,
            "gradient_accumulation_steps": accumulation,
            "gradient_clipping": draw.choice((0.0, 1.0)),
            "zero_optimization": {"stage": draw.choice((0, 1, 2) if not bf16 else (1, 2))},
            "bf16": {"enabled": bf16},
        },
    }


_DRAWN: dict[str, Callable[[Random, int], dict[str, Any]]] = {
    "loop": _loop,
    "transformers": _transformers,
    "lightning": _lightning,
    "accelerate": _accelerate,
    "trl_sft": lambda draw, seed: _trl(draw, seed, "sft"),
    "trl_dpo": lambda draw, seed: _trl(draw, seed, "dpo"),
    "deepspeed": _deepspeed,
}
