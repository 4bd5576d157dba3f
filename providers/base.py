"""The provider port: what spotd asks of a cloud, and the closed set of errors it understands.

Standard library only, because the node agent ships this file too. A provider answers eight verbs
(`offers`, `launch`, `terminate`, `list`, `notices`, `renew`, `leftovers`, `discard`); everything a
vendor can say is translated into the types below by the adapter, so that nothing outside
`providers/<cloud>/` knows a vendor.

Money is in micro-USD, time in microseconds since the epoch (UTC), unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Protocol

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

# Tags that spot-reaper reads, both in whole seconds: when whoever finds a machine may end it (unix
# time; moved on by `renew`), and after how long without a renewal that is.
EXPIRES_TAG = "spotd-expires"
UNATTENDED_TAG = "spotd-unattended-s"

# Of a field that is written down only when it says something: whoever reads what is written, and
# does not know the field yet, can read all that does without it.
SPARSE = {"sparse": True}

# `Offer.price_source` of reservations: nothing on top of what is paid anyway, or what config says.
PREPAID, CONFIGURED = "prepaid", "configured"


class CapacityType(str, Enum):
    """How a machine is sold."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    BLOCK = "block"


class InstanceState(str, Enum):
    """The life of an instance as the cloud tells it."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"
    FAILED = "failed"  # a create that the cloud accepted and could not fulfil; see Instance.error


class NoticeKind(str, Enum):
    """What the cloud warns of. Only PREEMPT and MAINTENANCE take the machine away."""

    REBALANCE = "rebalance"
    PREEMPT = "preempt"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True)
class OfferRequest:
    """What a job needs of one machine; empty fields do not filter."""

    accelerator: str = ""
    accelerator_count: int = 0
    cpus: float = 0.0
    memory_gib: float = 0.0
    instance_type: str = ""
    cloud: str = ""  # "aws", "gcp", "azure", ...: the make of cloud, or a provider's name
    region: str = ""
    zone: str = ""
    capacity_types: tuple[CapacityType, ...] = (CapacityType.SPOT, CapacityType.ON_DEMAND)

    def admits(self, offer: Offer) -> bool:
        """Whether the machine is what this asks for; a named accelerator means one at least."""
        least = self.accelerator_count or (1 if self.accelerator else 0)
        return (
            self.accelerator.lower() in ("", offer.accelerator.lower())
            and offer.accelerator_count >= least
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
    """Something rentable now.

    `price_microusd_per_h` is what this offer costs; `list_microusd_per_h` is the on-demand price of
    the same machine in the same place (the first counterfactual). `price_source` says whose word
    the price is. `local` marks machines that are processes on the control box, so that nobody
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
    cloud: str = ""  # the make of cloud; a local cloud says which one it behaves like
    local: bool = False
    zone_id: str = field(default="", metadata=SPARSE)  # the zone's name for every account
    # What a reserved machine comes out of, and when its machines are ended; 0: no end is known.
    reservation: str = field(default="", metadata=SPARSE)
    ends_at_us: int = field(default=0, metadata=SPARSE)
    # "efa", "gpudirect" or "infiniband", for the ranks of a gang; "" is plain IP.
    interconnect: str = field(default="", metadata=SPARSE)
    joins_with: str = field(default="", metadata=SPARSE)  # what it needs to have one, in words
    score: int = field(default=0, metadata=SPARSE)  # the vendor's, of 1 to 10; 0: it tells none
    evicted_pct: int = field(default=0, metadata=SPARSE)  # % of such taken back, at most; 0: untold

    @cached_property
    def key(self) -> str:
        """Identity of the offer in cooldowns and tokens: provider/region/zone/type/capacity."""
        place = f"{self.provider}/{self.region}/{self.zone}"
        return f"{place}/{self.instance_type}/{self.capacity_type.value}"


@dataclass(frozen=True)
class LaunchRequest:
    """A complete, byte-exact create request. The same token must always carry the same request.

    `image_id` is the vendor's name of an image, or "docker:IMAGE" for a container on the provider's
    own image; empty for the latter alone. `reservation` is the offer's, and so is `interconnect` of
    a gang. `launch` makes the group that `gang` names; one without machines is a leftover.
    `max_run_s` is the cloud's own limit on the machine's life, counted from its start and never
    moved again; 0, and clouds without such a limit, have none.
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
    gang: str = ""  # the ranks of one name are put close to each other


@dataclass(frozen=True)
class Launched:
    """The cloud has an instance for this token."""

    instance_id: str


@dataclass(frozen=True)
class Pending:
    """The cloud accepted the create and works on it; `list()` will show what became of it."""

    operation: str


@dataclass(frozen=True)
class Instance:
    """One machine of ours as the cloud lists it, failed creates included."""

    instance_id: str
    token: str
    tags: Mapping[str, str]
    state: InstanceState
    region: str
    zone: str
    instance_type: str
    capacity_type: CapacityType
    host: str = ""
    private_host: str = ""  # in its own network, for others there; "": not known
    port: int = 22
    ssh_user: str = ""
    host_public_key: str = ""
    launched_at_us: int = 0
    error: str = ""  # vendor text of a failed create or of an end not of our making
    error_code: str = ""  # one of the error class names below, for a failed create

    @property
    def expires_at_us(self) -> int:
        """What its expiry tag says; 0 when it has none that can be read."""
        return _seconds(self.tags.get(EXPIRES_TAG, "")) * 1_000_000


def _seconds(text: str) -> int:
    """Whole seconds; 0 for anything else. Nothing on earth is due in a number of 13 digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 13 else 0


