"""examples/transformers, which also saves at the end of each epoch. Not a test itself.

It makes no step after HELD_AFTER steps until the file HELD_UNTIL exists.
"""

from __future__ import annotations

import os
import runpy
import time
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainingArguments

_init, _step = TrainingArguments.__init__, Trainer.training_step


def _each_epoch(settings: Any, *args: Any, **kwargs: Any) -> None:
    _init(settings, *args, save_strategy="epoch", **kwargs)


def _held(trainer: Any, *args: Any, **kwargs: Any) -> Any:
    after, until = int(os.environ["HELD_AFTER"]), Path(os.environ["HELD_UNTIL"])
    while trainer.state.global_step >= after and not until.exists():
        time.sleep(0.005)
    return _step(trainer, *args, **kwargs)


if __name__ == "__main__":
    TrainingArguments.__init__, Trainer.training_step = _each_epoch, _held
    example = Path(__file__).parents[3] / "examples" / "transformers" / "train.py"
    runpy.run_path(str(example), run_name="__main__")
