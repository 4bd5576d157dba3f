"""Documents that start a node: the agent's configuration, and the data of `start`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from spotd.wire.fields import (
    WireError,
    read_count,
    read_field,
    read_list,
    read_number,
    read_texts,
    shown,
)
from spotd.wire.outputs import OutputRules, parse_output_rules
from spotd.wire.parts import PART, build, fields_of, flat_data, is_required, types_of
from spotd.wire.printed_steps import PrintedSteps, parse_printed_steps, printed_steps_data


@dataclass(frozen=True)
class AgentConfig:
    """The configuration of `spot-node run` (JSON on stdin of the boot command).

    * `watcher` selects `providers.<watcher>.notice`.
    * `metadata_base` overrides the metadata service's address; "" is the cloud's own.
    * `unattended_s` is how long the machine may run without contact to the daemon (0: forever), and
      `left_s` how much of that remains now.
    * `life_s` is the time until the cloud ends the machine in any case, `ends_s` the time until its
      reservation ends (0: never).
    * `power_off` is the command that switches the machine off; empty if there is none.
    * `wipe`: wipe the disks at the end.
    * `keep_s` is how long the machine is retained for its user after the program failed.
    * `regroups`: after a release, the next generation may need this machine as it is.
    * `prepared_file` is the file that the machine's boot script writes when it has finished ("ok"
      or an error); "" if there is none.
    """

    deployment: str
    job_id: str
    generation: int
    rank: int
    token: str
    watcher: str
    metadata_base: str = ""
    heartbeat_s: float = 2.0
    unattended_s: float = 0.0
    left_s: float = 0.0
    life_s: float = 0.0
    power_off: tuple[str, ...] = ()
    wipe: bool = False
    keep_s: float = 0.0
    prepared_file: str = ""
    ends_s: float = 0.0
    regroups: bool = False

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def parse_agent_config(data: Mapping[str, Any]) -> AgentConfig:
    """Parse an agent's configuration. Raises WireError."""
    return AgentConfig(
        deployment=read_field(data, "deployment", str),
        job_id=read_field(data, "job_id", str),
        generation=read_count(data, "generation"),
        rank=read_count(data, "rank"),
        token=read_field(data, "token", str),
        watcher=read_field(data, "watcher", str),
        metadata_base=read_field(data, "metadata_base", str),
        heartbeat_s=read_number(data, "heartbeat_s"),
        prepared_file=read_field(data, "prepared_file", str) if "prepared_file" in data else "",
        ends_s=read_number(data, "ends_s") if "ends_s" in data else 0.0,
        regroups=read_field(data, "regroups", bool) if "regroups" in data else False,
        **_parse_lifetime(data),
    )


