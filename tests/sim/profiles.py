"""How a run is set up: how many daemons, and which faults are drawn, forced or forbidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from tests.sim.faults import Fault, draw


@dataclass(frozen=True)
class Profile:
    """`forced` faults are on in every seed, at that strength; the rest is the seed's swarm unless
    `only` says that there is no rest."""

    text: str
    daemons: int = 1
    jobs: int = 3
    forced: Mapping[str, float] = field(default_factory=dict)
    only: bool = False

    def draw(self, seed: int, faults: Mapping[str, Fault]) -> dict[str, float]:
        """The strengths of one seed."""
        return {**({} if self.only else draw(seed, faults)), **self.forced}

    def random(self, seed: int) -> Random:
        """For what is not a fault."""
        return Random(f"{seed}/profile")


PROFILES = {
    "swarm": Profile("about half of all faults, each at a random strength"),
    "calm": Profile("nothing fails but the market", only=True),
    "two": Profile("two daemons on one database", daemons=2, forced={"daemon_freezes": 4.0}),
    "zombies": Profile(
        "machines that freeze or are cut off and come back",
        forced={"machine_freezes": 6.0, "machine_cut": 6.0},
    ),
    "unknown": Profile(
        "creates whose answer is lost, and a daemon that dies",
        forced={"cloud_reply_lost": 0.3, "daemon_dies": 6.0, "boundary_crash": 0.02},
    ),
}
