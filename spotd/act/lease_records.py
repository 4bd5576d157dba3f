"""The credentials of its job's stores that a machine was leased, and until when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.wire import ShardStore


@dataclass(frozen=True)
class Lease:
    """The store options that a machine was leased, without a secret, and the times."""

    options: Mapping[str, str]
    at_us: int
    until_us: int


@dataclass(frozen=True)
class ShardLeases:
    """The stores that may hold shards of a job, with the machine's access to each.

    `url` is the machine's own shard store, "" for none. The times are of the lease that ends first.
    """

    url: str = ""
    stores: tuple[ShardStore, ...] = ()
    at_us: int = 0
    until_us: int = 0


Lend = Callable[[Job, Node, float], Lease | None]
LendShards = Callable[[Job, Node, float], ShardLeases]


def first_to_end(*given: Lease | ShardLeases | None) -> tuple[int, int] | None:
    """Return the times of the lease that ends first; None if no lease ends."""
    times = [(one.until_us, one.at_us) for one in given if one is not None and one.until_us]
    return min(times)[::-1] if times else None
