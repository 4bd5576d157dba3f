"""A job, its specification, its attempts and the checkpoint HEAD it has committed.

Values are frozen: they are read from the store, decided upon, and never changed in place.
`_us` is microseconds (since the epoch, UTC, or a duration), `_s` seconds, `_microusd` millionths of
a US dollar: integers, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from providers.base import SPARSE, OfferRequest
from spotd.domain.health import HealthSpec
from spotd.domain.on_node_loss import Elastic
from spotd.domain.preferences import NO_CAPS, NO_PREFERENCES, Caps, Preferences
from spotd.domain.queue import NORMAL
from spotd.domain.states import Outcome
from spotd.wire import Bucket, Mount
from spotd.wire.parts import PART


class Desired(str, Enum):
    """The state that the user wants for the job."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(frozen=True)
class CheckpointSpec:
    """Where and how often a job saves.

    `every_steps` 0: by time alone; `every_s` 0: by steps alone. `auto`: the program chooses its
    interval by measurement, and `every_s` is for a program that cannot.
    """

    store: str
    engine: str = "none"  # "spotd": the program saves by spotd_hook; "none": any script
    every_steps: int = 0
    every_s: float = 300.0
    keep: int = 3
    auto: bool = field(default=False, metadata=SPARSE)
    size_bytes: int = field(default=0, metadata=SPARSE)  # expected size of a save; 0: unknown
    keep_every_steps: int = field(default=0, metadata=SPARSE)  # of each, one is pinned; 0: none
    directory: str = field(
        default="", metadata=SPARSE
    )  # of a script, stored by the agent; "": none
    include: tuple[str, ...] = field(default=(), metadata=SPARSE)  # patterns of its files; (): all
    exclude: tuple[str, ...] = field(default=(), metadata=SPARSE)
    # For shards of each region's machines; (): as configured; the job's own store alone: all there.
    shards: tuple[str, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True)
class JobProgram:
    """The commands of the job, and the environment that they are executed in."""

    run: str
    setup: str = ""
    envs: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # names; the values are encrypted in the store
    bake: str = field(default="", metadata=SPARSE)  # the image to be made once `setup` ran; no run


@dataclass(frozen=True)
class JobResources:
    """The machines that the job runs on: any of `alternatives`, `num_nodes` at a time."""

    alternatives: tuple[OfferRequest, ...]
    ordered: bool = False  # alternatives in order of preference, not of price
    capacity_ordered: bool = field(default=False, metadata=SPARSE)  # so are each one's types
    num_nodes: int = 1
    candidates: int = 1  # machines asked for side by side
    fast_network: bool = field(default=False, metadata=SPARSE)  # between a gang's machines
    elastic: Elastic = field(default=Elastic(), metadata=SPARSE)  # a gang that loses a machine
    image_id: str = ""
    disk_gib: int = 0


@dataclass(frozen=True)
class JobFiles:
    """The files that the job's machines get, and those that are stored besides checkpoints."""

    packages: tuple[Mount, ...] = ()
    buckets: tuple[Bucket, ...] = field(default=(), metadata=SPARSE)  # copied before `setup`
    caches: tuple[str, ...] = field(default=(), metadata=SPARSE)  # folders, as the job names them
    cache_bytes: int = field(default=0, metadata=SPARSE)  # that are stored of each, at most
    # Patterns of files that are uploaded at the end; (): none; None: what changed, up to a size.
    outputs: tuple[str, ...] | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True)
class JobLimits:
    """Upper limits of money, time and interruptions; 0 for none."""

    max_hourly_microusd: int = 0  # of the node price
    max_cost_microusd: int = 0
    deadline_us: int = 0
    max_duration_s: float = 0.0
    caps: Caps = field(default=NO_CAPS, metadata=SPARSE)


@dataclass(frozen=True)
class RestartPolicy:
    """The reaction to a program that fails."""

    max_restarts_on_errors: int = 3
    recover_on_exit_codes: tuple[int, ...] = ()
    keep_on_failure_s: float = 0.0  # the machine is retained for its user


@dataclass(frozen=True)
class JobTimeouts:
    """How long each phase of a machine's work may take."""

    boot_timeout_s: float = 900.0
    setup_timeout_s: float = 3600.0
    peer_timeout_s: float = field(default=3600.0, metadata=SPARSE)  # that ranks wait for others
    stop_grace_s: float = 30.0


@dataclass(frozen=True)
class JobMonitoring:
    """How often the job reports its progress, when it is slow, and who is alerted."""

    progress_every_s: float = 5.0
    health: HealthSpec = field(default_factory=HealthSpec)
    alerts: tuple[str, ...] = ("default",)


@dataclass(frozen=True)
class QueueSpec:
    """The job's place among the jobs that wait."""

    project: str = field(default="", metadata=SPARSE)  # that budgets know it by
    priority: int = field(
        default=NORMAL, metadata=SPARSE
    )  # 0 to 1000; see planner/queue/fair_share.py
    after: str = field(default="", metadata=SPARSE)  # the job that is to succeed before: its id


