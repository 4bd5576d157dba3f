"""JSON between the node and the daemon, and the checkpoint documents they both read.

Standard library only and Python >= 3.10: this file travels to the node inside the agent's bundle.
Three things are spoken:

* the **follow stream** (node -> daemon, one SSH channel): JSON lines, each an object with exactly
  one of the keys `journal`, `heartbeat` or `log`;
* **commands** (daemon -> node): a JSON object on the stdin of `spot-node send`, one JSON reply;
* **checkpoint documents** in the job's authority store: `HEAD` and the manifests.

Whatever a node says is untrusted input: parsing raises `WireError` and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

WIRE_VERSION = 1
MAX_LINE_BYTES = 1 << 20

# Exit codes of training (75 is EX_TEMPFAIL of sysexits.h).
EXIT_FINISHED = 0
EXIT_RELEASED = 75
EXIT_FENCED = 76

# What a journal entry can be; the comment gives its `data`.
HELLO = "hello"  # agent, wire, python, hostname, boot_id
SETUP = "setup"  # status: begin|ok|failed, code, seconds, tail
STARTED = "started"  # pids: the processes of `run` (one entry per spawn)
READY = "ready"  # prepared: everything done up to the claim of HEAD
CLAIMED = "claimed"  # step, manifest: HEAD is ours and this is where we resume
PROGRESS = "progress"  # from_step, to_step, losses[], last_at_us, first_at_us, tokens, busy_s
CHECKPOINT = (
    "checkpoint"  # step, manifest, digest, bytes, stage_s, write_s, trigger, released, final
)
CHECKPOINT_FAILED = "checkpoint_failed"  # step, error
CHECKPOINT_SKIPPED = (
    "checkpoint_skipped"  # step, manifest, error: a torn or corrupt one passed over
)
NOTICE = "notice"  # notice_id, kind, remaining_s (null: unknown), source, text
NOTICE_WITHDRAWN = "notice_withdrawn"  # notice_id
METADATA = "metadata"  # up: bool, error
DRAINING = "draining"  # reason, plan: what the local branch decided, deadline_s
RELEASED = "released"  # step, manifest: "nothing more will come from this generation"
EXITED = "exited"  # code (0, 75, 76, else crashed), ranks: {rank: code}, tail: last output lines
WARNING = "warning"  # text

JOURNAL_KINDS = frozenset(
    {HELLO, SETUP, STARTED, READY, CLAIMED, PROGRESS, CHECKPOINT, CHECKPOINT_FAILED}
    | {CHECKPOINT_SKIPPED, NOTICE, NOTICE_WITHDRAWN, METADATA, DRAINING, RELEASED, EXITED, WARNING}
)

# Commands of `spot-node send`; every one carries `generation` and is idempotent.
START = (
    "start"  # StartDocument.to_data(); a later one for the same generation may only advance `claim`
)
RELEASE = "release"  # the replacement is ready: finish the step, save, release, exit 75
DRAIN = "drain"  # reason, deadline_s: the same without a notice (cancel, pause, budget)
SAVE = "save"  # checkpoint and go on
STOP = "stop"  # kill the training processes now

COMMANDS = frozenset({START, RELEASE, DRAIN, SAVE, STOP})

# StartDocument.claim: when the new generation may take HEAD.
CLAIM_NOW = "now"  # nobody else can be writing
CLAIM_AFTER_RELEASE = "after_release"  # when HEAD says released, or `claim_deadline_s` from now


class WireError(ValueError):
    """A line, command or document that is not what this module writes."""


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WireError("not a JSON object")
    return value


def _field(value: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    found = value.get(name)
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is int):
        raise WireError(f"field {name!r} is {found!r}")
    return found


def encode(value: Mapping[str, Any]) -> bytes:
    """One line, newline included."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode() + b"\n"


@dataclass(frozen=True)
class JournalEntry:
    """One fact of a node, numbered from 1 without a gap; `at_us` is the node's wall clock."""

    seq: int
    at_us: int
    generation: int
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_line(self) -> bytes:
        return encode({"journal": asdict(self)})


@dataclass(frozen=True)
class Heartbeat:
    """ "Still here": sent at least every 5 s, never written to disk on the node."""

    seq: int
    at_us: int
    generation: int
    step: int

    def to_line(self) -> bytes:
        return encode({"heartbeat": asdict(self)})


@dataclass(frozen=True)
class LogChunk:
    """A piece of one stream's output, by byte offset. `stream` is "setup" or "rank<N>"."""

    generation: int
    stream: str
    offset: int
    text: str  # latin-1 view of the bytes, so that any output survives JSON

    def to_line(self) -> bytes:
        return encode({"log": asdict(self)})


