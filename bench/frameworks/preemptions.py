"""How a machine is taken away from a program: at which place, and with which notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

KINDS = ("notice", "none")
STOP, SIGTERM, LATE = "stop", "SIGTERM", "the program does not come back in time"
TWICE = 0.3  # of the runs lose a second machine
LATE_NOTICE_S = 8.0


@dataclass(frozen=True)
class Preemption:
    """The end of one machine, when its program is at `at` (place, step, how often it was there).

    `notice` is empty without one. `delay_s` passes before the end comes: the program goes on
    meanwhile. `saved`: a checkpoint is waited for first.
    """

    at: str
    notice: str
    delay_s: float = 0.0
    saved: bool = True

    @property
    def step(self) -> int:
        return int(self.at.split()[1])


def draw_preemptions(
    draw: Random, kind: str, places: Sequence[str], *, every: int, directory: bool
) -> list[Preemption]:
    """Return the ends of a run's machines; `places` are those that the whole run came to."""
    steps = [int(name.split()[1]) for name in places]
    last = max(steps)
    early = min(every, 3, last // 2)
    middle = [name for name, step in zip(places, steps, strict=True) if early <= step < last]
    first = _draw_one(draw, kind, middle, every=every, directory=directory)
    ends = [first]
    later = [name for name in middle if int(name.split()[1]) > first.step + 1]
    if later and draw.random() < TWICE:
        ends.append(_draw_one(draw, kind, later, every=every, directory=directory))
    return ends


def _draw_one(
    draw: Random, kind: str, places: Sequence[str], *, every: int, directory: bool
) -> Preemption:
    """Draw the kind of place first, so that the few evaluations are met as often as steps."""
    wanted = draw.choice(("step", "step", "evaluation", "epoch", "save"))
    is_save = wanted == "save"
    among = [name for name in places if name.startswith("step" if is_save else wanted)] or places
    if is_save and every:  # right after a save by the interval has begun
        among = [name for name in among if int(name.split()[1]) % every == 0] or among
    at = draw.choice(list(among))
    if kind == "none":
        delay_s = draw.choice((0.0, draw.uniform(0.0, 0.1)))
        return Preemption(at, "", delay_s, saved=not is_save)
    notices = [STOP, SIGTERM]
    if not at.startswith("step") and not directory:
        notices.append(LATE)
    return Preemption(at, SIGTERM if directory else draw.choice(notices), saved=not is_save)
