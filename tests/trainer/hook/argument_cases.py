"""Settings of trainers that are interrupted, and the arguments that each of them shows.

The page docs/arguments.md names the case of an argument; a test requires one for each that is said
to be honoured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from trainer.hook.spotd_hook import arguments


@dataclass(frozen=True)
class Case:
    """The trainer's arguments, those of the program beside them, and where the machine ends.

    `shows`: names of arguments by their owner.
    """

    name: str
    settings: Mapping[str, Any]
    shows: Mapping[str, str]
    more: tuple[str, ...] = ()
    left_at: int = 15
    notice: bool = False
    every: int = 4
    soak: bool = field(default=False, kw_only=True)


def parameters(cases: Iterable[Case]) -> list[Any]:
    """Return the cases for pytest; those of the soak are marked."""
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.soak] if case.soak else [])
        for case in cases
    ]


def _callbacks(*given: tuple[str, Mapping[str, Any]]) -> tuple[str, ...]:
    return ("--callbacks", json.dumps(given))


_BEST = {
    "monitor": "val_loss",
    "mode": "min",
    "save_top_k": 2,
    "save_last": True,
    "filename": "{epoch}-{val_loss:.4f}",
}

LIGHTNING = (
    Case(
        "the best files and the last one",
        {"max_epochs": 4, "default_root_dir": "root-best", "num_sanity_val_steps": 2},
        {
            arguments.PL_TRAINER: "max_epochs default_root_dir num_sanity_val_steps callbacks",
            arguments.MODEL_CHECKPOINT: "monitor mode save_top_k save_last filename",
        },
        _callbacks(("ModelCheckpoint", _BEST)),
        left_at=35,
    ),
    Case(
        "files by steps, and a link",
        {"max_steps": 24},
        {
            arguments.PL_TRAINER: "max_steps",
            arguments.MODEL_CHECKPOINT: "every_n_train_steps save_weights_only dirpath",
        },
        _callbacks(
            (
                "ModelCheckpoint",
                {
                    "every_n_train_steps": 7,
                    "save_last": "link",
                    "save_weights_only": True,
                    "dirpath": "root-own",
                },
            )
        ),
        left_at=22,
        every=2,
    ),
    Case(
        "averaged weights",
        {"max_epochs": 3, "val_check_interval": 5},
        {
            arguments.PL_TRAINER: "val_check_interval",
            arguments.EMA: "device use_buffers decay update_every_n_steps update_starting_at_step "
            "update_starting_at_epoch",
        },
        _callbacks(
            (
                "EMAWeightAveraging",
                {
                    "device": "cpu",
                    "use_buffers": True,
                    "decay": 0.8,
                    "update_every_n_steps": 2,
                    "update_starting_at_step": 3,
                    "update_starting_at_epoch": 1,
                },
            )
        ),
    ),
    Case(
        "stochastic weight averaging",
        {"max_epochs": 4},
        {
            arguments.SWA: "swa_lrs swa_epoch_start annealing_epochs annealing_strategy avg_fn "
            "device"
        },
        _callbacks(
            (
                "StochasticWeightAveraging",
                {
                    "swa_lrs": 0.01,
                    "swa_epoch_start": 2,
                    "annealing_epochs": 2,
                    "annealing_strategy": "linear",
                    "device": "cpu",
                },
            )
        ),
        left_at=25,
    ),
    Case(
        "gradients that accumulate",
        {"max_epochs": 4},
        {
            arguments.PL_TRAINER: "accumulate_grad_batches",
            arguments.ACCUMULATION_SCHEDULER: "scheduling",
        },
        _callbacks(("GradientAccumulationScheduler", {"0": 1, "1": 2})),
        left_at=18,
        every=1,
    ),
    Case(
        "limits of batches",
        {
            "max_epochs": 4,
            "min_epochs": 2,
            "limit_train_batches": 7,
            "limit_val_batches": 1,
            "check_val_every_n_epoch": 2,
            "reload_dataloaders_every_n_epochs": 1,
            "accumulate_grad_batches": 2,
            "enable_checkpointing": False,
        },
        {
            arguments.PL_TRAINER: "min_epochs limit_train_batches limit_val_batches "
            "check_val_every_n_epoch reload_dataloaders_every_n_epochs accumulate_grad_batches "
            "enable_checkpointing"
        },
        left_at=10,
    ),
    Case(
        "early stopping",
        {"max_epochs": 9},
        {
            arguments.EARLY_STOPPING: "monitor min_delta patience mode stopping_threshold "
            "divergence_threshold check_on_train_epoch_end strict check_finite"
        },
        _callbacks(
            (
                "EarlyStopping",
                {
                    "monitor": "val_loss",
                    "min_delta": 0.5,
                    "patience": 3,
                    "mode": "min",
                    "stopping_threshold": 0.001,
                    "divergence_threshold": 1e9,
                    "check_on_train_epoch_end": True,
                    "strict": True,
                    "check_finite": True,
                },
            )
        ),
        left_at=20,
        notice=True,
        every=100,
    ),
    Case(
        "files by epochs",
        {"max_epochs": 5},
        {
            arguments.MODEL_CHECKPOINT: "every_n_epochs save_on_train_epoch_end "
            "enable_version_counter auto_insert_metric_name",
        },
        _callbacks(
            (
                "ModelCheckpoint",
                {
                    "monitor": "val_loss",
                    "every_n_epochs": 2,
                    "save_on_train_epoch_end": True,
                    "enable_version_counter": False,
                    "auto_insert_metric_name": False,
                    "filename": "after{epoch}",
                },
            )
        ),
        left_at=25,
        every=10,
    ),
    Case(
        "the time in training",
        {"max_steps": 20, "min_steps": 5, "max_time": {"minutes": 30}},
        {
            arguments.PL_TRAINER: "max_time min_steps",
            arguments.TIMER: "duration interval",
        },
        left_at=12,
    ),
    Case(
        "averaged weights by Lightning's base class",
        {"max_epochs": 2},
        {arguments.WEIGHT_AVERAGING: "device use_buffers"},
        _callbacks(("WeightAveraging", {"device": "cpu", "use_buffers": False})),
        soak=True,
    ),
    Case(
        "files by time",
        {"max_steps": 12},
        {arguments.MODEL_CHECKPOINT: "train_time_interval"},
        _callbacks(("ModelCheckpoint", {"train_time_interval": 0, "save_last": True})),
        left_at=8,
        soak=True,
    ),
    Case(
        "few batches, again and again",
        {"overfit_batches": 3, "max_epochs": 5, "precision": "bf16-mixed"},
        {arguments.PL_TRAINER: "overfit_batches precision"},
        left_at=8,
        soak=True,
    ),
    Case(
        "barebones",
        {"barebones": True, "max_epochs": 2},
        {arguments.PL_TRAINER: "barebones"},
        soak=True,
    ),
    Case(
        "fast_dev_run",
        {"fast_dev_run": 3},
        {arguments.PL_TRAINER: "fast_dev_run"},
        left_at=2,
        every=1,
        soak=True,
    ),
)
# Shown by tests of their own, in test_lightning_arguments.py.
LIGHTNING_TESTS: Mapping[str, Mapping[str, str]] = {
    "test_another_folder_of_the_logger": {arguments.PL_TRAINER: "logger"},
    "test_the_file_that_the_program_begins_with": {arguments.PL_FIT: "ckpt_path weights_only"},
}


def _args(names: str) -> Mapping[str, str]:
    return {arguments.TRAINING_ARGUMENTS: names}


_EVALUATED = {
    "max_steps": 24,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "save_strategy": "steps",
    "save_steps": 3,
    "learning_rate": 0.3,
}
TRANSFORMERS = (
    Case(
        "the best model, not loaded",
        {
            **_EVALUATED,
            "metric_for_best_model": "eval_loss",
            "greater_is_better": True,
            "eval_on_start": True,
            "eval_delay": 2,
            "logging_strategy": "steps",
            "logging_steps": 2,
            "logging_first_step": True,
            "include_num_input_tokens_seen": "all",
            "save_on_each_node": True,
        },
        {
            arguments.TRAINING_ARGUMENTS: "output_dir metric_for_best_model greater_is_better "
            "eval_strategy eval_steps eval_on_start eval_delay logging_strategy logging_steps "
            "logging_first_step include_num_input_tokens_seen save_strategy save_steps "
            "save_on_each_node max_steps",
            arguments.HF_TRAIN: "ignore_keys_for_eval",
        },
        ("--patience", "20"),
    ),
    Case(
        "the order of an epoch, drawn without a seed of its own",
        {
            "num_train_epochs": 3,
            "accelerator_config": {"use_seedable_sampler": False},
            "gradient_accumulation_steps": 2,
            "dataloader_num_workers": 1,
            "full_determinism": False,
        },
        _args("num_train_epochs accelerator_config gradient_accumulation_steps seed"),
        left_at=7,
        every=2,
    ),
    Case(
        "states of callbacks restored by the trainer, and the best model",
        {
            **_EVALUATED,
            "load_best_model_at_end": True,
            "restore_callback_states_from_checkpoint": True,
            "data_seed": 7,
        },
        {
            arguments.TRAINING_ARGUMENTS: "load_best_model_at_end "
            "restore_callback_states_from_checkpoint data_seed",
            arguments.HF_TRAINER: "callbacks",
            arguments.EARLY_STOPPING_CALLBACK: "early_stopping_patience early_stopping_threshold",
        },
        ("--patience", "3"),
        left_at=12,
        notice=True,
    ),
    Case(
        "an optimizer and a model of the program",
        {"max_steps": 20},
        {arguments.HF_TRAINER: "model_init optimizers optimizer_cls_and_kwargs"},
        ("--own-optimizer",),
        soak=True,
    ),
    *(
        Case(
            f"the order that {name} draws",
            {"num_train_epochs": 3, name: value},
            _args(name),
            soak=True,
        )
        for name, value in (
            ("train_sampling_strategy", "group_by_length"),
            ("group_by_length", True),
        )
    ),
    Case(
        "files of torch",
        {**_EVALUATED, "load_best_model_at_end": True, "save_safetensors": False},
        _args("save_safetensors"),
        soak=True,
    ),
    Case("model_init", {"max_steps": 20}, {}, ("--model-init",), soak=True),
    *(
        Case(
            f"the scheduler {kind} and the optimizer {optimizer}",
            {"max_steps": 20, "lr_scheduler_type": kind, "optim": optimizer, **more},
            _args("lr_scheduler_type optim full_determinism"),
            soak=True,
        )
        for kind, optimizer, more in (
            ("cosine_with_restarts", "adafactor", {}),
            ("polynomial", "sgd", {"full_determinism": True}),
            (
                "warmup_stable_decay",
                "rmsprop",
                {"lr_scheduler_kwargs": {"num_decay_steps": 5}, "warmup_steps": 5},
            ),
        )
    ),
)
# Shown by tests of their own, in test_hf_arguments.py.
TRANSFORMERS_TESTS: Mapping[str, Mapping[str, str]] = {
    "test_the_best_model_of_sharded_ranks": _args("fsdp fsdp_config"),
    "test_a_checkpoint_that_the_program_begins_with": {
        arguments.HF_TRAIN: "resume_from_checkpoint",
        arguments.TRAINING_ARGUMENTS: "resume_from_checkpoint",
    },
    "test_more_steps_than_before": _args("max_steps num_train_epochs"),
    "test_data_that_is_not_skipped": _args("ignore_data_skip"),
    "test_each_save_is_pushed": _args("push_to_hub hub_strategy"),
}
# What needs something that tests do not have, and what it is.
NOT_SHOWN: Mapping[tuple[str, str], str] = {
    (arguments.TRAINING_ARGUMENTS, "fp16"): "a GPU",
}
# Lightning's other callbacks: they have no arguments that have to do with saving and resume.
OTHER_CALLBACKS: Mapping[str, str] = {
    "Callback Checkpoint LambdaCallback": "what their own state_dict() returns is saved",
    "BaseFinetuning BackboneFinetuning ModelPruning": "saved as in Lightning's own checkpoints, "
    "and not tested here; Lightning keeps no masks of ModelPruning",
    "SpikeDetection": "keeps no state",
    "BasePredictionWriter DeviceStatsMonitor LearningRateMonitor ModelSummary ProgressBar "
    "RichModelSummary RichProgressBar ThroughputMonitor TQDMProgressBar": "not concerned",
}
