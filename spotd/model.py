"""What the daemon knows: frozen values, read from the store, decided upon, never changed in place.
Units: `_us` microseconds since the epoch (UTC) or a duration in microseconds, `_s` seconds,
`_microusd` millionths of a US dollar (integers, so that sums are exact)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from providers.base import SPARSE, NoticeKind, Offer, OfferRequest, Scope
from spotd.baked import BakedImage
from spotd.datasets import DataSet
from spotd.elastic import Elastic
from spotd.past import UNKNOWN, Before, Past
from spotd.states import TRAINS_ON as TRAINS_ON
from spotd.states import LeaveReason as LeaveReason
from spotd.states import NodeState
from spotd.states import Outcome as Outcome
from spotd.turns import NORMAL, Line, Turn
from spotd.turns import Limits as Limits
from spotd.verdicts import HealthSpec, Setbacks, Verdict
from spotd.wire import Bucket, Mount
from spotd.wishes import NO_CAPS, NO_WISHES, Caps, Saved, Wishes

S = 1_000_000  # microseconds in a second


class Desired(str, Enum):
    """What the user wants of a job."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class EffectKind(str, Enum):
    """What can be done to the world; see act/effects.py."""

    LAUNCH = "launch"
    RESOLVE = "resolve"  # look up by token what became of a launch
    SURVEY = "survey"  # ask the cloud about this node
    BOOT = "boot"
    START = "start"
    RELEASE = "release"
    DRAIN = "drain"
    SAVE = "save"
    READ_HEAD = "read_head"
    IMAGE = "image"  # of a bake: clean its machine's disk, then have an image made of it
    TERMINATE = "terminate"


@dataclass(frozen=True)
class CheckpointSpec:
    """Where and how often a job saves; `every_steps` 0: by time alone, `every_s` 0: by steps alone.
    `auto`: the program chooses its pauses by what it measures; `every_s` is for one that cannot."""

    store: str
    engine: str = "none"  # "spotd": the program saves by spotd_hook; "none": any script
    every_steps: int = 0
    every_s: float = 300.0
    keep: int = 3
    auto: bool = field(default=False, metadata=SPARSE)
    size_bytes: int = field(default=0, metadata=SPARSE)  # expected of a save; 0: nobody has said
    keep_every_steps: int = field(default=0, metadata=SPARSE)  # of each, one is pinned; 0: none
    directory: str = field(default="", metadata=SPARSE)  # of a script, kept by the agent; "": none
    # For shards of each region's machines; (): as configured; the job's own store alone: all there.
    shards: tuple[str, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True)
class JobSpec:
    """A job as submitted; immutable. Built from YAML by spec.py."""

    name: str
    run: str
    alternatives: tuple[OfferRequest, ...]
    checkpoint: CheckpointSpec
    ordered: bool = False  # alternatives in order of preference, not of price
    capacity_ordered: bool = field(default=False, metadata=SPARSE)  # so are each one's types
    num_nodes: int = 1
    setup: str = ""
    envs: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # names; the values are encrypted in the store
    packages: tuple[Mount, ...] = ()
    buckets: tuple[Bucket, ...] = field(default=(), metadata=SPARSE)  # copied before `setup`
    image_id: str = ""
    disk_gib: int = 0
    max_hourly_microusd: int = 0  # cap of the node price, 0 none
    max_cost_microusd: int = 0
    deadline_us: int = 0
    max_duration_s: float = 0.0
    max_restarts_on_errors: int = 3
    recover_on_exit_codes: tuple[int, ...] = ()
    keep_on_failure_s: float = 0.0
    boot_timeout_s: float = 900.0
    setup_timeout_s: float = 3600.0
    peer_timeout_s: float = field(default=3600.0, metadata=SPARSE)  # that ranks wait for others
    stop_grace_s: float = 30.0
    progress_every_s: float = 5.0
    candidates: int = 1  # machines asked for side by side
    fast_network: bool = field(default=False, metadata=SPARSE)  # between a gang's machines
    elastic: Elastic = field(default=Elastic(), metadata=SPARSE)  # a gang that loses a machine
    bake: str = field(default="", metadata=SPARSE)  # the image to be made once `setup` ran; no run
    caches: tuple[str, ...] = field(default=(), metadata=SPARSE)  # folders, as the job names them
    cache_bytes: int = field(default=0, metadata=SPARSE)  # that are kept of each, at most
    health: HealthSpec = field(default_factory=HealthSpec)
    alerts: tuple[str, ...] = ("default",)
    project: str = field(default="", metadata=SPARSE)  # that budgets know it by
    caps: Caps = field(default=NO_CAPS, metadata=SPARSE)
    priority: int = field(default=NORMAL, metadata=SPARSE)  # 0 to 1000; see decide/queueing.py
    wishes: Wishes = field(default=NO_WISHES, metadata=SPARSE)  # of where it runs
    after: str = field(default="", metadata=SPARSE)  # the job that is to succeed before: its id


