"""The provider port: the verbs, values and errors through which spotd uses a cloud.

Standard library only, because the node agent ships this file too. A provider implements eight verbs
(`offers`, `launch`, `terminate`, `list`, `notices`, `renew`, `leftovers`, `discard`). Its adapter
translates every answer of the vendor into the types below, so that nothing outside
`providers/<cloud>/` depends on a vendor.

Money is in micro-USD, time in microseconds since the epoch (UTC), unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Protocol, runtime_checkable

from providers.errors import (
    AuthError as AuthError,
)
from providers.errors import (
    CapacityError as CapacityError,
)
from providers.errors import (
    NoQuotaError as NoQuotaError,
)
from providers.errors import (
    PriceError as PriceError,
)
from providers.errors import (
    ProviderError as ProviderError,
)
from providers.errors import (
    QuotaError as QuotaError,
)
from providers.errors import (
    RejectedError as RejectedError,
)
from providers.errors import (
    Scope as Scope,
)
from providers.errors import (
    ThrottledError as ThrottledError,
)
from providers.errors import (
    UnknownOutcome as UnknownOutcome,
)
from providers.errors import (
    UnpreparedError as UnpreparedError,
)

# Tags that spot-reaper reads, both in whole seconds: the unix time from which a machine may be
# terminated (extended by `renew`), and how long after the last renewal that is.
EXPIRES_TAG = "spotd-expires"
UNATTENDED_TAG = "spotd-unattended-s"

# A field that is serialized only when it is not empty, so that older readers, which do not know the
# field, can read every document that does not need it.
SPARSE = {"sparse": True}

# `Offer.price_source` of reservations: no extra cost, or the hourly cost from the configuration.
PREPAID, CONFIGURED = "prepaid", "configured"


class CapacityType(str, Enum):
    SPOT = "spot"
    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    BLOCK = "block"


class InstanceState(str, Enum):
    """The life of an instance as the cloud reports it."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"
    FAILED = "failed"  # a create that the cloud accepted and could not fulfil; see Instance.error


class NoticeKind(str, Enum):
    """A warning about a machine."""

    REBALANCE = "rebalance"
    PREEMPT = "preempt"
    MAINTENANCE = "maintenance"

    @property
    def takes_machine(self) -> bool:
        """Whether the cloud takes the machine; a rebalance recommendation is only advice."""
        return self is not NoticeKind.REBALANCE


@dataclass(frozen=True)
class OfferRequest:
    """The requirements of a job for one machine. Empty fields do not filter."""

    accelerator: str = ""
    accelerator_count: int = 0
    cpus: float = 0.0
    memory_gib: float = 0.0
    instance_type: str = ""
    cloud: str = ""  # "aws", "gcp", "azure", ... or a provider's name
    region: str = ""
    zone: str = ""
    capacity_types: tuple[CapacityType, ...] = (CapacityType.SPOT, CapacityType.ON_DEMAND)

    def admits(self, offer: Offer) -> bool:
        """Whether an offer meets the requirements. A named accelerator means at least one."""
        min_count = self.accelerator_count or (1 if self.accelerator else 0)
        return (
            self.accelerator.lower() in ("", offer.accelerator.lower())
            and offer.accelerator_count >= min_count
            and offer.cpus >= self.cpus
            and offer.memory_gib >= self.memory_gib
            and self.instance_type in ("", offer.instance_type)
            and self.cloud in ("", offer.cloud, offer.provider)
            and self.region in ("", offer.region)
            and self.zone in ("", offer.zone)
            and offer.capacity_type in self.capacity_types
        )


