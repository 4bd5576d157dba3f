"""How a run is set up: how many daemons, and which faults are drawn, forced or forbidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    budgets_microusd: tuple[int, ...] = (0, 0, 0, 20_000_000)  # one of them for each job; 0: none
    poison: bool = False  # nothing can be decided about the first job

    def draw(self, seed: int, faults: Mapping[str, Fault]) -> dict[str, float]:
        """The strengths of one seed."""
        return {**({} if self.only else draw(seed, faults)), **self.forced}


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
    "stubborn": Profile("machines that stay when told to end", forced={"terminate_ignored": 0.6}),
    "poor": Profile("jobs that may not cost much", budgets_microusd=(5_000_000, 20_000_000)),
    "poison": Profile("a job that nothing can be decided about", poison=True),
}