@dataclass(frozen=True)
class HeadSeen:
    """HEAD as the daemon read it, who alone sets `final`, or as a node reported its move of it."""

    generation: int
    step: int
    manifest: str
    released: bool
    final: bool
    seen_at_us: int
    read_at_us: int = 0  # when the daemon itself read it; a node's word alone never makes a success


@dataclass(frozen=True)
class Job:
    """One job with what was decided about it. `version` moves with every decision."""

    id: str
    name: str
    spec: JobSpec
    desired: Desired
    version: int
    created_at_us: int
    generation: int = 0  # of the newest attempt; 0 before the first
    outcome: Outcome | None = None
    outcome_text: str = ""
    finished_at_us: int = 0
    failures: int = 0  # crashes of the training program that were charged
    place_after_us: int = 0  # backoff: no new node before
    save_wanted_at_us: int = 0  # health asked for a checkpoint
    waiting_since_us: int = 0  # wanted, without a machine, and none to be had; 0: not so
    waiting_told_us: int = 0  # when its user was last told
    unsaved_told_us: int = 0  # when its user was last told that its newest checkpoint is old
    room_since_us: int = 0  # the limits have no room for it since then; 0: not so
    room_asked_us: int = 0  # when it was last refused for that: its turn is kept for a while
    room_microusd_per_h: int = 0  # what it asked to spend
    offers_at_us: int = 0  # no offer is to be had for it until then; 0: it waits for none
    yields_to: str = ""  # the job that it is to save for, or gave its machines to
    yields_since_us: int = 0  # since when it is to save for that; 0: not so
    yielded_at_us: int = 0  # when it last gave its machines to another job
    stop_text: str = ""  # a limit was reached: drain, then fail with this text
    wake_at_us: int = 0
    notes: int = 0  # observations so far; `notes > notes_seen` means there is something new
    notes_seen: int = 0
    head: HeadSeen | None = None
    first_step_at_us: int = 0


@dataclass(frozen=True)
class NoticeSeen:
    """A notice on record; `deadline_us` on the daemon's clock, None when the cloud gave none."""

    notice_id: str
    kind: NoticeKind
    heard_at_us: int
    deadline_us: int | None
    withdrawn: bool = False
    source: str = ""

    @property
    def takes_away(self) -> bool:
        """In force, and the machine goes: a rebalance recommendation does not take it away."""
        return not self.withdrawn and self.kind is not NoticeKind.REBALANCE


