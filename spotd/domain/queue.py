"""The queue of jobs that wait for room under the limits, and the jobs that have machines.

The store reads it, planner/queue/fair_share.py decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NORMAL = 500  # spotd.priority where a job file names none


@dataclass(frozen=True)
class Limits:
    """The deployment's caps; 0 means none (allowed for local providers only)."""

    max_nodes: int = 0
    max_microusd_per_h: int = 0
    projects: Mapping[str, int] = field(default_factory=dict)  # max_nodes of each that has one


@dataclass(frozen=True)
class QueueEntry:
    """A waiting job with what it requests.

    `used_microusd` is recent use: of its project, and of its user within the project. The order is
    that of `planner/queue/fair_share.py`.
    """

    job_id: str
    name: str
    nodes: int
    microusd_per_h: int = 0
    priority: int = NORMAL
    project: str = ""
    user: str = ""
    created_at_us: int = 0
    since_us: int = 0  # it waits for room; 0: it does not yet
    used_microusd: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class ResourceHolder:
    """A job with machines that are not gone; of these, `leaving` are about to be by themselves."""

    job_id: str
    name: str
    nodes: int
    microusd_per_h: int
    leaving_nodes: int = 0
    leaving_microusd_per_h: int = 0
    priority: int = NORMAL
    project: str = ""
    trains_since_us: int = 0  # whole, and could save and go on elsewhere; 0: not so
    yielded_at_us: int = 0  # when it last gave its machines to another
    yields_to: str = ""  # the job that it is to save for now, or did


@dataclass(frozen=True)
class QueueSnapshot:
    """Waiting jobs in order, and jobs with machines.

    The latter are loaded only if a job waits or projects have limits. `used` is recent use by
    project and user.
    """

    waiting: tuple[QueueEntry, ...] = ()
    holding: tuple[ResourceHolder, ...] = ()
    used: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def name_of(self, job_id: str) -> str:
        """Return the name of a job in the snapshot, else its id."""
        known: dict[str, str] = {one.job_id: one.name for one in self.holding}
        known |= {one.job_id: one.name for one in self.waiting}
        return known.get(job_id, job_id)

    def nodes_of(self, project: str) -> int:
        """The machines of its jobs that are not gone."""
        return sum(one.nodes for one in self.holding if one.project == project)

    def share(self, project: str, user: str) -> tuple[int, int]:
        """Return the recent use of the project and of the user within it."""
        whole = sum(used for (of, _), used in self.used.items() if of == project)
        return whole, self.used.get((project, user), 0)
