"""A program on CPUs with FSDP2: examples/transformers, or the one named first. Not a test itself.

accelerate sets up FSDP2 only on accelerators, so it is told that the ranks have some.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from accelerate.state import DistributedType, PartialState

_init = PartialState.__init__


def _as_if_on_gpus(state: Any, *args: Any, **kwargs: Any) -> None:
    _init(state, *args, **kwargs)
    if state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.MULTI_GPU


if __name__ == "__main__":
    PartialState.__init__ = _as_if_on_gpus
    path = Path(__file__).parents[3] / "examples" / "transformers" / "train.py"
    if sys.argv[1].endswith(".py"):
        path = Path(__file__).parent / sys.argv.pop(1)
    runpy.run_path(str(path), run_name="__main__")