Line = JournalEntry | Heartbeat | LogChunk


def parse_line(line: bytes) -> Line:
    """One line of the follow stream. Raises WireError."""
    value = _object(line)
    if "journal" in value:
        body = _field(value, "journal", dict)
        kind = _field(body, "kind", str)
        return JournalEntry(
            seq=_field(body, "seq", int),
            at_us=_field(body, "at_us", int),
            generation=_field(body, "generation", int),
            kind=kind,
            data=_field(body, "data", dict),
        )
    if "heartbeat" in value:
        body = _field(value, "heartbeat", dict)
        return Heartbeat(
            seq=_field(body, "seq", int),
            at_us=_field(body, "at_us", int),
            generation=_field(body, "generation", int),
            step=_field(body, "step", int),
        )
    if "log" in value:
        body = _field(value, "log", dict)
        return LogChunk(
            generation=_field(body, "generation", int),
            stream=_field(body, "stream", str),
            offset=_field(body, "offset", int),
            text=_field(body, "text", str),
        )
    raise WireError("neither journal, heartbeat nor log")


@dataclass(frozen=True)
class Command:
    """One command to a node."""

    name: str
    generation: int
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_line(self) -> bytes:
        return encode({"command": asdict(self)})


def parse_command(line: bytes) -> Command:
    """Raises WireError, also for a command that this version does not know."""
    body = _field(_object(line), "command", dict)
    name = _field(body, "name", str)
    if name not in COMMANDS:
        raise WireError(f"unknown command {name!r}")
    return Command(name, _field(body, "generation", int), _field(body, "data", dict))


@dataclass(frozen=True)
class Reply:
    """The answer to a command: done (or already done), or why not."""

    ok: bool
    error: str = ""

    def to_line(self) -> bytes:
        return encode({"reply": asdict(self)})


def parse_reply(line: bytes) -> Reply:
    """Raises WireError."""
    body = _field(_object(line), "reply", dict)
    return Reply(_field(body, "ok", bool), _field(body, "error", str))


@dataclass(frozen=True)
class AgentConfig:
    """What `spot-node run` is started with (JSON on stdin of the boot command).

    `watcher` names `providers.<watcher>.notice`; `metadata_base` replaces the link-local address
    where the machine has another one (empty: the cloud's own).
    """

    deployment: str
    job_id: str
    generation: int
    rank: int
    token: str
    watcher: str
    metadata_base: str = ""
    heartbeat_s: float = 2.0

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def parse_agent_config(data: Mapping[str, Any]) -> AgentConfig:
    """Raises WireError."""
    return AgentConfig(
        deployment=_field(data, "deployment", str),
        job_id=_field(data, "job_id", str),
        generation=_field(data, "generation", int),
        rank=_field(data, "rank", int),
        token=_field(data, "token", str),
        watcher=_field(data, "watcher", str),
        metadata_base=_field(data, "metadata_base", str),
        heartbeat_s=float(_field(data, "heartbeat_s", (int, float))),
    )


@dataclass(frozen=True)
class Package:
    """A content-addressed tar archive already put on the node, to be unpacked at `target`.

    `target` is "" for the workdir, else an absolute path or one relative to the home directory
    (`~/...`), as a SkyPilot file mount names it.
    """

    digest: str
    target: str


@dataclass(frozen=True)
class StartDocument:
    """Everything a node needs to train one generation; `data` of the `start` command.

    `engine` is "spotd" when the training program claims HEAD and checkpoints through
    `trainer.checkpoint`, else "none": the agent then claims, runs the script and commits the empty
    final manifest itself. `secrets` travel on SSH stdin only and are never journalled.
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

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def parse_start(data: Mapping[str, Any]) -> StartDocument:
    """Raises WireError."""
    number = (int, float)
    texts = {name: _field(data, name, str) for name in ("job_name", "setup", "run", "store_url")}
    maps = {name: _field(data, name, dict) for name in ("envs", "secrets", "store_options")}
    packages = tuple(
        Package(_field(item, "digest", str), _field(item, "target", str))
        for item in _field(data, "packages", list)
    )
    return StartDocument(
        **texts,
        **maps,
        packages=packages,
        num_nodes=_field(data, "num_nodes", int),
        node_ips=tuple(_field(data, "node_ips", list)),
        accelerators_per_node=_field(data, "accelerators_per_node", int),
        engine=_field(data, "engine", str),
        claim=_field(data, "claim", str),
        claim_deadline_s=float(_field(data, "claim_deadline_s", number)),
        every_steps=_field(data, "every_steps", int),
        every_s=float(_field(data, "every_s", number)),
        keep=_field(data, "keep", int),
        stop_grace_s=float(_field(data, "stop_grace_s", number)),
        progress_every_s=float(_field(data, "progress_every_s", number)),
    )


# --- checkpoint documents ---------------------------------------------------------------------


def head_key(job_id: str) -> str:
    """Where a job's `HEAD` lies in its authority store."""
    return f"jobs/{job_id}/HEAD"


