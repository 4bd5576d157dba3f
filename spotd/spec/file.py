"""Pydantic models of the job file: SkyPilot's task keys and the `spotd:` block.

A SkyPilot key that spotd does not use is `Ignored` (with a warning). One that cannot be ignored
without changing what the job does is `Refused` (with an error that says what to write instead).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from spotd.domain.container import container_of, full_name
from spotd.domain.images import PREFIX as BAKED
from spotd.domain.images import baked_of, check_name
from spotd.spec.block import Block, Ignored, Refused
from spotd.spec.budget import Budget, text_keys
from spotd.spec.checkpoint_every import EveryField
from spotd.spec.model import ModelBlock
from spotd.spec.mounts import Storage, parse_mount
from spotd.spec.prefetch import StageAhead
from spotd.spec.quantities import (
    MAX_STEPS,
    AcceleratorField,
    Bytes,
    Cpus,
    DiskGib,
    Duration,
    Memory,
    Priority,
    StoreUrl,
    Usd,
    WorkField,
)

ExitCodeNumber = Annotated[int, Field(ge=1, le=255)]
ExitCodes = Annotated[
    list[ExitCodeNumber],
    BeforeValidator(
        lambda value: [value] if isinstance(value, int) else value,
        json_schema_input_type=ExitCodeNumber | list[ExitCodeNumber],
    ),
]
CapacityName = Literal["spot", "on_demand", "reserved", "block"]
Capacities = Annotated[
    list[CapacityName],
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value,
        json_schema_input_type=CapacityName | list[CapacityName],
    ),
]
Names = Annotated[
    list[str],
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value,
        json_schema_input_type=str | list[str],
    ),
]
Count = Annotated[int, Field(ge=0, le=1_000_000)]


class JobRecovery(Block):
    """SkyPilot's restart settings; the same keys in the `spotd:` block take precedence."""

    strategy: Annotated[Any, Ignored("spotd places by price and past refusals")] = None
    max_restarts_on_errors: Count | None = None
    recover_on_exit_codes: ExitCodes | None = None


@dataclass(frozen=True)
class Image:
    """A machine image, or a container image ("docker:..."), optionally for one region only."""

    name: str
    region: str = ""


def parse_image(value: Any) -> Image:
    """Parse a name, or {region: name} with one entry. Raises ValueError."""
    if isinstance(value, dict) and len(value) == 1:
        [(region, name)] = value.items()
    else:
        region, name = "", value
    if not isinstance(name, str) or not name:
        raise ValueError("one image is needed; write its id, or one 'region: id' pair")
    if image := container_of(name):
        full_name(image)
    if name.startswith(BAKED):
        check_name(baked_of(name))
    return Image(name, str(region))


class Resources(Block):
    """Requirements for one kind of machine."""

    accelerators: AcceleratorField | None = Field(
        default=None, description="H100:8; a list is ordered"
    )
    infra: str | None = Field(default=None, description='"cloud/region/zone", * for any')
    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    cpus: Cpus | None = Field(
        default=None, description='Minimum number of CPUs; "8" and "8+" mean the same'
    )
    memory: Memory | None = Field(default=None, description='Minimum GiB; "4x" means 4 GiB per CPU')
    use_spot: bool | None = Field(
        default=None, description="true: spot only; false: on-demand only; absent: both, by price"
    )
    max_hourly_cost: Usd | None = Field(
        default=None, description="Maximum price of one node, USD/h"
    )
    disk_size: DiskGib | None = Field(default=None, description="GiB")
    image_id: (
        Annotated[Image, BeforeValidator(parse_image, json_schema_input_type=str | dict[str, str])]
        | None
    ) = None
    job_recovery: (
        Annotated[
            JobRecovery,
            BeforeValidator(
                lambda value: {"strategy": value} if isinstance(value, str) else value,
                json_schema_input_type=str | JobRecovery,
            ),
        ]
        | None
    ) = None

    spot_recovery: Annotated[Any, Ignored("an old name of job_recovery")] = None
    ephemeral_storage: Annotated[Any, Ignored("an old name of disk_size")] = None
    disk_tier: Annotated[Any, Ignored("the cloud's default disk is used")] = None
    network_tier: Annotated[Any, Ignored("the machine's default network is used")] = None
    local_disk: Annotated[Any, Ignored("choose an instance_type that has local disks")] = None
    ports: Annotated[Any, Ignored("spotd opens no ports to training machines")] = None
    labels: Annotated[Any, Ignored("machines carry spotd's own tags only")] = None
    autostop: Annotated[Any, Ignored("spotd ends every machine when its job ends")] = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None  # 0: spotd.priority 500
    priority_class: Annotated[Any, Ignored("write spotd.priority")] = None
    accelerator_args: Annotated[Any, Ignored("TPU settings are not supported")] = None
    volumes: Annotated[Any, Refused("read the data in setup or run, from its store")] = None


