"""The follow stream and the commands: what a node says, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spotd.wire.fields import (
    WireError,
    encode,
    read_count,
    read_field,
    read_number,
    read_object,
)

# Lines and commands say which version of this page they were written by; of version 1 they did not.
# From one version to the next it only grows: a daemon drives the agents that the one before it
# started, and after it was taken back, those that the one after it did.
WIRE_VERSION = 2
SPOKEN = range(WIRE_VERSION - 1, WIRE_VERSION + 2)
MAX_LINE_BYTES = 1 << 20

# Exit codes of training (75 is EX_TEMPFAIL of sysexits.h).
EXIT_FINISHED = 0
EXIT_RELEASED = 75
EXIT_FENCED = 76
# Beyond what a process can end with: nobody but the agent says these.
EXIT_HUNG = 256  # it hung, here for the second time or with others that wait for it
EXIT_UNFIT = 257  # the machine is not fit to train on: its GPU has failed, or it came up unwell
EXIT_DIVERGED = 258  # its numbers are none, nor were they after it went back

# What a journal entry can be; the comment gives its `data`.
HELLO = "hello"  # agent, wire, python, hostname, boot_id
PREPARED = "prepared"  # status: begin|ok, seconds: what the machine does by itself when it boots
IMAGE = (
    "image"  # status: begin|pulling|ok|failed, image, text, digest, engine, pulled: bool, seconds
)
SETUP = "setup"  # status: begin|ok|failed, code, seconds, tail
STARTED = "started"  # pids: the processes of `run` (one entry per spawn)
READY = "ready"  # prepared: all is done up to the claim of HEAD; plans: the last save, by itself
CLAIMED = "claimed"  # step, manifest: HEAD is ours and this is where we resume
PROGRESS = (
    "progress"  # from_step, to_step, losses[], last_at_us, first_at_us, tokens, busy_s; data_s,
    # save_s, ranks_s[], ranks_per_node as measured; usage, the sums of a window, once in a while
)
CHECKPOINT = (
    "checkpoint"  # step, manifest, digest, bytes, near_bytes, stage_s, write_s, trigger, ...
)
CHECKPOINT_FAILED = "checkpoint_failed"  # step, error
CHECKPOINT_SKIPPED = (
    "checkpoint_skipped"  # step, manifest, error: a torn or corrupt one passed over
)
PLAN = (
    "plan"  # status: planned|ended, action, step, ...: see trainer/hook/spotd_hook/save_planner.py
)
ROLLED_BACK = "rolled_back"  # step, from_step: to the state of an older checkpoint
NOTICE = "notice"  # notice_id, kind, remaining_s (null: unknown), source, text
NOTICE_WITHDRAWN = "notice_withdrawn"  # notice_id
METADATA = "metadata"  # up: bool, error
DRAINING = "draining"  # reason, plan: what the local branch decided, deadline_s; stops: asked now
RELEASED = "released"  # step, manifest: "nothing more will come from this generation"
UNWELL = (
    "unwell"  # what: hung|gpu|machine, text, code, again: it ends, and begins again here or not;
    # step, ranks {rank: step}, stacks: how many were taken, dumps[{rank, pid, how, text}]
)
EXITED = "exited"  # code (0, 75, 76, 256 to 258, else crashed), ranks: {rank: code}, tail
DISK = "disk"  # full: bool, text: it stays so
CACHE = "cache"  # status: restored|kept|failed, path, files, bytes, seconds; text: why it failed
RESULTS = "results"  # what an evaluation measured: the fields of spotd/domain/evaluation.py
WIPED = "wiped"  # what[], how, left_mounts[], failed: the disks, after the end
MOUNT_READ = (
    "mount_read"  # target, bytes: read over that mount since the line before; with a url: copied
    # from that store, which of a data set is where it is declared
)
WARNING = "warning"  # text; of a verdict on training also verdict, about: what it rests upon

JOURNAL_KINDS = frozenset(
    {
        HELLO,
        PREPARED,
        IMAGE,
        SETUP,
        STARTED,
        READY,
        CLAIMED,
        PROGRESS,
        CHECKPOINT,
        CHECKPOINT_FAILED,
    }
    | {CHECKPOINT_SKIPPED, NOTICE, NOTICE_WITHDRAWN, METADATA, DRAINING, RELEASED, EXITED, WIPED}
    | {UNWELL, PLAN, ROLLED_BACK, DISK, CACHE, MOUNT_READ, RESULTS, WARNING}
)

# Commands of `spot-node send`; every one carries `generation` and is idempotent.
START = (
    "start"  # StartDocument.to_data(); a later one for the same generation may only advance `claim`
)
RELEASE = "release"  # the replacement is ready: finish the step, save, release, exit 75
DRAIN = "drain"  # reason, deadline_s: the same without a notice (cancel, pause, budget)
SAVE = "save"  # checkpoint and go on
STOP = "stop"  # kill the training processes now
# drill, kind, notice_s: once for each drill, however often it is sent; with late: not any more
STRIKE = "strike"

COMMANDS = frozenset({START, RELEASE, DRAIN, SAVE, STOP, STRIKE})
DRILL_SOURCE = "drill"  # of a notice that a drill plays, and no cloud gave

# StartDocument.claim: when the new generation may take HEAD.
CLAIM_NOW = "now"  # nobody else can be writing
CLAIM_AFTER_RELEASE = "after_release"  # when HEAD says released, or `claim_deadline_s` from now


@dataclass(frozen=True)
class JournalEntry:
    """One fact of a node, numbered from 1 without a gap; `at_us` is the node's wall clock."""

    seq: int
    at_us: int
    generation: int
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
    wire: int = WIRE_VERSION

    def to_line(self) -> bytes:
        return encode({"journal": vars(self)})