@dataclass(frozen=True)
class JobSpec:
    """A job as submitted; immutable. Built from YAML by spotd/spec/load.py.

    It is stored as one flat object, in which the fields of a part stand beside the others.
    """

    name: str
    program: JobProgram = field(metadata=PART)
    resources: JobResources = field(metadata=PART)
    checkpoint: CheckpointSpec
    files: JobFiles = field(default=JobFiles(), metadata=PART)
    limits: JobLimits = field(default=JobLimits(), metadata=PART)
    restarts: RestartPolicy = field(default=RestartPolicy(), metadata=PART)
    timeouts: JobTimeouts = field(default=JobTimeouts(), metadata=PART)
    monitoring: JobMonitoring = field(default=JobMonitoring(), metadata=PART)
    queue: QueueSpec = field(default=QueueSpec(), metadata=PART)
    # Of where it runs. Its stored key is older than its name.
    preferences: Preferences = field(default=NO_PREFERENCES, metadata=SPARSE | {"key": "wishes"})


@dataclass(frozen=True)
class HeadSnapshot:
    """HEAD as the daemon read it, who alone sets `final`, or as a node reported its move of it."""

    generation: int
    step: int
    manifest: str
    released: bool
    final: bool
    seen_at_us: int
    read_at_us: int = 0  # when the daemon itself read it; a node's word alone never makes a success


@dataclass(frozen=True)
class JobWakeup:
    """When the loop decides about the job again: at a time, or upon a new observation."""

    wake_at_us: int = 0  # 0: only upon an observation
    notes: int = 0  # observations so far; `notes > notes_seen` means there is something new
    notes_seen: int = 0


@dataclass(frozen=True)
class JobQueueState:
    """The wait for machines, and the machines that the job gives to one of higher priority."""

    waiting_since_us: int = 0  # it is to run, has no machine, and gets none; 0: not so
    room_since_us: int = 0  # since then the limits have no room for it; 0: not so
    room_asked_us: int = 0  # the last refusal for lack of room; it holds its place for a while
    room_microusd_per_h: int = 0  # the rate that it asked for then
    offers_at_us: int = 0  # when it asks again, as no offer is free now; 0: it awaits none
    yields_to: str = ""  # the job that it saves for, or gave its machines to
    yields_since_us: int = 0  # since then it saves for that job; 0: not so
    yielded_at_us: int = 0  # when it last gave its machines to another job


@dataclass(frozen=True)
class JobAlerts:
    """When each alert that repeats while its cause lasts was last sent; 0: not sent."""

    waiting_told_us: int = 0  # that the job waits for a machine
    unsaved_told_us: int = 0  # that its newest checkpoint is old


@dataclass(frozen=True)
class JobBackoff:
    """Crashes of the training program, and the pause that follows them."""

    failures: int = 0  # crashes that count against max_restarts_on_errors
    place_after_us: int = 0  # no new node before


@dataclass(frozen=True)
class JobProgress:
    """The milestones that the job reached, and the checkpoint that it is asked for."""

    first_step_at_us: int = 0
    save_wanted_at_us: int = 0  # a checkpoint was requested, for its health or to give way
    outputs_at_us: int = 0  # when its output files were last stored; 0: never


@dataclass(frozen=True)
class JobEnd:
    """Why the job is to end, and how it did."""

    stop_text: str = ""  # a limit was reached: drain, then fail with this text
    outcome_text: str = ""
    finished_at_us: int = 0


@dataclass(frozen=True)
class JobApproval:
    """The request to exceed a budget, which another person is to approve."""

    approval_asked_by: str = ""  # the user who asks; "": nothing is to be approved
    approval_text: str = ""  # the budget that it would exceed, and by how much


@dataclass(frozen=True)
class Job:
    """A job with the decisions about it. Every decision increments `version`.

    The store writes each field of the job and of its parts into the column of its name.
    """

    id: str
    name: str
    spec: JobSpec
    desired: Desired
    version: int
    created_at_us: int
    generation: int = 0  # of the newest attempt; 0 before the first
    outcome: Outcome | None = None  # None: the job has not ended
    head: HeadSnapshot | None = None
    wakeup: JobWakeup = field(default=JobWakeup(), metadata=PART)
    queue: JobQueueState = field(default=JobQueueState(), metadata=PART)
    alerts: JobAlerts = field(default=JobAlerts(), metadata=PART)
    backoff: JobBackoff = field(default=JobBackoff(), metadata=PART)
    progress: JobProgress = field(default=JobProgress(), metadata=PART)
    end: JobEnd = field(default=JobEnd(), metadata=PART)
    approval: JobApproval = field(default=JobApproval(), metadata=PART)

    @property
    def kept_nothing(self) -> bool:
        """Whether it succeeded, and neither checkpoints nor outputs of it are in the store."""
        succeeded = self.outcome is Outcome.SUCCEEDED and not self.spec.program.bake
        no_checkpoint = self.head is not None and self.head.step == 0
        return succeeded and no_checkpoint and not self.progress.outputs_at_us


@dataclass(frozen=True)
class Attempt:
    """One try to run a job; its number is the generation, the fencing token."""

    job_id: str
    generation: int
    opened_at_us: int
    cause: str
