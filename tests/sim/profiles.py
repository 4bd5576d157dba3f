"""How a run is set up: how many daemons, and which faults are drawn, forced or forbidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotd.domain.queue import Limits
from spotd.money.budget import Budget
from tests.sim.faults import Fault, draw

NO_LIMITS = Limits()


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
    share: tuple[float, float] = (0.1, 0.5)  # of the time left, that a job takes undisturbed
    restored: bool = False  # an older copy of the database takes its place
    deserted: bool = False  # every control box is lost for good, and spot-reaper goes round
    regret_s: float = 0.0  # each job is cancelled within that time; 0: a few are, some time
    litters: bool = False  # machines leave disks and addresses behind
    unattended_h: float = 24.0  # limits.unattended_h
    hurry: tuple[float, ...] = ()  # times its work until its deadline, of each job; (): has none
    jumps: tuple[str, ...] = ()  # clouds whose machines are behind a jump host
    limits: Limits = NO_LIMITS  # of the whole deployment
    priorities: tuple[int, ...] = ()  # one of them for each job
    projects: tuple[str, ...] = ()
    months: tuple[Budget, ...] = ()  # budgets by the month
    cap_microusd_per_h: int = 16_500_000  # max_hourly_cost of a third of the jobs
    most_room: int = 6  # spot machines that a place has; the calm has more
    spot: str = ""  # jobs take spot of this cloud alone; "": whatever there is
    nodes: int = 1  # machines of a job; some of those jobs go on with fewer

    def draw(self, seed: int, faults: Mapping[str, Fault]) -> dict[str, float]:
        """The strengths of one seed."""
        return {**({} if self.only else draw(seed, faults)), **self.forced}


PROFILES = {
    "swarm": Profile("about half of all faults, each at a random strength"),
    "calm": Profile("nothing fails but the market", only=True),
    "hurried": Profile(
        "jobs with deadlines, on spot that is taken away again and again",
        only=True,
        budgets_microusd=(0,),
        share=(0.2, 0.35),
        hurry=(1.4, 2.0, 3.0),
        forced={"preempt": 20.0, "storm": 4.0},
    ),
    "two": Profile("two daemons on one database", daemons=2, forced={"daemon_freezes": 4.0}),
    "late": Profile(
        "two daemons that renew their leases at the last moment, and much to tell",
        daemons=2,
        forced={"renewal_late": 0.5, "chat_down": 0.9},
    ),
    "zombies": Profile(
        "machines that freeze, stay when told to end, and come back to write",
        forced={
            "machine_freezes": 6.0,
            "machine_cut": 6.0,
            "terminate_ignored": 0.7,
            "objects_slow": 0.1,
        },
    ),
    "parted": Profile(
        "machines that are cut off while they train, and stay when told to end",
        only=True,
        share=(0.3, 0.6),
        forced={"machine_cut": 12.0, "terminate_ignored": 0.9},
    ),
    "unknown": Profile(
        "creates whose answer is lost, and a daemon that dies",
        forced={"cloud_reply_lost": 0.3, "daemon_dies": 6.0, "boundary_crash": 0.02},
    ),
    "fickle": Profile(
        "people who cancel what they have just submitted, at clouds whose answers get lost",
        jobs=12,
        regret_s=40.0,
        forced={"cloud_reply_lost": 0.3, "cloud_slow": 0.1},
    ),
    "stubborn": Profile("machines that stay when told to end", forced={"terminate_ignored": 0.6}),
    "poor": Profile("jobs that may not cost much", budgets_microusd=(5_000_000, 20_000_000)),
    "littered": Profile("machines that leave disks and addresses behind", litters=True),
    "limited": Profile(
        "more jobs than may run side by side",
        jobs=5,
        share=(0.05, 0.2),
        limits=Limits(max_nodes=2, max_microusd_per_h=60_000_000),
    ),
    "queue": Profile(
        "more jobs than may run side by side, of unlike priorities and of projects with limits",
        daemons=2,
        jobs=7,
        share=(0.1, 0.3),
        budgets_microusd=(0,),
        limits=Limits(max_nodes=2, projects={"llm": 1}),
        priorities=(100, 500, 500, 900),
        projects=("llm", "vision"),
    ),
    "scarce": Profile(
        "more jobs than one cloud has spot machines for, of unlike priorities, on two daemons",
        only=True,
        daemons=2,
        jobs=10,
        share=(0.3, 0.6),
        budgets_microusd=(0,),
        priorities=(100, 500, 900),
        projects=("llm", "vision"),
        cap_microusd_per_h=30_000_000,
        most_room=1,
        spot="aws",
        forced={"preempt": 6.0},
    ),
    "monthly": Profile(
        "budgets by the month that are used up",
        jobs=4,
        budgets_microusd=(0,),
        projects=("llm", "vision"),
        months=(Budget("all", 120_000_000), Budget("llm", 40_000_000, project="llm")),
    ),
    "users": Profile(
        "a budget by the month of a user, beside one of all that is far away",
        jobs=4,
        budgets_microusd=(0,),
        months=(Budget("all", 900_000_000), Budget("alice", 60_000_000, user="alice")),
    ),
    "restored": Profile(
        "an older copy takes the place of the database",
        jobs=4,
        budgets_microusd=(0,),  # what it knows of money is old as well
        restored=True,
    ),
    "deserted": Profile(
        "every control box is lost for good",
        jobs=4,
        share=(0.4, 1.5),
        deserted=True,
        unattended_h=1.0,
    ),
    "abandoned": Profile(
        "the same, and nothing else fails",
        only=True,
        jobs=4,
        share=(0.4, 1.5),
        deserted=True,
        unattended_h=1.0,
    ),
    "slow": Profile(
        "clouds that take their time, and take machines away",
        only=True,
        jobs=5,
        forced={"cloud_slow": 0.4, "preempt": 12.0},
    ),
    "stale": Profile(
        "machines that are cut off, and listings that lack some of them",
        forced={"machine_cut": 6.0, "list_stale": 12.0},
    ),
    "gaps": Profile(
        "nobody asks for minutes, again and again, and listings lack machines",
        only=True,
        forced={"machine_cut": 12.0, "list_misses": 0.2, "daemon_dies": 30.0},
    ),
    "forgotten": Profile(
        "a cloud that lists none of our machines for a while, and then all of them",
        only=True,
        jobs=12,
        share=(0.3, 0.6),
        budgets_microusd=(0,),
        forced={"list_empty": 1.0},
    ),
    "gangs": Profile(
        "jobs of two machines, which go on with one, or wait",
        nodes=2,
        share=(0.2, 0.5),
        budgets_microusd=(0,),
        forced={"preempt": 3.0, "sudden_death": 1.0},
    ),
    "lone": Profile(
        "jobs of three machines that lose one after the other, and nothing else fails",
        only=True,
        jobs=2,
        nodes=3,
        share=(0.3, 0.6),
        budgets_microusd=(0,),
        forced={"preempt": 6.0, "sudden_death": 2.0},
    ),
    "jumped": Profile(
        "machines behind jump hosts that die, are slow, and come back",
        jumps=("gcp", "azure"),
        share=(0.3, 0.6),
        forced={"jump_dies": 2.0, "jump_slow": 2.0},
    ),
    "full": Profile(
        "machines whose disks fill up",
        only=True,
        share=(0.3, 0.6),
        budgets_microusd=(0,),
        forced={"disk_fills": 2.0, "preempt": 0.5},
    ),
    "poison": Profile("a job that nothing can be decided about", poison=True),
}
