"""Ranks as torchrun starts them, by its own agent, but forked from it instead of each in a new
interpreter that imports torch:

    python -m tests.rigs.ranks NUMBER MODULE ARGUMENTS...

Of several machines SPOTD_TEST_NODES says how many there are, and SPOTD_TEST_NODE which this one is;
they meet at the port SPOTD_TEST_MEET, as with `torchrun --nnodes --node-rank --master-port`.

Under torchrun itself the trainer is started in tests/trainer/agent.
"""

from __future__ import annotations

import os
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
    nodes = int(os.environ.get("SPOTD_TEST_NODES", "1"))
    port = os.environ.get("SPOTD_TEST_MEET", "0")
    rank = {"rank": int(os.environ.get("SPOTD_TEST_NODE", "0")), "timeout": 60}
    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=int(number),
        rdzv_backend="static" if nodes > 1 else "c10d",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs=rank if nodes > 1 else {},
        run_id="none" if nodes > 1 else "",  # as torchrun calls it, the same on each machine
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