@dataclass(frozen=True)
class Offer:
    """A machine that can be rented now.

    `price_microusd_per_h` is the price of this offer; `list_microusd_per_h` is the on-demand price
    of the same machine in the same zone (the first counterfactual). `price_source` names the origin
    of the price. `local` marks machines that are processes on the control box, so that nobody
    mistakes them for a cloud.
    """

    provider: str
    region: str
    zone: str
    instance_type: str
    capacity_type: CapacityType
    price_microusd_per_h: int
    list_microusd_per_h: int
    accelerator: str = ""
    accelerator_count: int = 0
    cpus: float = 0.0
    memory_gib: float = 0.0
    price_source: str = "quote"
    cloud: str = ""  # "aws", "gcp", "azure", ...; for a local cloud, the one that it imitates
    local: bool = False
    zone_id: str = field(default="", metadata=SPARSE)  # the same in every account
    # The reservation that a reserved machine uses, and when it ends; 0: no known end.
    reservation: str = field(default="", metadata=SPARSE)
    ends_at_us: int = field(default=0, metadata=SPARSE)
    # "efa", "gpudirect" or "infiniband", for the ranks of a gang; "" is plain IP.
    interconnect: str = field(default="", metadata=SPARSE)
    joins_with: str = field(
        default="", metadata=SPARSE
    )  # why there is no interconnect, and the fix
    score: int = field(default=0, metadata=SPARSE)  # the vendor's, 1 to 10; 0: unknown
    evicted_pct: int = field(default=0, metadata=SPARSE)  # upper bound, percent; 0: unknown

    @cached_property
    def key(self) -> str:
        """Identity of the offer in cooldowns and tokens: provider/region/zone/type/capacity."""
        location = f"{self.provider}/{self.region}/{self.zone}"
        return f"{location}/{self.instance_type}/{self.capacity_type.value}"


@dataclass(frozen=True)
class LaunchRequest:
    """A complete, byte-exact create request. The same token must always carry the same request.

    `image_id` is the vendor's image name, "docker:IMAGE" for a container on the provider's own
    image, or empty for that image alone. `reservation` comes from the offer, and so does the
    `interconnect` of a gang. `launch` creates the placement group named by `gang`; a group without
    machines is a leftover. `max_run_s` is a limit on the machine's life that the cloud itself
    enforces, counted from its start and never extended; 0 and clouds without such a limit have
    none.
    """

    token: str
    name: str
    region: str
    zone: str
    instance_type: str
    capacity_type: CapacityType
    tags: Mapping[str, str]
    ssh_user: str
    ssh_public_key: str
    host_private_key: str = field(repr=False)
    host_public_key: str
    image_id: str = ""
    disk_gib: int = 0
    max_price_microusd_per_h: int = 0
    max_run_s: int = 0
    reservation: str = ""
    interconnect: str = ""
    gang: str = ""  # machines with the same name are placed close to each other


@dataclass(frozen=True)
class Launched:
    """The cloud has an instance for this token."""

    instance_id: str


@dataclass(frozen=True)
class Pending:
    """The cloud accepted the create and is working on it. `list()` will show the outcome."""

    operation: str


@dataclass(frozen=True)
class Instance:
    """A machine of this deployment as the cloud lists it, failed creates included."""

    instance_id: str
    token: str
    tags: Mapping[str, str]
    state: InstanceState
    region: str
    zone: str
    instance_type: str
    capacity_type: CapacityType
    host: str = ""
    private_host: str = ""  # address inside its own network; "": unknown
    port: int = 22
    ssh_user: str = ""
    host_public_key: str = ""
    launched_at_us: int = 0
    error: str = ""  # vendor text of a failed create or of a termination that spotd did not request
    error_code: str = ""  # for a failed create, the name of a class in providers/errors.py

    @property
    def expires_at_us(self) -> int:
        """The time in the expiry tag; 0 without a readable one."""
        return _seconds(self.tags.get(EXPIRES_TAG, "")) * 1_000_000


def _seconds(value: str) -> int:
    """Parse whole seconds; 0 for anything else. No valid time has 13 digits or more."""
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 13 else 0


@dataclass(frozen=True)
class Notice:
    """A warning about one machine, from its metadata service or from the cloud's event queue.

    `deadline_us` is wall time on the machine that received it; None means unknown: treat it as now.
    Two notices are the same when `notice_id` is the same.
    """

    notice_id: str
    kind: NoticeKind
    deadline_us: int | None = None
    source: str = ""
    instance_id: str = ""
    text: str = ""


def timestamp_us(moment: datetime | None) -> int:
    """Return microseconds since the epoch; 0 for None."""
    return int(moment.timestamp() * 1_000_000) if moment is not None else 0


