"""The policy's answer and its reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Action(str, Enum):
    """The action to take now."""

    STAY = "stay"  # go on with what runs
    SPOT = "spot"  # ask for spot in `pool`; what runs elsewhere ends then
    ON_DEMAND = "on_demand"
    WAIT = "wait"  # have nothing


@dataclass(frozen=True)
class Option:
    """One possible action with the expected cost until the job is done, in dollars.

    `here_usd` is the training on that machine, `start_usd` its start, `lost_usd` the work done
    twice, `egress_usd` the move, `rest_usd` everything after. Their sum is the score; the least is
    best.
    """

    action: Action
    pool: str = ""
    here_usd: float = 0.0
    start_usd: float = 0.0
    lost_usd: float = 0.0
    egress_usd: float = 0.0
    rest_usd: float = 0.0

    @property
    def score_usd(self) -> float:
        return self.here_usd + self.start_usd + self.lost_usd + self.egress_usd + self.rest_usd


@dataclass(frozen=True)
class Choice:
    """The action until the next check. If a launch is refused, record that and choose again.

    `probes` are pools to check first if possible: record the result and choose again. `options`
    were compared, the best first. `guarded`: the deadline allows nothing else. `late_s` is by how
    much the deadline is missed even so; 0 if it is met.
    """

    action: Action
    pool: str = ""
    probes: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    guarded: bool = False
    late_s: float = 0.0
    why: str = ""
