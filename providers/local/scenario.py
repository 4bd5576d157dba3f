"""Scenarios of the local cloud: zones, machine types, prices, capacity, faults and preemptions.

Times (`at_s`, `from_s`, `until_s`) are seconds since the start of the server. `scenario_file` reads
scenarios from TOML.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from providers.base import CapacityType
from providers.clouds import CLOUDS

PERSONALITIES = tuple(name for name, cloud in CLOUDS.items() if cloud.imitated)
FAULT_KINDS = (
    "delay",  # the call is served late
    "lost_reply",  # the call takes effect, the connection is dropped
    "http_500",  # the call has no effect
    "throttled",
    "unauthorized",
    "no_capacity",
    "quota",
    "price",
    "rejected",
    "fails_later",  # accepted, then listed as a failed create
    "pending",  # answered with an operation instead of an instance
    "leftovers",  # the machine ends; its disk, address and network interface remain
    "invisible",  # the response lists nothing
    "garbage",  # the call takes effect, the response is not JSON
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
    """A rentable machine type. The accelerator is only a label."""

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
    """A zone of one cloud. Prices are multiplied by `price_factor`."""

    personality: str
    region: str
    name: str
    spot_capacity: int = 1000
    on_demand_capacity: int = 1000
    price_factor: Decimal = Decimal(1)
    boot_delay_s: float = 0.0


@dataclass(frozen=True)
class PriceChange:
    """The price of matching machine types and zones from `at_s` on ("" matches all)."""

    at_s: float
    microusd_per_h: int
    personality: str = ""
    zone: str = ""
    instance_type: str = ""
    capacity_type: CapacityType = CapacityType.SPOT


@dataclass(frozen=True)
class CapacityChange:
    """The capacity in machines of matching zones from `at_s` on ("" matches all)."""

    at_s: float
    count: int
    personality: str = ""
    zone: str = ""
    capacity_type: CapacityType = CapacityType.SPOT


@dataclass(frozen=True)
class Fault:
    """A fault of matching API calls, `count` times (0: always) in [from_s, until_s)."""

    operation: str
    kind: str
    personality: str = ""
    zone: str = ""
    count: int = 1
    from_s: float = 0.0
    until_s: float = 1e12
    seconds: float = (
        1.0  # duration of a delay, retry-after of throttling, or time until a create fails
    )


@dataclass(frozen=True)
class Preemption:
    """A rule that preempts one machine, or all machines of a zone.

    It applies at `at_s`, or `after_s` seconds after the `nth` matching machine was launched
    (`after = "launch"`) or ran its first command (`after = "exec"`).

    `mode` is how the machine ends: "notice" and "reset" kill it, which resets its connections;
    "silent" stops it so that connections just go quiet; "frozen" does the same while the cloud
    still lists and bills the machine as running. With `thaw_after_s` the machine is only stopped
    and runs again after that time: for `zombie_s`, or for good if frozen.
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
    """A complete scenario."""

    zones: tuple[Zone, ...]
    types: tuple[MachineType, ...]
    prices: tuple[PriceChange, ...] = ()
    capacities: tuple[CapacityChange, ...] = ()
    faults: tuple[Fault, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    visibility_s: float = 0.0  # until a new machine appears in lists
    aws_queue_delay_s: float = (
        15.0  # delay of the cloud-side notice queue after the machine's own notice
    )
    azure_first_call_delay_s: float = 0.0
    silent_retention_s: float = 5.0  # how long a silent machine stays after terminate


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