def parse_timestamp_us(text: object) -> int:
    """Convert an ISO 8601 time to microseconds since the epoch; 0 for anything else."""
    try:
        return timestamp_us(datetime.fromisoformat(str(text)))  # Azure writes up to seven decimals
    except ValueError:
        return 0


class LeftoverKind(str, Enum):
    """A resource that can outlive its machine and that costs money or counts against a quota."""

    DISK = "disk"
    ADDRESS = "address"
    NETWORK_INTERFACE = "card"  # free by itself, but it holds addresses
    FAILED_CREATE = "husk"  # retained by the cloud together with its disk and interface
    GROUP = "group"  # a gang's placement group: free, but counted against a quota


@dataclass(frozen=True)
class Leftover:
    """A resource of this deployment that is attached to no machine.

    `tags` are those of the machine that it was made for. `since_us` is when it was detached, or
    created, as far as the cloud reports it.
    """

    leftover_id: str
    kind: LeftoverKind
    tags: Mapping[str, str]
    region: str
    zone: str = ""
    since_us: int = 0


class MetadataError(Exception):
    """The metadata service gave no usable answer. Never a preemption."""


class Provider(Protocol):
    """A cloud. Every verb may raise any `ProviderError`; any other exception is a bug.

    Attributes:
        name: the provider's name in the configuration, and in every offer it makes.
        local: machines are processes on this box; shown to users wherever the name is shown.
        watcher: which `providers.<watcher>.notice` its nodes run ("aws", "gcp", "azure").
        limits_life: the cloud itself enforces `LaunchRequest.max_run_s`.
        power_off: the command by which a machine, as its SSH user, powers itself off and stops
            costing money; empty where a stopped machine is still billed.
        prepared_file: a world-readable file on the machine with the outcome of its preparation at
            boot: "ok", or one line on what is wrong. Empty where machines are not prepared.
    """

    name: str
    local: bool
    watcher: str
    limits_life: bool
    power_off: tuple[str, ...]
    prepared_file: str

    @property
    def visibility_s(self) -> float:
        """How long a new instance may be missing from `list()`, by the latest measurement."""
        ...

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """Return the offers on sale now that match `request`, with prices."""
        ...

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """Create one machine. Idempotent on `request.token`; returns within 10 s."""
        ...

    def terminate(self, instance_id: str) -> None:
        """Terminate a machine and everything that is billed with it. An unknown id is success."""
        ...

    def list(self) -> Sequence[Instance]:
        """Return every instance with this deployment's tag: the complete list, or an error."""
        ...

    def notices(self) -> Sequence[Notice]:
        """Return the cloud-side warnings since the last call, or more; may always be empty.

        A repeated warning has the same `notice_id`.
        """
        ...

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Extend the expiry tag of a machine, never shorten it: a delayed caller must not undo a
        later one.

        An unknown id is success, and so is a machine that is terminating or gone.
        """
        ...

    def leftovers(self) -> Sequence[Leftover]:
        """Return unattached resources and failed creates with this deployment's tag: all, or an
        error.

        Unattached are available volumes, and interfaces and addresses without an association. Empty
        where the cloud deletes everything with the machine.
        """
        ...

    def discard(self, leftover_id: str) -> None:
        """Delete a leftover. An unknown id is success.

        Raises RejectedError for one that is attached to a machine by now: it is never detached.
        """
        ...


class NoticeWatcher(Protocol):
    """The node's side of notices: `providers.<watcher>.notice.Watcher(base_url, timeout...)`.

    `poll` returns every notice in force *now*. The agent compares this with the previous answer, so
    a notice that is missing from a successful answer has been withdrawn, and an outage
    (`MetadataError`) changes nothing.
    """

    interval_s: float  # pause between polls; 0 where `poll` itself waits for a change

    def poll(self) -> Sequence[Notice]:
        """Query the metadata service once."""
        ...

    def acknowledge(self, notice: Notice) -> None:
        """Tell the cloud that the machine is ready to go, where it has such a call; else does
        nothing."""
        ...


@runtime_checkable
class SerialConsole(Protocol):
    def read_serial_console(self, instance_id: str) -> str:
        """Return the end of the machine's serial console output that the cloud has so far, "" for
        none.

        May raise any `ProviderError`.
        """
        ...
