"""What a job wishes of where it runs, beside what its machines must have: its objective, how much
there is to do, and which places are out of the question; and what it puts up with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from providers.base import SPARSE


class Objective(str, Enum):
    """What the best place is the best at."""

    COST = "cost"  # the least expected dollars to finish
    SPEED = "speed"  # the least hours to finish, under the caps


@dataclass(frozen=True)
class Speed:
    """How fast the job is on `count` of an accelerator, in times of its first alternative."""

    accelerator: str
    count: int
    times: float


@dataclass(frozen=True)
class Ahead:
    """To how many regions, as placement ranks them, its data sets are brought ahead of it, and for
    how much in all. 0: none are."""

    regions: int = 0
    max_microusd: int = 0


NOT_AHEAD = Ahead()


@dataclass(frozen=True)
class Wishes:
    """Durations in seconds on a machine of the first alternative; 0 and empty where nothing was
    said. `work_s` or `work_steps` are all that there is to do; `step_s` what a step is expected to
    take before any was measured. `residency` are ISO countries in which machines may stand;
    `not_operated_from` those whose companies may not run them."""

    objective: Objective = Objective.COST
    work_s: float = 0.0
    work_steps: int = 0
    step_s: float = 0.0
    speeds: tuple[Speed, ...] = ()
    residency: tuple[str, ...] = ()
    not_operated_from: tuple[str, ...] = ()
    ahead: Ahead = field(default=NOT_AHEAD, metadata=SPARSE)

    @property
    def measurable(self) -> bool:
        """Whether it is said how much there is to do."""
        return bool(self.work_s or self.work_steps)


NO_WISHES = Wishes()


NO_LIMIT = -1


@dataclass(frozen=True)
class Told:
    """Who is told when so many percent of `max_cost_usd` are spent, or are expected to be."""

    percent: int
    route: str


@dataclass(frozen=True)
class Caps:
    """How often its machines may be taken away or lost: it goes on after `max_interruptions`; and
    routes by threshold, where they are not the job's."""

    max_interruptions: int = NO_LIMIT
    routes: tuple[Told, ...] = ()

    def route(self, percent: int) -> str:
        """ "" for those of the job."""
        return next((one.route for one in self.routes if one.percent == percent), "")


NO_CAPS = Caps()


@dataclass(frozen=True)
class Saved:
    """What one generation saved: its first checkpoint and its last, and the bytes of its largest.

    What lies between the two was trained by it and is not done again.
    """

    generation: int
    first_step: int
    last_step: int
    first_at_us: int
    last_at_us: int
    bytes: int = 0