class AllResources(Resources):
    """The machines that may run the job: one kind, or alternatives that inherit these values."""

    any_of: list[Resources] | None = Field(
        default=None, description="Alternatives; the cheapest is used"
    )
    ordered: list[Resources] | None = Field(
        default=None, description="Alternatives in order of preference"
    )


def parse_workdir(value: Any) -> Any:
    """Return a local workdir unchanged. Raises ValueError for a git workdir."""
    if isinstance(value, dict):
        raise ValueError("a git workdir is not supported; name a local folder, or clone in setup")
    return value


Patterns = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=64)]


class Checkpoint(Block):
    """Where and how often the job saves checkpoints."""

    store: StoreUrl | None = Field(
        default=None, description="file:///folder, or s3://, gs:// or az://bucket/prefix"
    )
    shards: list[StoreUrl] | None = Field(
        default=None,
        description="Buckets for shards, one per region; [] for none; see docs/stores.md",
    )
    engine: Literal["spotd", "none"] = Field(
        default="none", description="spotd: the program saves with spotd_hook; none: any script"
    )
    mode: Literal["directory"] | None = Field(
        default=None,
        description="directory: the agent stores the checkpoints that any script writes to `path`",
    )
    path: str | None = Field(
        default=None, description="With mode directory: a folder, below the workdir or absolute"
    )
    include: Patterns = Field(
        default=[],
        description="With mode directory: only files that match one of these, like *.pt or best/*",
    )
    exclude: Patterns = Field(
        default=[], description="With mode directory: no files that match one of these"
    )
    every_steps: Count = Field(default=0, description="Save every N steps; 0: by time only")
    every: EveryField | None = Field(
        default=None, description="auto, a time like 5m, 500 steps, or a preset; docs/cadence.md"
    )
    origin: str | None = Field(
        default=None,
        alias="from",
        description="Initial checkpoint: a path with a / (safetensors, DCP, an export), or "
        "a job, as gpt or gpt@STEP; needs engine spotd",
    )
    size: Bytes | None = Field(
        default=None,
        description="Expected size of a checkpoint, for `plan`; about 12 bytes per parameter",
    )
    keep: Annotated[int, Field(ge=1, le=1000)] | None = None
    keep_every: Count = Field(
        default=0,
        description="In addition to `keep`: pin one checkpoint every this many steps",
    )


class Cache(Block):
    """Folders restored on the next machine for a quick start: models, packages, compiled code."""

    paths: Annotated[list[str], Field(min_length=1, max_length=16)] = Field(
        description="Below the workdir, absolute, or below ~; restored before setup"
    )
    size: Bytes = Field(default=50_000_000_000, description="Maximum stored size of each folder")


def _parse_cache(value: Any) -> Any:
    paths = [value] if isinstance(value, str) else value
    return {"paths": paths} if isinstance(paths, list) else value


_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"


