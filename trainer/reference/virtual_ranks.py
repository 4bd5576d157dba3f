"""Virtual ranks: split each step into a fixed number of shares, whatever the number of ranks.

Each share has its own samples and random numbers, and gradients and losses are summed in the order
of the shares. So the result is the same to the bit on any number of processes, and a job can resume
with another number. The cost: each rank broadcasts its gradients once per share, and keeps one copy
of them for each share it computes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, distributed


def shares_of(rank: int, size: int, count: int, option: str = "--virtual-ranks") -> range:
    """The shares, out of `count`, that `rank` of `size` computes.

    Raises ValueError, which names the command-line `option`, if a rank would have none.
    """
    if count < size:
        raise ValueError(
            f"{option} {count} is too few for {size} ranks: give at least {size}, "
            "or start fewer ranks"
        )
    return range(rank, count, size)


def average_in_order(own: Mapping[int, Tensor], total: Tensor, size: int, count: int) -> None:
    """Overwrite `total` (1-D) with the mean over all `count` shares.

    The result is the same to the bit for any number of ranks `size`. `own` has the values of this
    rank's shares, each shaped as `total`.
    """
    total.zero_()
    for share in range(count):
        # Broadcast instead of reduce, so that the order of the additions is fixed.
        part = own[share] if share in own else torch.empty_like(total)
        if size > 1:
            distributed.broadcast(part, src=share % size)
        total.add_(part)
    total.div_(count)
