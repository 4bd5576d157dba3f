"""The reaction of a gang to the loss of a machine (`spotd.on_node_loss` of the job file)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class OnNodeLoss(str, Enum):
    """The reaction of the remaining machines."""

    WAIT = "wait"  # all of it is given back, and the next attempt has `num_nodes` machines again
    SHRINK = "shrink"  # the next attempt has the machines that are left
    WAIT_THEN_SHRINK = "wait-then-shrink"  # the same, when none has come in their place in time


@dataclass(frozen=True)
class Elastic:
    """`min_nodes` is the fewest machines that train; with fewer left, the job behaves as with
    `wait`. `shrink_after_s` is the time that the others wait with `wait-then-shrink`."""

    on_loss: OnNodeLoss = OnNodeLoss.WAIT
    min_nodes: int = 1
    shrink_after_s: float = 0.0
