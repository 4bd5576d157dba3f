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
from spotd.wire.parts import PART


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

    suspect_after_s: float = 15.0  # a node that is silent so long is checked with its cloud
    lost_after_s: float = 120.0  # one that is silent so long is lost, even if its cloud lists it
    resurvey_s: float = 5.0  # between two checks of a suspect or of a terminated node
    reterminate_s: float = 60.0  # a machine that is still there so long after is terminated again
    unattended_s: float = 86_400.0  # how long a machine runs without a daemon before it is ended
    drain_margin_s: float = 10.0  # after a notice's deadline, before the daemon ends the node
    waits_s: float = 900.0  # the wait for a machine after which the job's user is alerted
    beside_s: float = 480.0  # a machine that is not up so long gets a second one beside it
    granted_s: float = 900.0  # within which an on-demand machine is expected, for deadlines


@dataclass(frozen=True)
class CommittedUse:
    """The use of all jobs, launching and unknown nodes included, and the limits of it."""

    limits: Limits = field(default_factory=Limits)
    nodes: int = 0
    microusd_per_h: int = 0


@dataclass(frozen=True)
class LaunchPermission:
    """Whether, and where, machines may be launched now."""

    blocked: str = ""  # why nothing may be launched: a limit, or the database
    hedging: bool = True  # whether the limits have room for more than one candidate
    safe_until_us: int = 0  # safe mode: until then nothing is launched or started; 0: it is off
    disabled: Mapping[str, str] = field(default_factory=dict)  # provider -> why it is out of use


@dataclass(frozen=True)
class LaunchQueue:
    """The jobs that share the limits and the offers with the job at hand."""

    snapshot: QueueSnapshot = field(default_factory=QueueSnapshot)
    requests: tuple[WaitingRequest, ...] = ()  # for offers that were refused of late


@dataclass(frozen=True)
class StoreCatalog:
    """The stores of checkpoints and data: where each one is, and the prices of its cloud."""

    # URL -> its cloud, region and zone, as far as they are known.
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shards: tuple[str, ...] = ()  # URLs of stores that take shards of machines of their region
    datasets: Mapping[str, DataSet] = field(default_factory=dict)  # by name
    egress_microusd_per_gb: Mapping[str, int] = field(default_factory=dict)  # by cloud
    # By cloud, in micro-USD: a GiB stored for a month, and a thousand writes.
    storage_prices: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Geography:
    """Where regions are, and where the companies are that operate them."""

    countries: Mapping[str, str] = field(default_factory=dict)  # "cloud/region" -> its country
    operators: Mapping[str, str] = field(default_factory=dict)  # cloud -> its company's country


@dataclass(frozen=True)
class Uptime:
    """Since when, without a gap, this daemon runs and reaches clouds and machines.

    Silence that began earlier is no sign that a machine is lost.
    """

    started_at_us: int = 0  # of this daemon; a call that was armed earlier died with its process
    listening_since_us: int = 0  # to the machines
    answering_since_us: Mapping[str, int] = field(default_factory=dict)  # by provider
    # By provider, of machines behind its jump hosts; now, while those cannot be reached.
    reached_since_us: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Market:
    """Offers, refusals, limits, and all else that a decision about any job depends on."""

    offers: tuple[Offer, ...]
    refusals: tuple[Refusal, ...] = ()
    deployment: str = ""
    images: tuple[BakedImage, ...] = ()
    history: FleetHistory = UNKNOWN  # of this fleet's machines, a minute old at most
    timing: Timing = Timing()
    use: CommittedUse = field(default=CommittedUse(), metadata=PART)
    launch: LaunchPermission = field(default=LaunchPermission(), metadata=PART)
    queue: LaunchQueue = field(default=LaunchQueue(), metadata=PART)
    stores: StoreCatalog = field(default=StoreCatalog(), metadata=PART)
    geography: Geography = field(default=Geography(), metadata=PART)
    uptime: Uptime = field(default=Uptime(), metadata=PART)