@dataclass(frozen=True)
class Notice:
    """A warning about one machine, from its metadata service or from the cloud's own queue.

    `deadline_us` is wall time on the machine that heard it; None means "unknown, take it as now".
    Two notices are the same when `notice_id` is the same.
    """

    notice_id: str
    kind: NoticeKind
    deadline_us: int | None = None
    source: str = ""
    instance_id: str = ""
    text: str = ""


class LeftoverKind(str, Enum):
    """What a machine may leave behind that is paid for without it."""

    DISK = "disk"
    ADDRESS = "address"
    CARD = "card"  # a network interface: free by itself, but it holds addresses
    HUSK = "husk"  # a create that failed, where the cloud keeps it with what was made for it
    GROUP = "group"  # what put a gang's machines close to each other: free, but clouds count them


@dataclass(frozen=True)
class Leftover:
    """Something of ours that hangs on no machine. It carries the tags of the machine that it was
    made for. `since_us` is when it was let go, or made, as far as the cloud tells."""

    leftover_id: str
    kind: LeftoverKind
    tags: Mapping[str, str]
    region: str
    zone: str = ""
    since_us: int = 0


class MetadataError(Exception):
    """The metadata service did not answer sensibly. Never a preemption."""


class Provider(Protocol):
    """A cloud. Every verb may raise any `ProviderError`; anything else that escapes is a bug.

    Attributes:
        name: the provider's name in the configuration, and in every offer it makes.
        local: machines are processes on this box; shown to users wherever the name is shown.
        watcher: which `providers.<watcher>.notice` its nodes run ("aws", "gcp", "azure").
        limits_life: `LaunchRequest.max_run_s` is kept by the cloud itself.
        power_off: what a machine runs, as the user that it was launched with, to switch itself off
            and stop costing; empty where a machine that is off is still paid for.
        prepared_file: what the preparation that a machine is launched with leaves there when it is
            over, readable by everybody: "ok", or one line on what is wrong. Empty where machines
            come as they are.
    """

    name: str
    local: bool
    watcher: str
    limits_life: bool
    power_off: tuple[str, ...]
    prepared_file: str

    @property
    def visibility_s(self) -> float:
        """How long a fresh create may stay invisible to `list()`, as far as is known by now."""
        ...

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """What fits `request` and is on sale now, with prices."""
        ...

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """Create one machine. Idempotent on `request.token`; back within 10 s."""
        ...

    def terminate(self, instance_id: str) -> None:
        """End a machine and everything that bills with it. An unknown id is success."""
        ...

    def list(self) -> Sequence[Instance]:
        """Everything that carries our deployment's tag, complete, or an error."""
        ...

    def notices(self) -> Sequence[Notice]:
        """Cloud-side warnings, those since the last call at least; may always be empty. One that is
        told again has the same `notice_id`."""
        ...

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Move a machine's expiry tag on. Never back, so that a caller who was asleep takes nothing
        from a later one; an unknown id, and a machine that ends or has ended, are success."""
        ...

    def leftovers(self) -> Sequence[Leftover]:
        """Disks, addresses and cards that carry our deployment's tag and hang on no machine (a
        volume that is available, an interface or an address without an association), and creates
        that failed and are still there; complete, or an error; nothing where a machine's end takes
        all of it along."""
        ...

    def discard(self, leftover_id: str) -> None:
        """Delete one. An unknown id is success; one that hangs on a machine by now is never taken
        from it (RejectedError)."""
        ...


class NoticeWatcher(Protocol):
    """The node's side of notices: `providers.<watcher>.notice.Watcher(base_url, timeout...)`.

    `poll` answers with every notice in force *now*: the agent compares with what it saw before, so
    a notice that is missing from a successful answer has been withdrawn, and an outage
    (`MetadataError`) changes nothing.
    """

    interval_s: float  # pause between polls; 0 where `poll` itself waits for a change

    def poll(self) -> Sequence[Notice]:
        """One round against the metadata service."""
        ...

    def acknowledge(self, notice: Notice) -> None:
        """Tell the cloud that we are done, where it has such a call; harmless elsewhere."""
        ...
