"""What the policy answers, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Action(str, Enum):
    """What to do now."""

    STAY = "stay"  # go on with what runs
    SPOT = "spot"  # ask for spot in `pool`; what runs elsewhere ends then
    ON_DEMAND = "on_demand"
    WAIT = "wait"  # have nothing


@dataclass(frozen=True)
class Option:
    """One thing that could be done, and what the job is expected to cost until it is done.

    Dollars: `here_usd` of training on that machine, `start_usd` of its start, `lost_usd` of work
    done twice, `egress_usd` of the move, and `rest_usd` of all that comes after. Their sum is the
    score; the least is best.
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
    """What to do until the next look. Where a launch is refused, record that and choose again at
    once.

    `probes` are pools to be looked at first, where that is possible: record what was seen and
    choose again. `options` are what was compared, the best first. `guarded`: the deadline leaves
    nothing else. `late_s`: by how much it is missed even so; 0: it is not."""

    action: Action
    pool: str = ""
    probes: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    guarded: bool = False
    late_s: float = 0.0
    why: str = ""
