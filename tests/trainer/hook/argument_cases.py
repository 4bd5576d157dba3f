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
            arguments.EMA: "device use_buffers decay update_every_n_steps update_starting_at_step",
        },
        _callbacks(
            (
                "EMAWeightAveraging",
                {"decay": 0.8, "update_every_n_steps": 2, "update_starting_at_step": 3},
            )
        ),
    ),
    Case(
        "stochastic weight averaging",
        {"max_epochs": 4},
        {arguments.SWA: "swa_lrs swa_epoch_start annealing_epochs annealing_strategy avg_fn"},
        _callbacks(
            (
                "StochasticWeightAveraging",
                {"swa_lrs": 0.01, "swa_epoch_start": 2, "annealing_epochs": 2},
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
        },
        {
            arguments.PL_TRAINER: "min_epochs limit_train_batches limit_val_batches "
            "check_val_every_n_epoch reload_dataloaders_every_n_epochs accumulate_grad_batches"
        },
        left_at=10,
    ),
)
