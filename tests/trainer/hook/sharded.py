"""examples/transformers on CPUs with FSDP2. Not a test itself.

accelerate sets up FSDP2 only on accelerators, so it is told that the ranks have some.
"""

from __future__ import annotations

import runpy
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
    example = Path(__file__).parents[3] / "examples" / "transformers" / "train.py"
    runpy.run_path(str(example), run_name="__main__")
