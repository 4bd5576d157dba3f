"""What a machine was given of its job's stores, and until when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spotd.model import Job, Node
from spotd.wire import ShardStore


@dataclass(frozen=True)
class Loan:
    """What a machine was lent: the options of its store, without a secret, and its time."""

    options: Mapping[str, str]
    at_us: int
    until_us: int


@dataclass(frozen=True)
class Shards:
    """The stores that may have shards of a job, with what its machine opens them by, and which of
    them is the machine's own ("": none). The times are as of a Loan, the first that ends."""

    url: str = ""
    stores: tuple[ShardStore, ...] = ()
    at_us: int = 0
    until_us: int = 0


Lend = Callable[[Job, Node, float], Loan | None]
LendShards = Callable[[Job, Node, float], Shards]


def first_to_end(*given: Loan | Shards | None) -> tuple[int, int] | None:
    """The times of what ends first; None where nothing does."""
    times = [(one.until_us, one.at_us) for one in given if one is not None and one.until_us]
    return min(times)[::-1] if times else None
