"""A rented machine: the decisions about it, the observations of it, and its preemption notices."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from providers.base import NoticeKind, Offer
from spotd.domain.states import LeaveReason, NodeState
from spotd.wire.lines import EXIT_FENCED, EXIT_FINISHED, EXIT_RELEASED, FailedPart
from spotd.wire.parts import PART
from spotd.wire.printed_steps import PrintedSteps


class EffectKind(str, Enum):
    """The kinds of calls; see act/effects.py."""

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
class NoticeRecord:
    """A recorded notice; `deadline_us` is on the daemon's clock, None if the cloud gave none."""

    notice_id: str
    kind: NoticeKind
    heard_at_us: int
    deadline_us: int | None
    withdrawn: bool = False
    source: str = ""

    @property
    def takes_machine(self) -> bool:
        """Whether the notice is in force and the cloud takes the machine."""
        return not self.withdrawn and self.kind.takes_machine


@dataclass(frozen=True)
class NodeStartup:
    """From the image to a program that is ready to train."""

    image_id: str = ""  # the vendor's, of a baked one that it starts from
    image_setup: str = ""  # what that has set up
    booted_at_us: int = 0  # agent shipped and started, the last time
    hello_at_us: int = 0
    started_at_us: int = 0  # `start` acknowledged
    started_claim: str = ""  # the claim that was acknowledged
    ready_at_us: int = 0


@dataclass(frozen=True)
class MachineStatus:
    """The machine as its cloud answered: the launch, the listings, its end."""

    launched_at_us: int = 0
    launch_error: str = ""  # text of a refusal; final, if gone_at_us is set: no instance came of it
    launch_error_code: str = ""  # class name in providers.base
    cloud_state: str = ""  # providers.base.InstanceState as last listed, "absent" when not listed
    surveyed_at_us: int = 0
    seen_at_us: int = 0  # last time that the cloud listed it
    missed_at_us: int = 0  # since when listings lack it, though they should not; 0: they do not
    terminated_at_us: int = 0  # the cloud accepted a terminate
    gone_at_us: int = 0  # the cloud stopped listing it, says terminated, or refused it for good


@dataclass(frozen=True)
class NodeAddress:
    """How to reach the machine by SSH, as its cloud reports it."""

    host: str = ""  # where we reach it
    private_host: str = ""  # where others of its network do; "": its cloud has not reported it
    port: int = 0
    ssh_user: str = ""
    host_public_key: str = ""  # as its cloud reported it first; "": the one that we gave it


@dataclass(frozen=True)
class NodeLease:
    """Until when the machine, and the credentials on it, are good without us."""

    expires_at_us: int = 0  # what its expiry tag is created with; 0: older than the tag
    renewed_until_us: int = 0  # what its expiry tag was moved on to
    lent_at_us: int = 0  # credentials of the checkpoint store; 0: it has its own
    lent_until_us: int = 0


@dataclass(frozen=True)
class NodeDeparture:
    """The decision to give the node up, and the steps of it."""

    leave_reason: LeaveReason | None = None
    leave_text: str = ""  # or, before it leaves, what keeps us from giving it up
    left_at_us: int = 0  # when it was decided that it leaves
    terminating_at_us: int = 0  # when it was decided that it ends now
    drained_at_us: int = 0
    kept_until_us: int = 0  # a failed node is retained for its user until then


@dataclass(frozen=True)
class NodeCall:
    """The call that is armed, and the failures of it."""

    effect: EffectKind | None = None  # the last effect armed
    effect_armed_at_us: int = 0
    effect_due_at_us: int = 0  # not again before, unless it is known to have failed
    effect_failed_at_us: int = 0  # or the end of the pause that the cloud asked for then
    effect_failures: int = 0  # in a row, of the armed effect
    effect_error: str = ""


