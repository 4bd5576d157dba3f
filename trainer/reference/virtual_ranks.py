"""Virtual ranks: a constant number of shares of each step's batch, on however many ranks there are.

Each share has its own samples and its own random numbers, and gradients and losses are added up in
the order of the shares. So neither the batch nor a bit of the result depends on how many processes
computed it, and a job can go on with another number of them. What it costs: each rank sends its
gradients once a share to all others, and keeps one copy of them for each share of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, distributed


def shares_of(rank: int, size: int, count: int, option: str = "--virtual-ranks") -> range:
    """The numbers of the shares, of `count` as `option` says, that `rank` of `size` computes.

    Raises ValueError where a rank would have none.
    """
    if count < size:
        raise ValueError(
            f"{option} {count} is too few for {size} ranks: give at least {size}, "
            "or start fewer ranks"
        )
    return range(rank, count, size)


def average_in_order(own: Mapping[int, Tensor], total: Tensor, size: int, count: int) -> None:
    """Overwrite `total` (1-D) with the mean of all `count` shares' values, the same bits on each of
    `size` ranks whatever their number. `own` has those of this rank's shares, shaped as `total`."""
    total.zero_()
    for share in range(count):
        # A broadcast moves bits and adds nothing: the order of the additions is ours.
        part = own[share] if share in own else torch.empty_like(total)
        if size > 1:
            distributed.broadcast(part, src=share % size)
        total.add_(part)
    total.div_(count)
