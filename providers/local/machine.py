"""A machine of the local cloud, and a preemption of one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from providers.base import EXPIRES_TAG, CapacityType, InstanceState, NoticeKind
from providers.local.ledger import Launch, MachineEnd
from providers.local.process_pool import MachineProcess
from providers.local.timeline import ScheduledAction

_ALIVE = (InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPING)


@dataclass
class PlannedPreemption:
    """The preemption of one machine, from its notice (if any) to its end. Times in Unix us."""

    notice_id: str
    seq: int
    instance_id: str
    token: str
    kind: str
    mode: str
    notice_s: float
    deadline_us: int
    thaw_after_s: float | None = None
    zombie_s: float = 0.0
    published_at_us: int = 0
    withdrawn_at_us: int = 0
    acknowledged_at_us: int = 0
    reclaimed_at_us: int = 0
    thawed_at_us: int = 0
    scheduled: ScheduledAction | None = field(default=None, repr=False)

    def to_data(self) -> dict[str, object]:
        """As JSON values."""
        return {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "scheduled"
        }


@dataclass
class Machine:
    """A machine; changed only under the lock of CloudState."""

    launch: Launch
    state: InstanceState
    end: MachineEnd | None = None
    process: MachineProcess | None = None
    booted_at_us: int = 0
    first_exec_at_us: int = 0
    visible_at_s: float = 0.0
    zombie: bool = False  # already reported as ended, but will be resumed for a while
    tags: dict[str, str] = field(default_factory=dict)  # changed since the launch

    @property
    def ident(self) -> str:
        return self.launch.instance_id

    @property
    def alive(self) -> bool:
        """Whether the machine uses capacity and is billed."""
        return self.state in _ALIVE

    @property
    def spot(self) -> bool:
        """Whether the machine may be preempted."""
        return self.launch.capacity_type is CapacityType.SPOT

    def renew(self, expires_at_s: int) -> None:
        """Move the expiry tag to a later time; ignored on a machine that is ending."""
        current = {**self.launch.tags, **self.tags}.get(EXPIRES_TAG, "")
        current_s = int(current) if current.isdecimal() else 0
        if self.alive and self.state is not InstanceState.STOPPING and expires_at_s > current_s:
            self.tags[EXPIRES_TAG] = str(expires_at_s)

    def to_data(self) -> dict[str, object]:
        """The machine in API listings; `pid` and the times serve /control/state."""
        launch, end = self.launch, self.end
        row = {k: v for k, v in asdict(launch).items() if k not in ("digest", "ssh_port")}
        return row | {
            "tags": {**launch.tags, **self.tags},
            "state": self.state.value,
            "port": launch.ssh_port,
            "private_host": launch.host,  # there is only one network
            "ended_at_us": end.ended_at_us if end else 0,
            "end_reason": end.reason if end else "",
            "error": end.error if end else "",
            "error_code": end.error_code if end else "",
            "pid": self.process.pid if self.process else 0,
            "booted_at_us": self.booted_at_us,
            "first_exec_at_us": self.first_exec_at_us,
            "local": True,
        }


def publish_order(preemption: PlannedPreemption) -> dict[str, object]:
    """The order on the control link that publishes the notice on the machine."""
    kind = NoticeKind(preemption.kind).value
    return {
        "publish": {
            "notice_id": preemption.notice_id,
            "kind": kind,
            "deadline_us": preemption.deadline_us,
        }
    }
