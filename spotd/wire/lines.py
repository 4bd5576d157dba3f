"""Lines of the follow stream, and the commands to a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from spotd.wire.fields import (
    WireError,
    encode,
    read_count,
    read_field,
    read_number,
    read_object,
)

# Lines and commands carry the version of this module; version 1 had no such field. A new version
# only adds to the one before: after an upgrade a daemon talks to agents of the previous version,
# and after a downgrade to those of the next.
WIRE_VERSION = 2
SPOKEN = range(WIRE_VERSION - 1, WIRE_VERSION + 2)
MAX_LINE_BYTES = 1 << 20

# Exit codes of training (75 is EX_TEMPFAIL of sysexits.h).
EXIT_FINISHED = 0
EXIT_RELEASED = 75
EXIT_FENCED = 76
# Codes above those of processes; only the agent reports them.
EXIT_HUNG = 256  # the program hung, for the second time here or in a gang
EXIT_UNFIT = 257  # the machine cannot train: its GPU has failed, or it did not boot correctly
EXIT_DIVERGED = 258  # the loss is not finite, even after a rollback

# Kinds of journal entries; the comments list the fields of `data`.
HELLO = "hello"  # agent, wire, python, hostname, boot_id
PREPARED = "prepared"  # status: begin|ok, seconds: the machine's boot script
IMAGE = (
    "image"  # status: begin|pulling|ok|failed, image, text, digest, engine, pulled: bool, seconds
)
SETUP = "setup"  # status: begin|ok|failed, code, seconds; of a failure tail, cause, part
STARTED = "started"  # pids: the processes of `run` (one entry per spawn)
READY = (
    "ready"  # prepared: everything up to the claim of HEAD; plans: it plans its last save itself
)
CLAIMED = "claimed"  # step, manifest: this generation owns HEAD and resumes from there
PROGRESS = (
    "progress"  # from_step, to_step, losses[], last_at_us, first_at_us, tokens, busy_s; data_s,
    # save_s, ranks_s[], ranks_per_node as measured; usage: sums over a window, from time to time
    # total_steps: of the whole run, where the program knows it; at_least: true if more may follow
)
PRINTED_STEPS = "printed_steps"  # series: {key: [first, last, count]}, from the program's output
CHECKPOINT = (
    "checkpoint"  # step, manifest, digest, bytes, near_bytes, stage_s, write_s, trigger, ...
)
CHECKPOINT_FAILED = "checkpoint_failed"  # step, error
CHECKPOINT_SKIPPED = (
    "checkpoint_skipped"  # step, manifest, error: an incomplete or corrupt one was skipped
)
PLAN = (
    "plan"  # status: planned|ended, action, step, ...: see trainer/hook/spotd_hook/save_planner.py
)
ROLLED_BACK = "rolled_back"  # step, from_step: to the state of an older checkpoint
NOTICE = "notice"  # notice_id, kind, remaining_s (null: unknown), source, text
NOTICE_WITHDRAWN = "notice_withdrawn"  # notice_id
METADATA = "metadata"  # up: bool, error
DRAINING = (
    "draining"  # reason, plan (the agent's decision), deadline_s; stops: the program was asked
)
RELEASED = "released"  # step, manifest: this generation writes nothing more
UNWELL = (
    "unwell"  # what: hung|gpu|machine, text, code, again: whether it is restarted here;
    # step, ranks {rank: step}, stacks: their number, dumps[{rank, pid, how, text}]
)
EXITED = (
    "exited"  # code (0, 75, 76, 256 to 258, else crashed), ranks: {rank: code}, tail, cause, part
)
DISK = "disk"  # full: bool, text: the disk stays full
OUTPUTS = (
    "outputs"  # status: begin|stored|failed, files, bytes; manifest, digest, new_bytes, seconds, of
    # those stored; text: what is left out, or why it failed
)
CACHE = "cache"  # status: restored|kept|failed, path, files, bytes, seconds; text: why it failed
RESULTS = "results"  # results of an evaluation: the fields of spotd/domain/evaluation.py
WIPED = "wiped"  # what[], how, left_mounts[], failed: the disks were wiped at the end
MOUNT_READ = (
    "mount_read"  # target, bytes: read through that mount since the last entry; with url: copied
    # from that store, which for a data set is the declared one
)
WARNING = "warning"  # text; for a diagnosis of the training also verdict, about: the evidence

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
    | {UNWELL, PLAN, ROLLED_BACK, DISK, CACHE, OUTPUTS, MOUNT_READ, PRINTED_STEPS, RESULTS, WARNING}
)

# Commands of `spot-node send`; every one carries `generation` and is idempotent.
START = (
    "start"  # StartDocument.to_data(); if sent again for a generation, it may only advance `claim`
)
RELEASE = "release"  # the replacement is ready: finish the step, save, release, exit 75
# reason, deadline_s: the same for a cancel, pause or budget; outputs_s: for their upload after that
DRAIN = "drain"
SAVE = "save"  # checkpoint and continue
STOP = "stop"  # kill the training processes now
# drill, kind, notice_s: inject a fault, once for each drill however often it is sent; late: skip it
STRIKE = "strike"

COMMANDS = frozenset({START, RELEASE, DRAIN, SAVE, STOP, STRIKE})
DRILL_SOURCE = "drill"  # source of a notice that is injected by a drill

# StartDocument.claim: when the new generation may take HEAD.
CLAIM_NOW = "now"  # no other generation can be writing
CLAIM_AFTER_RELEASE = "after_release"  # when HEAD is released, or `claim_deadline_s` from now


class FailedPart(str, Enum):
    """The part of an attempt that failed, in SETUP and EXITED; an older agent does not name it."""

    PROGRAM = "program"  # the job's `run`
    SETUP = "setup"  # the job's `setup`
    FILES = "files"  # the job's files, mounts and caches, before `setup`
    IMAGE = "image"  # the container
    STORE = "store"  # HEAD or the checkpoints, while no program ran
    AGENT = "agent"  # what starts the program on the machine
    NOTHING = "nothing"  # it ended as its agent asked, or because its agent saw it fenced


@dataclass(frozen=True)
class JournalEntry:
    """One fact of a node. `seq` counts from 1 without gaps; `at_us` is by the node's wall clock."""

    seq: int
    at_us: int
    generation: int
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
    wire: int = WIRE_VERSION

    @property
    def ends_script(self) -> bool:
        """Whether the daemon may terminate the machine because of this entry."""
        failed_setup = self.kind == SETUP and self.data.get("status") == "failed"
        return failed_setup or self.kind == EXITED

    def to_line(self) -> bytes:
        return encode({"journal": vars(self)})


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life: sent at least every 5 s, never written to the node's disk."""

    seq: int
    at_us: int
    generation: int
    step: int

    def to_line(self) -> bytes:
        return encode({"heartbeat": vars(self)})


