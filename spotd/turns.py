"""Whose turn it is: who waits for room under the limits, and who has it. The store reads it, and
decide/queueing.py judges."""

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
class Turn:
    """A job in line, with what it asks for; `used_microusd` is what the jobs of its project, and of
    these its user's, used of late. Sorts by whose turn comes first; see `before`."""

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

    @property
    def before(self) -> tuple[int, tuple[int, int], int, str]:
        """The lower, the earlier its turn: by priority, then fair share, then age."""
        return -self.priority, self.used_microusd, self.created_at_us, self.job_id


@dataclass(frozen=True)
class Holder:
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
class Line:
    """Who waits for room, in the order of their turns, and who has machines: the latter are known
    where somebody waits or projects have limits. `used` is recent use by project and user."""

    waiting: tuple[Turn, ...] = ()
    holding: tuple[Holder, ...] = ()
    used: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def name_of(self, job_id: str) -> str:
        """Of a job in it; of another, its id."""
        known: dict[str, str] = {one.job_id: one.name for one in self.holding}
        known |= {one.job_id: one.name for one in self.waiting}
        return known.get(job_id, job_id)

    def nodes_of(self, project: str) -> int:
        """The machines of its jobs that are not gone."""
        return sum(one.nodes for one in self.holding if one.project == project)

    def share(self, project: str, user: str) -> tuple[int, int]:
        """What the project, and of that the user, used of late."""
        whole = sum(used for (of, _), used in self.used.items() if of == project)
        return whole, self.used.get((project, user), 0)
