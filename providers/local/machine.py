"""One rented machine as the cloud sees it, and what it tells about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from providers.base import EXPIRES_TAG, CapacityType, InstanceState, NoticeKind
from providers.local.ledger import Launch, MachineEnd
from providers.local.process_pool import MachineProcess
from providers.local.timeline import Appointment

_ALIVE = (InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPING)


@dataclass
class PlannedPreemption:
    """One taking-away of one machine, from its warning (if any) to its end; times in wall us."""

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
    appointment: Appointment | None = field(default=None, repr=False)

    def to_data(self) -> dict[str, object]:
        """Plain JSON."""
        return {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "appointment"
        }


@dataclass
class Machine:
    """Changed under the world's lock only."""

    launch: Launch
    state: InstanceState
    end: MachineEnd | None = None
    body: MachineProcess | None = None
    booted_at_us: int = 0
    first_exec_at_us: int = 0
    visible_at_s: float = 0.0
    zombie: bool = False  # ended for everybody, and to come back for a while
    tags: dict[str, str] = field(default_factory=dict)  # what was changed since the launch

    @property
    def ident(self) -> str:
        """The instance id."""
        return self.launch.instance_id

    @property
    def alive(self) -> bool:
        """Whether it takes up capacity and costs."""
        return self.state in _ALIVE

    @property
    def spot(self) -> bool:
        """Whether it may be preempted."""
        return self.launch.capacity_type is CapacityType.SPOT

    def renew(self, expires_at_s: int) -> None:
        """Move the expiry tag on."""
        before = {**self.launch.tags, **self.tags}.get(EXPIRES_TAG, "")
        known_s = int(before) if before.isdecimal() else 0
        if self.alive and self.state is not InstanceState.STOPPING and expires_at_s > known_s:
            self.tags[EXPIRES_TAG] = str(expires_at_s)

    def to_data(self) -> dict[str, object]:
        """The row of a list; `pid` and the times are for /control/state."""
        launch, end = self.launch, self.end
        row = {k: v for k, v in asdict(launch).items() if k not in ("digest", "ssh_port")}
        return row | {
            "tags": {**launch.tags, **self.tags},
            "state": self.state.value,
            "port": launch.ssh_port,
            "private_host": launch.host,  # it has one network
            "ended_at_us": end.ended_at_us if end else 0,
            "end_reason": end.reason if end else "",
            "error": end.error if end else "",
            "error_code": end.error_code if end else "",
            "pid": self.body.pid if self.body else 0,
            "booted_at_us": self.booted_at_us,
            "first_exec_at_us": self.first_exec_at_us,
            "local": True,
        }


def order_of(taking: PlannedPreemption) -> dict[str, object]:
    """The control message that publishes the notice on the machine."""
    kind = NoticeKind(taking.kind).value
    return {
        "publish": {
            "notice_id": taking.notice_id,
            "kind": kind,
            "deadline_us": taking.deadline_us,
        }
    }
