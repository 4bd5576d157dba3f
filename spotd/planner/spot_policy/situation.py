"""The policy's input: what is left of a job, what runs, and where machines could be had.

The daemon fills it so. `RemainingWork` comes from the job's spec and measurements (steps left over
steps per second, restart time from the record of its starts, the interval of its saves). There is
one `Pool` per place, with everything sold there, from the offers that pass the hard filters; what
residency, a cooldown, a budget or a cap excludes is left out or has the price None. Its `record` is
folded from sightings: launches granted or refused, machines held or preempted. `RunningGang` is the
gang that boots or trains. Times are seconds since the epoch, UTC; dollars are of the whole gang.
"""

from __future__ import annotations

from dataclasses import dataclass

from providers.base import CapacityType
from spotd.planner.spot_policy.pool_record import UNSEEN, PoolRecord


@dataclass(frozen=True)
class RemainingWork:
    """The remaining work of a job.

    `left_s` is running time on a machine of speed 1 until it is done, `deadline_s` when it has to
    be done, None for any time. A start takes `restart_s` until the first new step. A preemption
    loses at most `unsaved_s` of what is done now and `lost_s` of what is done from now on (the
    checkpoint interval; 0 if each preemption is noticed in time to save). A gang that is asked to
    stop has saved and is gone within `stop_s`. On-demand is granted within `granted_s`. Decisions
    are `look_s` apart, and one may come `late_s` late: nothing is noticed, begun or ended sooner,
    and what ends within one is paid to its end.
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
    """One place where the gang could run. A price of None is not available.

    `region` names what fails together. `egress_usd` and `transfer_s` are what moving the checkpoint
    there takes. `speed` is the work done per hour there, in hours.
    """

    key: str
    region: str
    spot_usd_per_h: float | None
    on_demand_usd_per_h: float | None
    egress_usd: float = 0.0
    transfer_s: float = 0.0
    speed: float = 1.0
    record: PoolRecord = UNSEEN


@dataclass(frozen=True)
class RunningGang:
    """The gang that was started in `pool` at `since_s`; its first new step is `starting_s` away, 0
    once it trains."""

    pool: str
    capacity: CapacityType
    since_s: float
    starting_s: float = 0.0


@dataclass(frozen=True)
class Situation:
    """Everything that the policy may consider.

    `signalled`: each pool's record says for free whether spot is available; otherwise only a
    request shows it. `probe_s` of spot are paid for a probe that finds a machine; None for no
    probes. `elsewhere`: after how many recent ends other spot was found at once, and of how many.
    """

    now_s: float
    work: RemainingWork
    pools: tuple[Pool, ...]
    running: RunningGang | None = None
    signalled: bool = False
    probe_s: float | None = None
    elsewhere: tuple[float, float] = (0.0, 0.0)