def manifest_key(job_id: str, generation: int, step: int, nonce: str) -> str:
    """A key that no other save can produce: generation, step and a nonce."""
    return f"jobs/{job_id}/g{generation:08d}/s{step:012d}-{nonce}/MANIFEST.json"


@dataclass(frozen=True)
class HeadRef:
    """A committed checkpoint as HEAD remembers it."""

    generation: int
    step: int
    manifest: str
    digest: str  # sha256 hex of the manifest's bytes


@dataclass(frozen=True)
class Head:
    """The one object that says who may write and where to resume; moved by compare-and-swap only.

    `generation` is the owner. `current` is the newest committed checkpoint (None before the first),
    `previous` its predecessors, newest first, to walk back along when it is torn. `released` means
    that the owner will write nothing more; `final` that the job is done. `nonce` is fresh in every
    version, so that two versions are never the same bytes.
    """

    job: str
    generation: int
    seq: int
    nonce: str
    owner: str
    current: HeadRef | None = None
    previous: tuple[HeadRef, ...] = ()
    released: bool = False
    final: bool = False

    def to_bytes(self) -> bytes:
        return encode({"head": asdict(self), "version": WIRE_VERSION})


def _ref(value: Any) -> HeadRef:
    if not isinstance(value, dict):
        raise WireError("a checkpoint reference is not an object")
    return HeadRef(
        generation=_field(value, "generation", int),
        step=_field(value, "step", int),
        manifest=_field(value, "manifest", str),
        digest=_field(value, "digest", str),
    )


def parse_head(data: bytes) -> Head:
    """Raises WireError."""
    body = _field(_object(data), "head", dict)
    current = body.get("current")
    return Head(
        job=_field(body, "job", str),
        generation=_field(body, "generation", int),
        seq=_field(body, "seq", int),
        nonce=_field(body, "nonce", str),
        owner=_field(body, "owner", str),
        current=None if current is None else _ref(current),
        previous=tuple(_ref(item) for item in _field(body, "previous", list)),
        released=_field(body, "released", bool),
        final=_field(body, "final", bool),
    )


@dataclass(frozen=True)
class Shard:
    """One object of raw bytes. `digest` is xxh3-128 hex, prefixed "xxh3:"; or "sha256:"."""

    key: str
    size: int
    digest: str


@dataclass(frozen=True)
class TensorLayout:
    """Where one tensor lies: bytes `[offset, offset + nbytes)` of shard number `shard`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Manifest:
    """What one checkpoint is made of; written last, created once, never overwritten.

    `state` is the JSON part (step, data position, hyper-parameters, random policy); tensors are raw
    little-endian bytes in the shards. A manifest without shards is legal: it is how a script
    without our engine ends its job.
    """

    job: str
    generation: int
    step: int
    created_at_us: int
    world_size: int
    shards: tuple[Shard, ...] = ()
    tensors: tuple[TensorLayout, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    final: bool = False

    def to_bytes(self) -> bytes:
        return encode({"manifest": asdict(self), "version": WIRE_VERSION})


def parse_manifest(data: bytes) -> Manifest:
    """Raises WireError."""
    body = _field(_object(data), "manifest", dict)
    shards = tuple(
        Shard(_field(item, "key", str), _field(item, "size", int), _field(item, "digest", str))
        for item in _field(body, "shards", list)
    )
    tensors = tuple(
        TensorLayout(
            name=_field(item, "name", str),
            dtype=_field(item, "dtype", str),
            shape=tuple(_field(item, "shape", list)),
            shard=_field(item, "shard", int),
            offset=_field(item, "offset", int),
            nbytes=_field(item, "nbytes", int),
        )
        for item in _field(body, "tensors", list)
    )
    return Manifest(
        job=_field(body, "job", str),
        generation=_field(body, "generation", int),
        step=_field(body, "step", int),
        created_at_us=_field(body, "created_at_us", int),
        world_size=_field(body, "world_size", int),
        shards=shards,
        tensors=tensors,
        state=_field(body, "state", dict),
        final=_field(body, "final", bool),
    )


def sha256(data: bytes) -> str:
    """Digest of a manifest as HEAD carries it."""
    return hashlib.sha256(data).hexdigest()
