"""What the policy is told: what is left of a job, what runs, and where a machine could be had.

How the daemon fills it: `Work` from the job's spec and what was measured of it (steps left over
steps per second; restart time from the record of its starts; the cadence of its saves). `Pool`: one
for each place, all that is sold there together, from offers of the market that pass the hard
filters (what is barred by residency, a cooldown, a budget or a cap is left out, or has a price of
None). Its `record` is folded from sightings: launches granted or refused, machines held, preempted.
`Running`: the gang that boots or trains. Times are seconds since the epoch, UTC; dollars are of the
whole gang.
"""

from __future__ import annotations

from dataclasses import dataclass

from providers.base import CapacityType
from spotd.decide.policy.record import UNSEEN, Record


@dataclass(frozen=True)
class Work:
    """What is left of a job.

    `left_s` is time of running on a machine of speed 1 until it is done, and `deadline_s` when it
    has to be done, None for whenever. A start takes `restart_s` until the first new step.
    A preemption loses at most `unsaved_s` of what is done now and `lost_s` of what is done from now
    on (the pause between saves; 0 where each preemption is noticed in time to save). One that is
    told to stop has saved and is gone within `stop_s`. On-demand is granted within `granted_s`.
    Decisions are `look_s` apart, and one may come `late_s` late: nothing is noticed, begun or ended
    sooner, and what ends within one is paid for to its end.
    """

    left_s: float
    deadline_s: float | None
    restart_s: float
    unsaved_s: float = 0.0
    lost_s: float = 0.0
    stop_s: float = 0.0
    granted_s: float = 0.0
    look_s: float = 15.0
    late_s: float = 0.0


@dataclass(frozen=True)
class Pool:
    """One place where the gang could run. A price of None is not to be had.

    `region` names what fails together. `egress_usd` and `transfer_s` are what it takes to bring the
    checkpoint there from where it is now. `speed` is the work done an hour there, in hours.
    """

    key: str
    region: str
    spot_usd_per_h: float | None
    on_demand_usd_per_h: float | None
    egress_usd: float = 0.0
    transfer_s: float = 0.0
    speed: float = 1.0
    record: Record = UNSEEN


@dataclass(frozen=True)
class Running:
    """The gang that was started in `pool` at `since_s`; its first new step is `starting_s` away, 0
    once it trains."""

    pool: str
    capacity: CapacityType
    since_s: float
    starting_s: float = 0.0


@dataclass(frozen=True)
class Situation:
    """All that a choice may look at.

    `signalled`: whether spot is to be had is told each pool's record for free (and up to now); else
    whoever asks learns it. `probe_s` of spot are paid for a probe that finds a machine; None: no
    probes. `elsewhere`: of how many ends of late other spot was found at once, and of how many it
    was looked for."""

    now_s: float
    work: Work
    pools: tuple[Pool, ...]
    running: Running | None = None
    signalled: bool = False
    probe_s: float | None = None
    elsewhere: tuple[float, float] = (0.0, 0.0)