def _parse_lifetime(data: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields that older daemons do not send; without them lifetimes are not limited."""
    if "unattended_s" not in data:
        return {}
    return {
        "unattended_s": read_number(data, "unattended_s"),
        "left_s": read_number(data, "left_s"),
        "life_s": read_number(data, "life_s"),
        "power_off": tuple(read_list(data, "power_off", str)),
        "wipe": read_field(data, "wipe", bool),
        "keep_s": read_number(data, "keep_s") if "keep_s" in data else 0.0,
    }


@dataclass(frozen=True)
class Package:
    """A content-addressed tar archive, already on the node, to be unpacked at `target`.

    `target` is "" for the workdir, otherwise a path as in SkyPilot's file mounts: absolute,
    relative to the home directory (`~/...`), or relative to the workdir.
    """

    digest: str
    target: str


class MountMode(str, Enum):
    """How a bucket is made available, by SkyPilot's names; the cache is on the node's disk."""

    COPY = "COPY"
    MOUNT = "MOUNT"
    MOUNT_CACHED = "MOUNT_CACHED"


@dataclass(frozen=True)
class Bucket:
    """A bucket's prefix `url` that is copied to, or mounted read-only at, `target`.

    `cache_bytes` is the size of a mount's cache, 0 for half of the free disk space. `options` open
    the store and are treated as secrets. `near` is a store in the node's own region that holds a
    copy of the data set. If the copy is missing it is made first, if it costs at most
    `max_microusd` at `microusd_per_gb` (None: not known).
    """

    target: str
    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    near: str = field(default="", metadata={"sparse": True})
    near_options: Mapping[str, str] = field(
        default_factory=dict, repr=False, metadata={"sparse": True}
    )
    microusd_per_gb: int | None = field(default=None, metadata={"sparse": True})
    max_microusd: int = field(default=0, metadata={"sparse": True})
    mode: MountMode = field(default=MountMode.COPY, metadata={"sparse": True})
    cache_bytes: int = field(default=0, metadata={"sparse": True})


@dataclass(frozen=True)
class Mount:
    """A content-addressed package and where it is unpacked ("" is the workdir)."""

    digest: str
    target: str


@dataclass(frozen=True)
class ShardStore:
    """Another store that may hold shards of the job; `options` as in Bucket."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Gang:
    """The machines that train together.

    * `peer_timeout_s` is how long the program's ranks wait for each other; 0, from an older daemon,
      means the defaults of torch and of the program.
    """

    num_nodes: int
    node_ips: tuple[str, ...]
    accelerators_per_node: int
    peer_timeout_s: float = 0.0


@dataclass(frozen=True)
class Program:
    """The commands to execute, and how their progress is read.

    * `secrets` are sent on SSH stdin only and never written to the journal.
    * `image` is the full name of a container image; with "" `setup` and `run` are executed on the
      machine itself.
    * `bake`: only run `setup`; nothing is claimed, run or saved.
    * `printed_steps`: the numbers of steps that the program printed in earlier attempts.
    """

    setup: str
    run: str
    envs: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)
    stop_grace_s: float
    progress_every_s: float
    image: str = ""
    bake: bool = False
    printed_steps: PrintedSteps = field(default_factory=dict)


@dataclass(frozen=True)
class ProgramFiles:
    """The files that the program finds, and those that are stored besides its checkpoints.

    * `caches` are folders below the workdir, absolute or below `~`; up to `cache_bytes` of each are
      saved to the store and restored from it.
    * `outputs`: the files that are uploaded when the program ends; None for none.
    """

    packages: tuple[Package, ...]
    buckets: tuple[Bucket, ...] = ()
    caches: tuple[str, ...] = ()
    cache_bytes: int = 0
    outputs: OutputRules | None = None


@dataclass(frozen=True)
class CheckpointStorage:
    """The job's authority store, and the stores that hold shards.

    * `shard_stores` are all other stores that may hold shards. `shards_url` is the one in the
      machine's own region, to which its shards and caches are written; "" for the job's own store.
    """

    store_url: str
    store_options: Mapping[str, str] = field(repr=False)
    shards_url: str = field(default="", metadata={"with": "shard_stores"})
    shard_stores: tuple[ShardStore, ...] = ()

    @property
    def near(self) -> ShardStore:
        """The store in the machine's own region, or the job's own store if there is none."""
        matching = [store for store in self.shard_stores if store.url == self.shards_url]
        return matching[0] if matching else ShardStore(self.store_url, self.store_options)

    @property
    def others(self) -> dict[str, dict[str, str]]:
        """The options of each other store that may hold shards, by URL."""
        return {store.url: dict(store.options) for store in self.shard_stores}


@dataclass(frozen=True)
class HeadClaim:
    """When HEAD may be claimed, and where training resumes.

    * `head_generation` is the newest generation that HEAD is known to have had (0: none); a HEAD
      that is missing or older is not claimed.
    * `suspect` is the key of a manifest from which training failed repeatedly; the one before it is
      used, if there is one.
    """

    claim: str
    claim_deadline_s: float
    head_generation: int
    suspect: str = ""