@dataclass(frozen=True)
class Heartbeat:
    """ "Still here": sent at least every 5 s, never written to disk on the node."""

    seq: int
    at_us: int
    generation: int
    step: int

    def to_line(self) -> bytes:
        return encode({"heartbeat": vars(self)})


@dataclass(frozen=True)
class LogChunk:
    """A piece of one stream's output, by byte offset. `stream` is "setup" or "rank<N>"."""

    generation: int
    stream: str
    offset: int
    text: str  # latin-1 view of the bytes, so that any output survives JSON

    def to_line(self) -> bytes:
        return encode({"log": vars(self)})


@dataclass(frozen=True)
class DaemonPresence:
    """The daemon's only word on the follow stream: it is there, and the machine may go on for
    `left_s` without hearing it again; `mtbf_s` is the mean time between losses of the job's
    machines, as it is known now (0: it does not say). A node that does not know either reads over
    it."""

    left_s: float
    mtbf_s: float = 0.0

    def to_line(self) -> bytes:
        return encode({"here": asdict(self)})


def parse_here(line: bytes) -> DaemonPresence:
    """Raises WireError."""
    body = read_field(read_object(line), "here", dict)
    mtbf_s = read_number(body, "mtbf_s") if "mtbf_s" in body else 0.0
    return DaemonPresence(read_number(body, "left_s"), mtbf_s)


Line = JournalEntry | Heartbeat | LogChunk


def parse_line(line: bytes) -> Line:
    """One line of the follow stream. Raises WireError."""
    value = read_object(line)
    if "journal" in value:
        body = read_field(value, "journal", dict)
        kind = read_field(body, "kind", str)
        return JournalEntry(
            seq=read_count(body, "seq"),
            at_us=read_count(body, "at_us"),
            generation=read_count(body, "generation"),
            kind=kind,
            data=read_field(body, "data", dict),
            wire=_version(body),
        )
    if "heartbeat" in value:
        body = read_field(value, "heartbeat", dict)
        return Heartbeat(
            seq=read_count(body, "seq"),
            at_us=read_count(body, "at_us"),
            generation=read_count(body, "generation"),
            step=read_count(body, "step"),
        )
    if "log" in value:
        body = read_field(value, "log", dict)
        return LogChunk(
            generation=read_count(body, "generation"),
            stream=read_field(body, "stream", str),
            offset=read_count(body, "offset"),
            text=read_field(body, "text", str),
        )
    raise WireError("neither journal, heartbeat nor log")


@dataclass(frozen=True)
class Command:
    """One command to a node."""

    name: str
    generation: int
    data: Mapping[str, Any] = field(default_factory=dict)
    wire: int = WIRE_VERSION

    def to_line(self) -> bytes:
        return encode({"command": asdict(self)})


def parse_command(line: bytes) -> Command:
    """Raises WireError, also for a command that this version does not know, and for one of a daemon
    that is too far from it to be understood."""
    body = read_field(read_object(line), "command", dict)
    version = _version(body)
    if version not in SPOKEN:
        raise WireError(f"it is of version {version}, this agent speaks {WIRE_VERSION}")
    name = read_field(body, "name", str)
    if name not in COMMANDS:
        raise WireError(f"unknown command {name[:60]!r}")
    data = read_field(body, "data", dict)
    return Command(name, read_count(body, "generation"), data, version)


def _version(body: Mapping[str, Any]) -> int:
    return read_count(body, "wire") if "wire" in body else 1


@dataclass(frozen=True)
class Reply:
    """The answer to a command: done (or already done), or why not."""

    ok: bool
    error: str = ""

    def to_line(self) -> bytes:
        return encode({"reply": asdict(self)})


def parse_reply(line: bytes) -> Reply:
    """Raises WireError."""
    body = read_field(read_object(line), "reply", dict)
    return Reply(read_field(body, "ok", bool), read_field(body, "error", str))
