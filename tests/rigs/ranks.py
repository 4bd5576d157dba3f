"""Ranks as torchrun starts them, by its own agent, but forked from it instead of each in a new
interpreter that imports torch:

    python -m tests.rigs.ranks NUMBER MODULE ARGUMENTS...

Under torchrun itself the trainer is started in tests/trainer/agent.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def _be_rank(module: str, arguments: Sequence[str]) -> None:
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main(argv: Sequence[str]) -> int:
    """0 when every rank ended with that, else 1, as torchrun says it."""
    number, module, *arguments = argv
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(number),
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        start_method="fork",
        max_restarts=0,
    )
    try:
        elastic_launch(config, _be_rank)(module, arguments)
    except ChildFailedError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
