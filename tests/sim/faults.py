"""What can go wrong in a run, how often, and how often it did.

Swarm testing: a seed turns on a random part of the faults, each at a random strength, because a run
in which everything fails all the time never gets far enough to meet the rare ones. Each fault
draws from a stream of its own, so that a run with one fault less is otherwise the same run for as
long as it can be: that is what shrinking relies on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Fault:
    """`most` is the highest strength a seed may draw: a probability a call, or a rate an hour.

    `number` names the classes of docs/faults.md that it stands for. One that is `added` draws its
    part in a swarm from a stream of its own: what a seed was before, it still is. With 0.0 as its
    `most` it is never part of a swarm: only a profile that forces it has it.
    """

    name: str
    most: float
    numbers: tuple[int, ...]
    text: str
    added: bool = False


class Faults:
    """The faults of one run. `strengths` has those that are on."""

    def __init__(self, seed: int, strengths: Mapping[str, float]) -> None:
        self._seed = seed
        self._strengths = dict(strengths)
        self._live = {name: strength for name, strength in strengths.items() if strength > 0.0}
        self._streams: dict[str, Random] = {}
        self.fired: Counter[str] = Counter()
        # How often each should have struck by now: the sum of its chances, and of its moments.
        self.expected: dict[str, float] = dict.fromkeys(strengths, 0.0)
        self._calm = False

    @property
    def calm(self) -> bool:
        """The last part of a run: nothing fails any more."""
        return self._calm

    def calm_down(self) -> None:
        """From here on nothing fails."""
        self._calm, self._live = True, {}

    def stream(self, name: str) -> Random:
        """The random numbers of that name; the same for the same seed, whatever else is drawn."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = Random(f"{self._seed}/{name}")
        return found

    def enabled(self) -> frozenset[str]:
        """Those that this run may meet."""
        return frozenset(name for name, strength in self._strengths.items() if strength > 0.0)

    def on(self, name: str) -> bool:
        """Whether it may happen at all in this run, and now."""
        return name in self._live

    def strikes(self, name: str) -> bool:
        """Draw once for one call."""
        strength = self._live.get(name)
        if strength is None:
            return False
        self.expected[name] += strength
        if self.stream(name).random() >= strength:
            return False
        self.fired[name] += 1
        return True

    def pause_s(self, name: str) -> float:
        """Until it happens next, for one that has a rate an hour; drawn from an exponential
        distribution. Infinite when it is off."""
        rate = self._strengths.get(name, 0.0)
        return 3600.0 * self.stream(name).expovariate(rate) if rate > 0.0 else float("inf")

    def happened(self, name: str) -> None:
        """Count one that its own code brought about."""
        self.fired[name] += 1


def draw(seed: int, faults: Mapping[str, Fault]) -> dict[str, float]:
    """A seed's swarm: about half of the faults, each at a strength that spans two decades."""
    swarm = Random(f"{seed}/swarm")
    chosen = {}
    for name in sorted(faults):
        random = Random(f"{seed}/swarm/{name}") if faults[name].added else swarm
        on, strength = random.random() < 0.5, faults[name].most * 10 ** random.uniform(-2, 0)
        if on and strength:
            chosen[name] = strength
    return chosen