@dataclass(frozen=True)
class Node:
    """A rented machine, or one asked for: decisions, then observations. `offer`: at today's cost"""

    id: str
    job_id: str
    generation: int
    rank: int
    candidate: int  # nodes of one attempt with the same candidate number are one gang
    token: str
    offer: Offer
    state: NodeState
    requested_at_us: int
    moved_at_us: int = 0  # its machine served an earlier attempt until then; 0: asked for in this
    gang_size: int = 0  # ranks that its attempt was begun with; 0: the job's num_nodes
    expires_at_us: int = 0  # what its expiry tag is created with; 0: older than the tag
    image_id: str = ""  # the vendor's, of a baked one that it starts from
    image_setup: str = ""  # what that has set up
    chosen: bool = False
    leave_reason: LeaveReason | None = None
    leave_text: str = ""  # or, before it leaves, what keeps us from giving it up
    left_at_us: int = 0  # when it was decided that it leaves
    terminating_at_us: int = 0  # when it was decided that it ends now
    drained_at_us: int = 0
    kept_until_us: int = 0  # a failed node kept for its user
    effect: EffectKind | None = None  # the last effect armed
    effect_armed_at_us: int = 0
    effect_due_at_us: int = 0  # not again before, unless it is known to have failed
    # --- observations
    instance_id: str = ""
    launched_at_us: int = 0
    launch_error: str = ""  # text of a refusal; final, if gone_at_us is set: no instance came of it
    launch_error_code: str = ""  # class name in providers.base
    host: str = ""  # where we reach it
    private_host: str = ""  # where others of its network do; "": its cloud has not said
    port: int = 0
    ssh_user: str = ""
    host_public_key: str = ""  # as its cloud told it first; "": the one that we gave it
    cloud_state: str = ""  # providers.base.InstanceState as last listed, "absent" when not listed
    surveyed_at_us: int = 0
    seen_at_us: int = 0  # last time that the cloud listed it
    missed_at_us: int = 0  # since when listings lack it, though they should not; 0: they do not
    booted_at_us: int = 0  # agent shipped and started, the last time
    hello_at_us: int = 0
    started_at_us: int = 0  # `start` acknowledged
    started_claim: str = ""  # the claim that was acknowledged
    ready_at_us: int = 0
    claimed_at_us: int = 0
    first_step_at_us: int = 0
    last_step: int = 0
    heard_at_us: int = 0  # last journal line or heartbeat, on our clock
    link_down_at_us: int = 0  # the SSH link ended; 0 while it is up
    told_release_at_us: int = 0
    told_drain_at_us: int = 0
    told_save_at_us: int = 0
    released_at_us: int = 0
    exit_code: int | None = None
    exited_at_us: int = 0
    exit_tail: str = ""
    setup_failed: bool = False
    disk_full_at_us: int = 0  # its agent said that it stays so; 0: there is room
    wiped_at_us: int = 0  # its disks, after the program had ended
    wiped_text: str = ""
    cleaned_at_us: int = 0  # its disk is fit for an image, and nobody can log in any more
    image_asked_at_us: int = 0  # when its cloud last said how far the image is
    imaged_at_us: int = 0  # the image is there
    image_error: str = ""  # why there will be none
    terminated_at_us: int = 0  # the cloud accepted a terminate
    renewed_until_us: int = 0  # what its expiry tag was moved on to
    lent_at_us: int = 0  # credentials of the checkpoint store; 0: it has its own
    lent_until_us: int = 0
    gone_at_us: int = 0  # the cloud stopped listing it, says terminated, or refused it for good
    effect_failed_at_us: int = 0  # or the end of the pause that the cloud asked for then
    effect_failures: int = 0  # in a row, of the armed effect
    effect_error: str = ""
    journal_seq: int = 0
    wire: int = 0  # the version of the wire that its agent speaks; 0: it has not said
    drill: str = ""  # the kind of the drill that strikes it; see spotd/drill.py
    notices: tuple[NoticeSeen, ...] = ()

    @property
    def active(self) -> bool:
        """Not yet known to have stopped costing money."""
        return self.state is not NodeState.GONE


@dataclass(frozen=True)
class Attempt:
    """One try to run a job; its number is the generation, the fencing token."""

    job_id: str
    generation: int
    opened_at_us: int
    cause: str


@dataclass(frozen=True)
class Throughput:
    """One reported stretch: `tokens` in `busy_s` seconds, without saves and evaluation."""

    generation: int
    at_us: int
    step: int
    tokens: int
    busy_s: float


