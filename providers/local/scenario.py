"""The world a local cloud plays: zones, machine types, prices, capacity, faults, preemptions.

Times (`at_s`, `after_s`) count from the start of the server. `scenario_file` reads them from TOML.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from providers.base import CapacityType

PERSONALITIES = ("aws", "gcp", "azure")
FAULT_KINDS = (
    "delay",  # before the call is served
    "lost_reply",  # it is done, the answer is not sent
    "http_500",  # it is not done
    "throttled",
    "unauthorized",
    "no_capacity",
    "quota",
    "price",
    "rejected",
    "fails_later",  # accepted, then listed as a failed create
    "pending",  # answered with an operation instead of an instance
    "leftovers",  # the machine ends, and its disk, address and card stay
    "invisible",  # nothing is there, as far as this call can see
    "garbage",  # done, answered with something that is not JSON
)
OPERATIONS = (
    "launch",
    "terminate",
    "list",
    "offers",
    "notices",
    "renew",
    "leftovers",
    "discard",
)
PREEMPT_KINDS = ("preempt", "rebalance", "maintenance", "none")
MODES = ("notice", "reset", "silent", "frozen")


@dataclass(frozen=True)
class MachineType:
    """Something a zone rents out. The accelerator is a label: there is none on this machine."""

    personality: str
    name: str
    spot_microusd_per_h: int
    on_demand_microusd_per_h: int
    accelerator: str = ""
    accelerator_count: int = 0
    cpus: float = 1.0
    memory_gib: float = 1.0


@dataclass(frozen=True)
class Zone:
    """A place to rent. `price_factor` makes one zone dearer than another."""

    personality: str
    region: str
    name: str
    spot_capacity: int = 1000
    on_demand_capacity: int = 1000
    price_factor: Decimal = Decimal(1)
    boot_delay_s: float = 0.0


@dataclass(frozen=True)
class PriceChange:
    """From `at_s` on, machines of this type cost this in this zone ("" matches all)."""

    at_s: float
    microusd_per_h: int
    personality: str = ""
    zone: str = ""
    instance_type: str = ""
    capacity_type: CapacityType = CapacityType.SPOT


@dataclass(frozen=True)
class CapacityChange:
    """From `at_s` on, this many machines fit into the zone ("" matches all)."""

    at_s: float
    count: int
    personality: str = ""
    zone: str = ""
    capacity_type: CapacityType = CapacityType.SPOT


@dataclass(frozen=True)
class Fault:
    """What goes wrong with calls that match, `count` times (0: always) in [from_s, until_s)."""

    operation: str
    kind: str
    personality: str = ""
    zone: str = ""
    count: int = 1
    from_s: float = 0.0
    until_s: float = 1e12
    seconds: float = 1.0  # of a delay; retry-after of throttling; until a create fails


@dataclass(frozen=True)
class Preemption:
    """A machine or a zone is taken away.

    Either at `at_s`, or `after_s` seconds after the `nth` machine that matches was launched
    (`after = "launch"`) or was given its first command (`after = "exec"`). `mode` says how it ends:
    "notice" and "reset" kill and drop the connections, "silent" cuts off without a last word, and
    "frozen" does so while the cloud goes on listing (and billing) the machine as running. With
    `thaw_after_s` the machine is only stopped, and comes back that long afterwards: for `zombie_s`,
    or, a frozen one, for good.
    """

    kind: str = "preempt"
    mode: str = "notice"
    notice_s: float = 30.0
    personality: str = ""
    zone: str = ""
    instance: str = ""
    at_s: float | None = None
    nth: int = 0
    after: str = "exec"
    after_s: float = 0.0
    thaw_after_s: float | None = None
    zombie_s: float = 10.0


@dataclass(frozen=True)
class Scenario:
    """All of it."""

    zones: tuple[Zone, ...]
    types: tuple[MachineType, ...]
    prices: tuple[PriceChange, ...] = ()
    capacities: tuple[CapacityChange, ...] = ()
    faults: tuple[Fault, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    visibility_s: float = 0.0  # how long a fresh machine stays out of lists
    aws_queue_delay_s: float = 15.0  # how far the cloud-side queue is behind the machine
    azure_first_call_delay_s: float = 0.0
    silent_retention_s: float = 5.0  # how long a silent machine stays silent after terminate


def _usd(text: str) -> int:
    return int(Decimal(text) * 1_000_000)


DEFAULT = Scenario(
    zones=(
        Zone("aws", "us-east-2", "us-east-2a"),
        Zone("aws", "us-east-2", "us-east-2b", price_factor=Decimal("1.05")),
        Zone("gcp", "us-central1", "us-central1-a"),
        Zone("gcp", "us-central1", "us-central1-b", price_factor=Decimal("1.05")),
        Zone("azure", "eastus", "eastus-1"),
        Zone("azure", "eastus", "eastus-2", price_factor=Decimal("1.05")),
    ),
    types=(
        MachineType("aws", "p5.48xlarge", _usd("14"), _usd("55.04"), "H100", 8, 2, 4),
        MachineType("aws", "c7i.large", _usd("0.036"), _usd("0.089"), "", 0, 2, 4),
        MachineType("gcp", "a3-highgpu-8g", _usd("22"), _usd("87.83"), "H100", 8, 2, 4),
        MachineType("gcp", "c3-highcpu-2", _usd("0.038"), _usd("0.085"), "", 0, 2, 4),
        MachineType(
            "azure", "Standard_ND96isr_H100_v5", _usd("29"), _usd("98.32"), "H100", 8, 2, 4
        ),
        MachineType("azure", "Standard_F2s_v2", _usd("0.040"), _usd("0.085"), "", 0, 2, 4),
    ),
)