@dataclass(frozen=True)
class CheckpointPolicy:
    """How often the program saves, and what is kept.

    * `engine` is "spotd" if the training program claims HEAD and saves with `spotd_hook`. With
      "none" the agent claims HEAD, runs the script and commits the final manifest itself.
    * `auto`: the program computes its checkpoint interval from measured save times and from
      `mtbf_s`, `gb_costs_s` and `put_costs_s` (see trainer/hook/spotd_hook/cadence.py). A program
      that cannot uses `every_s`.
    * `keep_every_steps`: pin one checkpoint every this many steps.
    * `directory`, with engine "none" only: the folder that a script saves to, absolute or below the
      workdir, which the agent copies to the store; "" for none. Of its files those that match
      `include` (all if it is empty) and not `exclude` are copied.
    """

    engine: str
    every_steps: int
    every_s: float
    keep: int
    auto: bool = False
    mtbf_s: float = field(default=0.0, metadata={"with": "auto"})
    gb_costs_s: float = field(default=0.0, metadata={"with": "auto"})
    put_costs_s: float = field(default=0.0, metadata={"with": "auto"})
    keep_every_steps: int = 0
    directory: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class StartDocument:
    """Everything a node needs to train one generation; the data of the `start` command.

    It is sent as one flat object, in which the fields of a part stand beside the others.

    * `hold`: prepare, report READY, and wait. The machine has no rank yet.
    * `tools` is the digest of a package of wheels for the saver's environment; "" for none.
    """

    job_name: str
    gang: Gang = field(metadata=PART)
    program: Program = field(metadata=PART)
    files: ProgramFiles = field(metadata=PART)
    storage: CheckpointStorage = field(metadata=PART)
    head: HeadClaim = field(metadata=PART)
    checkpoint: CheckpointPolicy = field(metadata=PART)
    hold: bool = False
    tools: str = ""

    def to_data(self) -> dict[str, Any]:
        return flat_data(self) | {"printed_steps": printed_steps_data(self.program.printed_steps)}


def _parse_near(item: Mapping[str, Any]) -> dict[str, Any]:
    if not item.get("near"):
        return {}
    price = item.get("microusd_per_gb")
    return {
        "near": read_field(item, "near", str),
        "near_options": read_texts(item, "near_options"),
        "microusd_per_gb": None if price is None else read_count(item, "microusd_per_gb"),
        "max_microusd": read_count(item, "max_microusd"),
    }


def _parse_mode(item: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields that older daemons do not send; without them buckets are copied."""
    if "mode" not in item:
        return {}
    mode = read_field(item, "mode", str)
    if mode not in MountMode.__members__:
        raise WireError(f"field 'mode' is {shown(mode)}")
    return {"mode": MountMode(mode), "cache_bytes": read_count(item, "cache_bytes")}


def _read_text_list(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(read_list(data, name, str))


def _read_packages(data: Mapping[str, Any], name: str) -> tuple[Package, ...]:
    return tuple(
        Package(read_field(item, "digest", str), read_field(item, "target", str))
        for item in read_field(data, name, list)
    )


def _read_buckets(data: Mapping[str, Any], name: str) -> tuple[Bucket, ...]:
    return tuple(
        Bucket(
            read_field(item, "target", str),
            read_field(item, "url", str),
            read_texts(item, "options"),
            **_parse_near(item),
            **_parse_mode(item),
        )
        for item in read_list(data, name, dict)
    )


def _read_shard_stores(data: Mapping[str, Any], name: str) -> tuple[ShardStore, ...]:
    return tuple(
        ShardStore(read_field(item, "url", str), read_texts(item, "options"))
        for item in read_list(data, name, dict)
    )


# The reader of a field by the type of that field.
_READERS: Mapping[Any, Callable[[Mapping[str, Any], str], Any]] = {
    str: partial(read_field, kind=str),
    bool: partial(read_field, kind=bool),
    int: read_count,
    float: read_number,
    tuple[str, ...]: _read_text_list,
    Mapping[str, str]: read_texts,
    tuple[Package, ...]: _read_packages,
    tuple[Bucket, ...]: _read_buckets,
    tuple[ShardStore, ...]: _read_shard_stores,
    OutputRules | None: lambda data, _name: parse_output_rules(data),
    PrintedSteps: lambda data, name: parse_printed_steps(data[name]),
}


def _is_sent(data: Mapping[str, Any], item: Field[Any]) -> bool:
    """Return whether a field is read. A field with a default may be missing: an older daemon does
    not send it, unless it sends the field that came into the document with it."""
    return is_required(item) or item.name in data or item.metadata.get("with") in data


def parse_start(data: Mapping[str, Any]) -> StartDocument:
    """Parse the data of a `start` command. Raises WireError."""
    types = types_of(StartDocument)
    sent = (name for name, item in fields_of(StartDocument).items() if _is_sent(data, item))
    return build(StartDocument, {name: _READERS[types[name]](data, name) for name in sent})
