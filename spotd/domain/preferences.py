"""A job's preferences beyond its machine requirements: objective, work, and allowed places."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from providers.base import SPARSE


class Objective(str, Enum):
    """The property by which the best place is chosen."""

    COST = "cost"  # the least expected dollars to finish
    SPEED = "speed"  # the least hours to finish, under the caps


@dataclass(frozen=True)
class Speed:
    """The job's speed on `count` of an accelerator, relative to its first alternative."""

    accelerator: str
    count: int
    times: float


@dataclass(frozen=True)
class PrefetchLimits:
    """To how many regions, as ranked, data is copied ahead, and the total cost; 0 for none."""

    regions: int = 0
    max_microusd: int = 0


NOT_AHEAD = PrefetchLimits()


@dataclass(frozen=True)
class Preferences:
    """Durations in seconds on a machine of the first alternative; 0 or empty if not given.

    `work_s` or `work_steps` are all the work, `step_s` the expected time of a step before any was
    measured. `residency` are ISO countries in which machines may be, `not_operated_from` those
    whose companies may not run them.
    """

    objective: Objective = Objective.COST
    work_s: float = 0.0
    work_steps: int = 0
    step_s: float = 0.0
    speeds: tuple[Speed, ...] = ()
    residency: tuple[str, ...] = ()
    not_operated_from: tuple[str, ...] = ()
    ahead: PrefetchLimits = field(default=NOT_AHEAD, metadata=SPARSE)

    @property
    def measurable(self) -> bool:
        """Return whether the amount of work is known."""
        return bool(self.work_s or self.work_steps)


NO_PREFERENCES = Preferences()


NO_LIMIT = -1


@dataclass(frozen=True)
class SpendAlert:
    """The alert route for a spent or expected percentage of `max_cost_usd`."""

    percent: int
    route: str


@dataclass(frozen=True)
class Caps:
    """How often the job may be interrupted, and alert routes by threshold.

    The job continues after `max_interruptions`. A threshold without a route uses the job's.
    """

    max_interruptions: int = NO_LIMIT
    routes: tuple[SpendAlert, ...] = ()

    def route(self, percent: int) -> str:
        """ "" for those of the job."""
        return next((one.route for one in self.routes if one.percent == percent), "")


NO_CAPS = Caps()


@dataclass(frozen=True)
class GenerationSaves:
    """The first and last checkpoint of one generation, and the bytes of its largest.

    The work between the two was done by it and is not repeated.
    """

    generation: int
    first_step: int
    last_step: int
    first_at_us: int
    last_at_us: int
    bytes: int = 0