@dataclass(frozen=True)
class View:
    """Everything a decision about one job may look at. `nodes`: all not gone, and those of the
    newest attempt, gone or not. `throughput`: of the newest attempt that chose its machines, oldest
    first, bounded. `spent_microusd`: up to `loaded_at_us`, on checkpoints as far as recorded.
    `verdicts`: among the newest events of a job that trains, oldest first. `typical_tokens_per_s`:
    of the attempt before on this type of machine; 0.0 for none. `saved`: its checkpoints by
    generation, of a job that says how much there is to do. `before`: the job it comes after."""

    job: Job
    attempts: tuple[Attempt, ...]
    nodes: tuple[Node, ...]
    throughput: tuple[Throughput, ...] = ()
    spent_microusd: int = 0
    loaded_at_us: int = 0
    verdicts: tuple[Verdict, ...] = ()
    typical_tokens_per_s: float = 0.0
    saved: tuple[Saved, ...] = ()
    setbacks: Setbacks = field(default_factory=Setbacks)
    before: Before | None = None


@dataclass(frozen=True)
class Refusal:
    """A launch that was refused, or a machine that was taken away: what cooldowns come from."""

    offer_key: str
    scope: Scope
    code: str  # class name in providers.base, or "Preempted", "BootTimeout"
    at_us: int
    node_id: str = ""  # a node is refused once for each code


@dataclass(frozen=True)
class Asker:
    """A job that had no offer: it asks again at `at_us`, or asked for `keys` and has no answer."""

    turn: Turn
    spec: JobSpec
    at_us: int
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Timing:
    """How patient the daemon is; the defaults are config.toml's."""

    suspect_after_s: float = 15.0  # silence after which the cloud is asked
    lost_after_s: float = 120.0  # silence after which a node is given up though the cloud lists it
    resurvey_s: float = 5.0  # between questions about a suspect or a terminated node
    reterminate_s: float = 60.0  # a terminate that did not take is repeated
    unattended_s: float = 86_400.0  # how long a machine may go on without us; see decide/expiry.py
    drain_margin_s: float = 10.0  # beyond a notice's deadline before we end the node ourselves
    waits_s: float = 900.0  # without a machine before a job's user is told
    granted_s: float = 900.0  # within which on-demand is granted, for deadlines to be kept


@dataclass(frozen=True)
class Market:
    """Offers, refusals and limits as known when loaded. `nodes` and `microusd_per_h` are committed
    use over all jobs, launching and unknown nodes included."""

    offers: tuple[Offer, ...]
    refusals: tuple[Refusal, ...] = ()
    limits: Limits = field(default_factory=Limits)
    nodes: int = 0
    microusd_per_h: int = 0
    disabled: Mapping[str, str] = field(default_factory=dict)  # provider -> why it is out of use
    deployment: str = ""
    blocked: str = ""  # why nothing may be launched now (a limit, the database)
    hedging: bool = True  # whether the limits have room for more than one candidate
    started_at_us: int = 0  # of this daemon: a call armed before died with the one that made it
    listening_since_us: int = 0  # without a gap: silence before says nothing about a node
    answering_since_us: Mapping[str, int] = field(default_factory=dict)  # by provider: back since
    reached_since_us: Mapping[str, int] = field(default_factory=dict)  # behind jump hosts; or now
    images: tuple[BakedImage, ...] = ()
    past: Past = UNKNOWN  # what became of this fleet's machines, a minute ago at most
    safe_until_us: int = 0  # until then nothing is launched or started: safe mode; 0: it is not
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # see decide/carriage.py
    shards: tuple[str, ...] = ()  # URLs of stores that take shards of machines of their region
    datasets: Mapping[str, DataSet] = field(default_factory=dict)  # by name
    leaving: Mapping[str, int] = field(default_factory=dict)  # cloud -> micro-USD a GB that leaves
    storing: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # see decide/carriage.py
    line: Line = field(default_factory=Line)
    askers: tuple[Asker, ...] = ()  # for what was refused of late; see decide/scarcity.py
    countries: Mapping[str, str] = field(default_factory=dict)  # "cloud/region" -> where it stands
    operators: Mapping[str, str] = field(default_factory=dict)  # cloud -> where its company is
    timing: Timing = Timing()


class Severity(str, Enum):
    """Who needs to know."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Event:
    """For the record; `alert`: to the job's routes too, or to `route`; `key` coalesces repeats."""

    kind: str
    text: str
    node_id: str = ""
    severity: Severity = Severity.INFO
    alert: bool = False
    key: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    route: str = field(default="", metadata=SPARSE)  # not kept with the event