def _parse_outputs(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Outputs = Annotated[
    Patterns, BeforeValidator(_parse_outputs, json_schema_input_type=str | list[str])
]


class Health(Block):
    """When slow training triggers a checkpoint."""

    ratio: float = Field(default=0.6, gt=0, lt=1, description="Share of the job's own baseline")
    checks: int = Field(default=4, ge=1, le=100)
    every: Duration = 30.0


class SpotdBlock(Block):
    """Settings that SkyPilot does not have."""

    kind: Literal["training", "inference"] = Field(
        default="training", description="inference: a job that answers live requests"
    )
    serve_on_spot: bool = Field(
        default=False, description="With kind inference: accept preemption during requests"
    )
    checkpoint: Checkpoint = Checkpoint()
    cache: (
        Annotated[
            Cache, BeforeValidator(_parse_cache, json_schema_input_type=str | list[str] | Cache)
        ]
        | None
    ) = None
    outputs: Outputs | None = Field(
        default=None,
        description="Files to upload when the program ends, like results/ or *.png, below the "
        "workdir, absolute, or below ~; [] for none; by default all that changed below the "
        "workdir, up to 10 GB",
    )
    budget: Budget = Budget()
    model: ModelBlock | None = Field(
        default=None, description="The model, for `plan` and `rightsize`; docs/rightsizing.md"
    )
    deadline: str | None = Field(
        default=None,
        description="ISO time with zone, or a duration from now; with `work`, on-demand machines "
        "are used where spot would be late",
    )
    work: WorkField | None = Field(
        default=None,
        description="Total amount of work, on the first machine named: 40h, or 100000 steps",
    )
    total_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = Field(
        default=None,
        description="Steps of the whole run, for progress and the time of its end, where the "
        "program does not name them itself; the same as work: N steps",
    )
    objective: Literal["cost", "speed"] = Field(
        default="cost", description="Choose the offer that finishes cheapest, or fastest"
    )
    stage_ahead: StageAhead | None = Field(
        default=None,
        description="Copy data sets to places where the job may run next; docs/stores.md",
    )
    residency: Names | None = Field(
        default=None,
        description="Permitted locations of machines: EU, EEA, adequate, or countries like DE, CH",
    )
    not_operated_from: Names | None = Field(
        default=None, description="Home countries of cloud companies to avoid, like US"
    )
    max_duration: Duration | None = None
    max_restarts_on_errors: Count | None = None
    recover_on_exit_codes: ExitCodes | None = None
    keep_on_failure: Duration | None = Field(
        default=None, description="How long to keep a failed machine"
    )
    capacity: Capacities | None = Field(
        default=None,
        description="spot, on_demand, reserved or block; a list is in order of preference",
    )
    candidates: int = Field(
        default=1, ge=1, le=8, description="Machines requested in parallel; one of them trains"
    )
    on_node_loss: Literal["wait", "shrink", "wait-then-shrink"] = Field(
        default="wait",
        description="With num_nodes and engine spotd: continue with the remaining machines; "
        "docs/elastic.md",
    )
    min_nodes: int | None = Field(
        default=None, ge=1, description="Minimum number of machines after a loss; 1"
    )
    shrink_after: Duration | None = Field(
        default=None, description="With wait-then-shrink: how long the other machines wait; 5m"
    )
    slow_network: bool = Field(
        default=False,
        description="With num_nodes: accept machines without EFA, GPUDirect or InfiniBand",
    )
    stop_grace: Duration | None = Field(
        default=None,
        description="How long a stop without a notice may take; 5m with engine spotd, else 30s",
    )
    boot_timeout: Duration | None = None
    setup_timeout: Duration | None = None
    peer_timeout: Duration | None = None  # docs/elastic.md
    progress_every: Duration | None = None
    health: Health = Health()
    alerts: list[str] | None = Field(default=None, description="Names of routes in config.toml")
    project: str | None = Field(default=None, pattern=_NAME, description="Project for budgets")
    after: str | None = Field(
        default=None,
        pattern=_NAME,
        description="Name of a job that must succeed before this one starts; docs/phases.md",
    )
    priority: Priority | None = Field(default=None, description="Or 0 to 1000; docs/queueing.md")


def _parse_scalar(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError("must be one value, not a block or a list; put quotes around it")


Scalar = Annotated[
    Any,
    BeforeValidator(_parse_scalar, json_schema_input_type=str | int | float | bool | None),
]


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


class JobFile(Block):
    """A complete job file."""

    name: str | None = Field(default=None, pattern=_NAME, description="1 to 63 characters")
    num_nodes: int = Field(default=1, ge=1, le=1024)
    resources: AllResources = AllResources()
    workdir: Annotated[str, BeforeValidator(parse_workdir)] | None = Field(
        default=None, description="A folder, copied to the node; setup and run start in it"
    )
    file_mounts: dict[
        str, Annotated[Storage, BeforeValidator(parse_mount, json_schema_input_type=str | Storage)]
    ] = Field(default={}, description="Path on the node: local path, or s3://, gs:// or az://")
    envs: Annotated[dict[str, Scalar], BeforeValidator(text_keys)] = Field(default={})
    secrets: Annotated[
        dict[str, Scalar],
        BeforeValidator(
            lambda value: dict.fromkeys(value) if _is_names(value) else text_keys(value),
            json_schema_input_type=dict[str, Scalar] | list[str],
        ),
    ] = Field(
        default={},
        description="A value, or null: passed with --secret or stored by `spotctl secret set`",
    )
    setup: str = ""
    run: str = Field(default="", description="The command that trains; 0 is success")
    spotd: SpotdBlock = SpotdBlock()

    inputs: Annotated[Any, Ignored("an estimate for SkyPilot's own optimizer")] = None
    outputs: Annotated[Any, Ignored("an estimate for SkyPilot's own optimizer")] = None
    event_callback: Annotated[Any, Ignored("spotd.alerts sends alerts")] = None
    config: Annotated[Any, Ignored("settings of SkyPilot itself")] = None
    api_server_access: Annotated[Any, Ignored("machines have no access to spotd")] = None
    experimental: Annotated[Any, Ignored("settings of SkyPilot itself")] = None
    priority: Annotated[Any, Ignored("write spotd.priority")] = None
    managed_secrets: Annotated[
        Any, Refused("name them under secrets; `spotctl secret set NAME` stores them")
    ] = None
    volumes: Annotated[Any, Refused("read the data in setup or run, from its store")] = None
    service: Annotated[Any, Refused("spotd trains; it does not serve")] = None
    pool: Annotated[Any, Refused("spotd has no worker pools; submit the job itself")] = None