@dataclass(frozen=True)
class AgentStatus:
    """The link to the machine's agent, and the commands that the agent has acknowledged."""

    heard_at_us: int = 0  # last journal line or heartbeat, on our clock
    link_down_at_us: int = 0  # the SSH link ended; 0 while it is up
    journal_seq: int = 0
    wire: int = 0  # the wire version of its agent; 0: unknown
    told_release_at_us: int = 0
    told_drain_at_us: int = 0
    told_save_at_us: int = 0


@dataclass(frozen=True)
class TrainingStatus:
    """The training program, as the agent reports it."""

    claimed_at_us: int = 0
    resumed_step: int | None = None  # of the checkpoint it went on from, 0: none; None: not known
    anew_at_us: int = 0  # its program was seen not to go on from what was restored; 0: it was not
    printed_steps: PrintedSteps = field(default_factory=dict)  # by a program that reports none
    first_step_at_us: int = 0
    last_step: int = 0
    total_steps: int = 0  # as the program names it; 0: it does not; negative: at least so many
    released_at_us: int = 0
    exit_code: int | None = None
    exited_at_us: int = 0
    exit_tail: str = ""  # its last lines, or what its agent says of it
    exit_cause: str = ""  # the line of its output that says why it failed; "": none is known
    failed_part: str = ""  # a spotd.wire.FailedPart; "": not said
    setup_failed: bool = False

    @property
    def ended_as_asked(self) -> bool:
        """Return whether its agent says that it ended as asked, or was fenced."""
        return self.failed_part == FailedPart.NOTHING.value


@dataclass(frozen=True)
class StorageStatus:
    """The machine's disks."""

    disk_full_at_us: int = 0  # its agent reported that it stays full; 0: there is room
    wiped_at_us: int = 0  # its disks, after the program had ended
    wiped_text: str = ""
    outputs_since_us: int = 0  # its agent has been uploading the program's outputs; 0: it is not


@dataclass(frozen=True)
class BakeStatus:
    """The image that is made of the machine."""

    cleaned_at_us: int = 0  # its disk is fit for an image, and nobody can log in any more
    image_asked_at_us: int = 0  # when its cloud last reported the progress of the image
    imaged_at_us: int = 0  # the image is there
    image_error: str = ""  # why there will be none


@dataclass(frozen=True)
class Node:
    """A rented or requested machine. `offer` has today's cost.

    Decisions are `state`, `chosen`, `departure` and the armed part of `call`; the store writes each
    field into the column of its name.
    """

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
    chosen: bool = False
    instance_id: str = ""
    drill: str = ""  # the kind of the drill that strikes it; see spotd/domain/fault_drill.py
    notices: tuple[NoticeRecord, ...] = ()
    startup: NodeStartup = field(default=NodeStartup(), metadata=PART)
    machine: MachineStatus = field(default=MachineStatus(), metadata=PART)
    address: NodeAddress = field(default=NodeAddress(), metadata=PART)
    lease: NodeLease = field(default=NodeLease(), metadata=PART)
    departure: NodeDeparture = field(default=NodeDeparture(), metadata=PART)
    call: NodeCall = field(default=NodeCall(), metadata=PART)
    agent: AgentStatus = field(default=AgentStatus(), metadata=PART)
    training: TrainingStatus = field(default=TrainingStatus(), metadata=PART)
    storage: StorageStatus = field(default=StorageStatus(), metadata=PART)
    bake: BakeStatus = field(default=BakeStatus(), metadata=PART)

    @property
    def program_failed(self) -> bool:
        """Return whether its program ended with a failure.

        EXIT_RELEASED and EXIT_FENCED are none unless the exit was charged as one: any program may
        exit with these numbers by itself.
        """
        code = self.training.exit_code
        if code in (EXIT_RELEASED, EXIT_FENCED):
            return self.departure.leave_reason is LeaveReason.FAILED
        return code not in (None, EXIT_FINISHED)

    @property
    def active(self) -> bool:
        """Return whether the machine may still cost money."""
        return self.state is not NodeState.GONE
