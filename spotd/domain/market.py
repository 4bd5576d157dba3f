"""The market as decisions see it: offers, refusals, limits, and who else is waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from providers.base import Offer, Scope
from spotd.domain.datasets import DataSet
from spotd.domain.images import BakedImage
from spotd.domain.job import JobSpec
from spotd.domain.node_history import UNKNOWN, FleetHistory
from spotd.domain.queue import Limits, QueueEntry, QueueSnapshot


@dataclass(frozen=True)
class Refusal:
    """A refused launch or a preempted machine, the source of cooldowns."""

    offer_key: str
    scope: Scope
    code: str  # class name in providers.base, or "Preempted", "BootTimeout"
    at_us: int
    node_id: str = ""  # a node is refused once for each code


@dataclass(frozen=True)
class WaitingRequest:
    """A job without an offer: it asks again at `at_us`, or awaits the answer to `keys`."""

    turn: QueueEntry
    spec: JobSpec
    at_us: int
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Timing:
    """The daemon's timeouts; config.toml has the defaults."""

    suspect_after_s: float = 15.0  # silence after which the cloud is asked
    lost_after_s: float = 120.0  # silence after which a node is given up though the cloud lists it
    resurvey_s: float = 5.0  # between questions about a suspect or a terminated node
    reterminate_s: float = 60.0  # a terminate that did not take is repeated
    unattended_s: float = (
        86_400.0  # how long a machine may go on without us; see planner/core/expiry.py
    )
    drain_margin_s: float = 10.0  # beyond a notice's deadline before we end the node ourselves
    waits_s: float = 900.0  # without a machine before a job's user is alerted
    beside_s: float = 480.0  # without a word of a machine before another is asked for beside it
    granted_s: float = 900.0  # within which on-demand is granted, for deadlines to be met


@dataclass(frozen=True)
class Market:
    """Offers, refusals and limits as known when loaded. `nodes` and `microusd_per_h` are committed
    use over all jobs, launching and unknown nodes included."""

    offers: tuple[Offer, ...]
    refusals: tuple[Refusal, ...] = ()
    limits: Limits = field(default_factory=Limits)
    nodes: int = 0
    microusd_per_h: int = 0
    disabled: Mapping[str, str] = field(default_factory=dict)  # provider -> why it is out of use
    deployment: str = ""
    blocked: str = ""  # why nothing may be launched now (a limit, the database)
    hedging: bool = True  # whether the limits have room for more than one candidate
    started_at_us: int = 0  # of this daemon: a call armed before died with the one that made it
    listening_since_us: int = 0  # without a gap: silence before says nothing about a node
    answering_since_us: Mapping[str, int] = field(default_factory=dict)  # by provider: back since
    reached_since_us: Mapping[str, int] = field(default_factory=dict)  # behind jump hosts; or now
    images: tuple[BakedImage, ...] = ()
    past: FleetHistory = UNKNOWN  # what became of this fleet's machines, a minute ago at most
    safe_until_us: int = 0  # until then nothing is launched or started: safe mode; 0: it is not
    places: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # see planner/core/shard_stores.py
    shards: tuple[str, ...] = ()  # URLs of stores that take shards of machines of their region
    datasets: Mapping[str, DataSet] = field(default_factory=dict)  # by name
    leaving: Mapping[str, int] = field(default_factory=dict)  # cloud -> micro-USD a GB that leaves
    storing: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # see planner/core/shard_stores.py
    line: QueueSnapshot = field(default_factory=QueueSnapshot)
    askers: tuple[
        WaitingRequest, ...
    ] = ()  # for what was refused of late; see planner/placement/scarce_offers.py
    countries: Mapping[str, str] = field(default_factory=dict)  # "cloud/region" -> where it stands
    operators: Mapping[str, str] = field(default_factory=dict)  # cloud -> where its company is
    timing: Timing = Timing()
