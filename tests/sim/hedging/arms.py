"""How many are asked at once, and after how long another beside one that does not come up."""

from __future__ import annotations

from dataclasses import dataclass

from spotd.domain.market import Timing

NEVER_S = 1e9


@dataclass(frozen=True)
class Arm:
    """`beside_s` is `timing.beside_s` of the configuration, `candidates` the job's own."""

    name: str
    candidates: int
    beside_s: float = Timing.beside_s


# The first is what the others are compared with. A job that says nothing has the second.
ARMS = (
    Arm("one", 1, NEVER_S),
    Arm("shipped", 1),
    Arm("two", 2),
    Arm("four", 4),
)
