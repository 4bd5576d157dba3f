"""Documents that start a node: the agent's configuration, and the data of `start`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
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
class StartDocument:
    """Everything a node needs to train one generation; the data of the `start` command.

    * `engine` is "spotd" if the training program claims HEAD and saves with `spotd_hook`. With
      "none" the agent claims HEAD, runs the script and commits the final manifest itself.
    * `secrets` are sent on SSH stdin only and never written to the journal.
    * `head_generation` is the newest generation that HEAD is known to have had (0: none); a HEAD
      that is missing or older is not claimed.
    * `image` is the full name of a container image; with "" `setup` and `run` are executed on the
      machine itself.
    * `bake`: only run `setup`; nothing is claimed, run or saved.
    * `auto`: the program computes its checkpoint interval from measured save times and from
      `mtbf_s`, `gb_costs_s` and `put_costs_s` (see trainer/hook/spotd_hook/cadence.py). A program
      that cannot uses `every_s`.
    * `keep_every_steps`: pin one checkpoint every this many steps.
    * `suspect` is the key of a manifest from which training failed repeatedly; the one before it is
      used, if there is one.
    * `directory`, with engine "none" only: the folder that a script saves to, absolute or below the
      workdir, which the agent copies to the store; "" for none. Of its files those that match
      `include` (all if it is empty) and not `exclude` are copied.
    * `caches` are folders below the workdir, absolute or below `~`; up to `cache_bytes` of each are
      saved to the store and restored from it.
    * `shard_stores` are all other stores that may hold shards. `shards_url` is the one in the
      machine's own region, to which its shards and caches are written; "" for the job's own store.
    * `tools` is the digest of a package of wheels for the saver's environment; "" for none.
    * `hold`: prepare, report READY, and wait. The machine has no rank yet.
    * `outputs`: the files that are uploaded when the program ends; None for none.
    * `printed_steps`: the numbers of steps that the program printed in earlier attempts.
    * `peer_timeout_s` is how long the program's ranks wait for each other; 0, from an older daemon,
      means the defaults of torch and of the program.
    """

    job_name: str
    num_nodes: int
    node_ips: tuple[str, ...]
    accelerators_per_node: int
    setup: str
    run: str
    envs: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)
    packages: tuple[Package, ...]
    store_url: str
    store_options: Mapping[str, str] = field(repr=False)
    engine: str
    claim: str
    claim_deadline_s: float
    every_steps: int
    every_s: float
    keep: int
    stop_grace_s: float
    progress_every_s: float
    head_generation: int = 0
    image: str = ""
    bake: bool = False
    auto: bool = False
    mtbf_s: float = 0.0
    gb_costs_s: float = 0.0
    put_costs_s: float = 0.0
    keep_every_steps: int = 0
    suspect: str = ""
    directory: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    cache_bytes: int = 0
    buckets: tuple[Bucket, ...] = ()
    hold: bool = False
    shards_url: str = ""
    shard_stores: tuple[ShardStore, ...] = ()
    tools: str = ""
    peer_timeout_s: float = 0.0
    outputs: OutputRules | None = None
    printed_steps: PrintedSteps = field(default_factory=dict)

    @property
    def near_store(self) -> ShardStore:
        """The store in the machine's own region, or the job's own store if there is none."""
        matching = [store for store in self.shard_stores if store.url == self.shards_url]
        return matching[0] if matching else ShardStore(self.store_url, self.store_options)

    @property
    def other_stores(self) -> dict[str, dict[str, str]]:
        """The options of each other store that may hold shards, by URL."""
        return {store.url: dict(store.options) for store in self.shard_stores}

    def to_data(self) -> dict[str, Any]:
        return asdict(self) | {"printed_steps": printed_steps_data(self.printed_steps)}


def _parse_auto_interval(data: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields that older daemons do not send; those set the interval themselves."""
    if "auto" not in data:
        return {}
    names = ("mtbf_s", "gb_costs_s", "put_costs_s")
    return {"auto": read_field(data, "auto", bool)} | {
        name: read_number(data, name) for name in names
    }


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


def _parse_buckets(data: Mapping[str, Any]) -> tuple[Bucket, ...]:
    return tuple(
        Bucket(
            read_field(item, "target", str),
            read_field(item, "url", str),
            read_texts(item, "options"),
            **_parse_near(item),
            **_parse_mode(item),
        )
        for item in (read_list(data, "buckets", dict) if "buckets" in data else ())
    )


def _parse_shards(data: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields that older daemons do not send; without them all shards are in one store."""
    if "shard_stores" not in data:
        return {}
    stores = tuple(
        ShardStore(read_field(item, "url", str), read_texts(item, "options"))
        for item in read_list(data, "shard_stores", dict)
    )
    return {"shards_url": read_field(data, "shards_url", str), "shard_stores": stores}


def parse_start(data: Mapping[str, Any]) -> StartDocument:
    """Parse the data of a `start` command. Raises WireError."""
    texts = {
        name: read_field(data, name, str) for name in ("job_name", "setup", "run", "store_url")
    }
    maps: dict[str, Any] = {
        name: read_texts(data, name) for name in ("envs", "secrets", "store_options")
    }
    packages = tuple(
        Package(read_field(item, "digest", str), read_field(item, "target", str))
        for item in read_field(data, "packages", list)
    )
    return StartDocument(
        **texts,
        **maps,
        packages=packages,
        num_nodes=read_count(data, "num_nodes"),
        node_ips=tuple(read_list(data, "node_ips", str)),
        accelerators_per_node=read_count(data, "accelerators_per_node"),
        engine=read_field(data, "engine", str),
        claim=read_field(data, "claim", str),
        claim_deadline_s=read_number(data, "claim_deadline_s"),
        every_steps=read_count(data, "every_steps"),
        every_s=read_number(data, "every_s"),
        keep=read_count(data, "keep"),
        stop_grace_s=read_number(data, "stop_grace_s"),
        progress_every_s=read_number(data, "progress_every_s"),
        head_generation=read_count(data, "head_generation"),
        image=read_field(data, "image", str) if "image" in data else "",
        bake=read_field(data, "bake", bool) if "bake" in data else False,
        keep_every_steps=read_count(data, "keep_every_steps") if "keep_every_steps" in data else 0,
        suspect=read_field(data, "suspect", str) if "suspect" in data else "",
        directory=read_field(data, "directory", str) if "directory" in data else "",
        include=tuple(read_list(data, "include", str)) if "include" in data else (),
        exclude=tuple(read_list(data, "exclude", str)) if "exclude" in data else (),
        caches=tuple(read_list(data, "caches", str)) if "caches" in data else (),
        cache_bytes=read_count(data, "cache_bytes") if "cache_bytes" in data else 0,
        buckets=_parse_buckets(data),
        hold=read_field(data, "hold", bool) if "hold" in data else False,
        **_parse_auto_interval(data),
        **_parse_shards(data),
        tools=read_field(data, "tools", str) if "tools" in data else "",
        peer_timeout_s=read_number(data, "peer_timeout_s") if "peer_timeout_s" in data else 0.0,
        outputs=parse_output_rules(data),
        printed_steps=parse_printed_steps(data.get("printed_steps", {})),
    )
