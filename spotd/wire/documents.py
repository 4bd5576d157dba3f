"""What a node is started with: the agent's configuration, and the document of `start`."""

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


@dataclass(frozen=True)
class AgentConfig:
    """What `spot-node run` is started with (JSON on stdin of the boot command).

    `watcher` names `providers.<watcher>.notice`; `metadata_base` replaces the link-local address
    where the machine has another one (empty: the cloud's own). `unattended_s` is how long the
    machine may go on without a control box (0: for ever), `left_s` what is left of that now,
    `life_s` when the cloud ends it in any case (0: never), `ends_s` when the time that was booked
    for it ends (0: never), and `power_off` the command that
    switches it off (empty: there is none). `wipe`: the disks are wiped at the end. `keep_s` is how
    long it stays for its user after its program failed. `regroups`: one that released may be needed
    by the next generation, on this machine, as it is. `prepared_file` is what the preparation of
    the machine leaves when it is over ("ok", or what is wrong; empty: there is none).
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
    """Raises WireError."""
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
        **_parse_end(data),
    )


def _parse_end(data: Mapping[str, Any]) -> dict[str, Any]:
    """The newest fields: a box that does not know them gives its machines no time."""
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
    """A content-addressed tar archive already put on the node, to be unpacked at `target`.

    `target` is "" for the workdir, else as a SkyPilot file mount names it: an absolute path, one
    relative to the home directory (`~/...`), or one relative to the workdir.
    """

    digest: str
    target: str


class MountMode(str, Enum):
    """How a job has what is in a bucket, by SkyPilot's names; a cache is of the node's own disk."""

    COPY = "COPY"
    MOUNT = "MOUNT"
    MOUNT_CACHED = "MOUNT_CACHED"


@dataclass(frozen=True)
class Bucket:
    """What lies below `url` of a bucket is at `target`: copied there, or mounted, to read alone;
    `cache_bytes` is how much of a mount is cached, 0 half of what is free. `options` are what a
    node opens it with, which travel as `secrets` do. `near` is a store in the node's own region
    where a data set is kept, and brought to first if it is not there: for no more than
    `max_microusd`, at `microusd_per_gb` (None: not known)."""

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
    """A store beside the job's own that may have shards of it; `options` as of a Bucket."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class StartDocument:
    """Everything a node needs to train one generation; `data` of the `start` command.

    `engine` is "spotd" when the training program claims HEAD and checkpoints through
    `spotd_hook`, else "none": the agent then claims, runs the script and commits the empty
    final manifest itself. `secrets` travel on SSH stdin only and are never journalled.
    `head_generation` is the newest that HEAD is known to have had (0: none): one that is missing or
    older is not claimed. `image` is the whole name of a container image, by tag or by digest; ""
    for none: `setup` and `run` are then executed on the machine itself. With `bake` it is over when
    `setup` is done: nothing is claimed, run or saved. `auto`: the program chooses its pauses
    between saves by what it measures and by the last three (see
    trainer/hook/spotd_hook/cadence.py); one that cannot keeps to `every_s`. `keep_every_steps`: of
    the checkpoints, one for each so many steps is pinned. `suspect` names a manifest from which
    training failed again and again: the one before it is resumed from, if there is one.
    `directory`, of a script alone: the folder that it saves to, below its workdir unless it is
    absolute, which the agent keeps in the store; "" for none. `caches`, folders below the workdir,
    absolute or of `~`: up to `cache_bytes` of each are kept in the store and restored from it.
    `shard_stores` are all that may have shards, and `shards_url` is the one of them, in the
    machine's own region, that its shards and caches go to; "" for the job's store itself.
    `tools` is the digest of a package of wheels for the saver's environment; "" for none. With
    `hold` the machine prepares, says READY and waits: it has no rank yet, and runs nothing.
    `peer_timeout_s` is how long the program's ranks wait for one another, to meet and in a step; 0
    of a box that does not say: what torch and the program have by themselves.
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
    caches: tuple[str, ...] = ()
    cache_bytes: int = 0
    buckets: tuple[Bucket, ...] = ()
    hold: bool = False
    shards_url: str = ""
    shard_stores: tuple[ShardStore, ...] = ()
    tools: str = ""
    peer_timeout_s: float = 0.0

    @property
    def near_store(self) -> ShardStore:
        """That of the machine's own region, if the job has one there; else the job's."""
        near = [one for one in self.shard_stores if one.url == self.shards_url]
        return near[0] if near else ShardStore(self.store_url, self.store_options)

    @property
    def other_stores(self) -> dict[str, dict[str, str]]:
        """The options of each store that may have shards beside the job's own, by URL."""
        return {one.url: dict(one.options) for one in self.shard_stores}

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def _parse_cadence(data: Mapping[str, Any]) -> dict[str, Any]:
    """The newest fields: a box that does not know them says when to save."""
    if "auto" not in data:
        return {}
    numbers = ("mtbf_s", "gb_costs_s", "put_costs_s")
    return {"auto": read_field(data, "auto", bool)} | {n: read_number(data, n) for n in numbers}


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
    """The newest fields: a box that does not know them has buckets copied."""
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
    """The newest fields: of a box that does not know them all shards are in the job's store."""
    if "shard_stores" not in data:
        return {}
    stores = tuple(
        ShardStore(read_field(item, "url", str), read_texts(item, "options"))
        for item in read_list(data, "shard_stores", dict)
    )
    return {"shards_url": read_field(data, "shards_url", str), "shard_stores": stores}


def parse_start(data: Mapping[str, Any]) -> StartDocument:
    """Raises WireError."""
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
        caches=tuple(read_list(data, "caches", str)) if "caches" in data else (),
        cache_bytes=read_count(data, "cache_bytes") if "cache_bytes" in data else 0,
        buckets=_parse_buckets(data),
        hold=read_field(data, "hold", bool) if "hold" in data else False,
        **_parse_cadence(data),
        **_parse_shards(data),
        tools=read_field(data, "tools", str) if "tools" in data else "",
        peer_timeout_s=read_number(data, "peer_timeout_s") if "peer_timeout_s" in data else 0.0,
    )