@dataclass(frozen=True)
class LogChunk:
    """A part of a stream's output, from byte `offset` on. `stream` is "setup" or "rank<N>"."""

    generation: int
    stream: str
    offset: int
    text: str  # the bytes decoded as latin-1, so that any output can be sent as JSON

    def to_line(self) -> bytes:
        return encode({"log": vars(self)})


@dataclass(frozen=True)
class LogEnd:
    """The end of a stream's output, at byte `offset`: nothing more of it is sent.

    It comes before the journal entry that says how the script ended. Bytes before `offset` that did
    not come are missing; those from byte `begin` up to `end` are in the job's store, at
    `last_output_key`.
    """

    generation: int
    stream: str
    offset: int
    begin: int = 0
    end: int = 0

    def to_line(self) -> bytes:
        return encode({"log_end": vars(self)})


@dataclass(frozen=True)
class DaemonPresence:
    """The daemon's sign of life, its only line on the follow stream.

    The machine may run for `left_s` without another one. `mtbf_s` is the current mean time between
    losses of the job's machines (0: not sent). Older agents ignore these lines.
    """

    left_s: float
    mtbf_s: float = 0.0

    def to_line(self) -> bytes:
        return encode({"here": asdict(self)})


def parse_presence(line: bytes) -> DaemonPresence:
    """Parse a `here` line of the daemon. Raises WireError."""
    body = read_field(read_object(line), "here", dict)
    mtbf_s = read_number(body, "mtbf_s") if "mtbf_s" in body else 0.0
    return DaemonPresence(read_number(body, "left_s"), mtbf_s)


Line = JournalEntry | Heartbeat | LogChunk | LogEnd


def parse_line(line: bytes) -> Line:
    """Parse a node's line of the follow stream. Raises WireError."""
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
    if "log_end" in value:
        body = read_field(value, "log_end", dict)
        return LogEnd(
            generation=read_count(body, "generation"),
            stream=read_field(body, "stream", str),
            offset=read_count(body, "offset"),
            begin=read_count(body, "begin"),
            end=read_count(body, "end"),
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
    """Parse a command. Raises WireError, also for unknown commands and unsupported versions."""
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
    """The reply to a command: done (or already done), or an error."""

    ok: bool
    error: str = ""

    def to_line(self) -> bytes:
        return encode({"reply": asdict(self)})


def parse_reply(line: bytes) -> Reply:
    """Parse the reply to a command. Raises WireError."""
    body = read_field(read_object(line), "reply", dict)
    return Reply(read_field(body, "ok", bool), read_field(body, "error", str))
