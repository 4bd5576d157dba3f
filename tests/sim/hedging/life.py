"""One job's life on one case with one arm, and what it came to by the clouds' own books."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, Outcome
from spotd.store.interface import Store
from tests.sim.cloud import Rented
from tests.sim.daemon import on_kernel
from tests.sim.hedging.arms import Arm
from tests.sim.hedging.world import BEGIN_US, PacedWorld, S, SlowMachine, pace
from tests.sim.kernel import Kernel
from tests.sim.machine import STEP_S, Trainer
from tests.sim.oracles import Oracles, ViolationError
from tests.sim.oracles.bucket import BucketOracle
from tests.sim.replay.trace import Case
from tests.sim.tiers import memory

TAKEN = (LeaveReason.PREEMPTED, LeaveReason.LOST)
LOOK_S = 600  # between looks whether all is over
LONGEST = 3  # times the deadline: who is not done by then never is
H_US = 3600 * S


@dataclass(frozen=True)
class Life:
    """Dollars are what the clouds' meters say: `usd` of all machines, `losers_usd` of those that
    were given back because another answered first, `unchosen_usd` of all others that nobody chose.
    `alone_h` are hours from submission to the end in which no machine of it was up, `done_h` all of
    them. `gaps_s`, one for each loss: from the last moment in which it trained to the next first
    step. `hunts_s`, one for each attempt: from the first request to the chosen machine's first
    word. `late_s` is 0 where the deadline was kept, and where there is none. `violation` is what
    a judge of the simulator said: no orphan, no machine twice, none kept beside the one that
    trains; "" for nothing."""

    case: str
    arm: str
    usd: float
    losers_usd: float
    unchosen_usd: float
    losers: int
    alone_h: float
    done_h: float
    gaps_s: tuple[float, ...]
    hunts_s: tuple[float, ...]
    late_s: float
    steps_lost: int
    orphan_s: float
    violation: str
    machines: int
    asked: int
    side_by_side: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Seen:
    """Between programs and who judges them: when each generation trained, in microseconds."""

    def __init__(self, judge: BucketOracle, kernel: Kernel) -> None:
        self._judge, self._kernel = judge, kernel
        self.spans: dict[int, list[int]] = {}  # generation -> first step, end (0: it trains)

    def fenced(self, job_id: str, generation: int, owner: str) -> None:
        self._judge.fenced(job_id, generation, owner)

    def claimed(self, trainer: Trainer, step: int) -> None:
        self.spans.setdefault(trainer.generation, [self._kernel.now_us + int(STEP_S * S), 0])
        self._judge.claimed(trainer, step)

    def trained(self, trainer: Trainer, step: int) -> None:
        self._judge.trained(trainer, step)

    def stopped(self, generation: int) -> None:
        if generation in self.spans:
            self.spans[generation][1] = self._kernel.now_us


def lived(
    case: Case,
    arm: Arm,
    seed: str = "0",
    *,
    deadline: bool = True,
    hear: Callable[[str], None] | None = None,
    look: Callable[[Store], None] = lambda _store: None,
) -> Life:
    """Play it until nothing costs money any more; `look` sees what is on record then."""
    kernel = Kernel()
    world = PacedWorld(kernel, case, arm, seed)
    world.hear = hear
    with (
        closing(kernel),
        on_kernel(kernel, lambda: world.quiet, {}),
        pace(case),
        memory() as open_store,
    ):
        world.store = open_store(lambda: kernel.now_us, world.notify)
        oracles = Oracles(world)
        seen = Seen(oracles.bucket, kernel)
        world.watch, world.stopped = seen, seen.stopped
        violation = ""
        try:
            job_id = world.begin(deadline=deadline)
            until_us = BEGIN_US + LONGEST * case.deadline_s * S
            while not world.done() and kernel.now_us < until_us:
                kernel.run(kernel.now_us + LOOK_S * S)
            kernel.run(kernel.now_us + LOOK_S * S)
            oracles.waste.judge_end()
            oracles.record.judge_end()
        except ViolationError as error:
            violation = str(error.violation)
        (job,) = world.store.jobs.rows()
        nodes = world.store.nodes.of_job(job_id)
        look(world.store)
        found = _told(world, job, nodes, seen, oracles, violation)
        world.store.close()
    return found


def _told(
    world: PacedWorld,
    job: Job,
    nodes: Sequence[Node],
    seen: Seen,
    oracles: Oracles,
    violation: str,
) -> Life:
    rented = [one for cloud in world.clouds.values() for one in cloud.rented.values()]
    by_token = {node.token: node for node in nodes}
    losers = [one for one in rented if _lost(by_token.get(one.token))]
    unchosen = [one for one in rented if one not in losers and not _chosen(by_token, one)]
    done = job.outcome is Outcome.SUCCEEDED
    end_us = (job.end.finished_at_us if done else 0) or world.kernel.now_us
    deadline_us = job.spec.limits.deadline_us
    return Life(
        case=world.case.name,
        arm=world.arm.name,
        usd=_usd(rented, end_us),
        losers_usd=_usd(losers, end_us),
        unchosen_usd=_usd(unchosen, end_us),
        losers=len(losers),
        alone_h=(end_us - BEGIN_US - _manned_us(world, rented, end_us)) / H_US,
        done_h=(end_us - BEGIN_US) / H_US,
        gaps_s=_gaps(nodes, seen),
        hunts_s=_hunts(nodes),
        late_s=max(0.0, (end_us - deadline_us) / S) if deadline_us else 0.0,
        steps_lost=oracles.bucket.steps_lost.total(),
        orphan_s=oracles.waste.orphan_s,
        violation=violation,
        machines=len(rented),
        asked=world.asked,
        side_by_side=world.side_by_side,
    )


def _lost(node: Node | None) -> bool:
    return node is not None and node.departure.leave_reason is LeaveReason.HEDGE_LOST


def _chosen(by_token: dict[str, Node], one: Rented) -> bool:
    node = by_token.get(one.token)
    return node is not None and node.chosen


def _usd(rented: Sequence[Rented], end_us: int) -> float:
    """To their own ends, which may be a little after the job's."""
    return sum(one.cost_microusd(one.ended_us or end_us) for one in rented) / 1e6


def _manned_us(world: PacedWorld, rented: Sequence[Rented], end_us: int) -> int:
    """In which one machine or more was up."""
    spans = []
    for one in rented:
        machine = world.machines[one.id]
        assert isinstance(machine, SlowMachine)
        if machine.up_us:
            spans.append((machine.up_us, min(one.ended_us or end_us, end_us)))
    total, until_us = 0, 0
    for from_us, to_us in sorted(spans):
        total += max(0, to_us - max(from_us, until_us))
        until_us = max(until_us, to_us)
    return total


def _gaps(nodes: Sequence[Node], seen: Seen) -> tuple[float, ...]:
    taken = {
        node.generation for node in nodes if node.chosen and node.departure.leave_reason in TAKEN
    }
    trained = sorted(seen.spans)
    return tuple(
        (seen.spans[new][0] - seen.spans[old][1]) / S
        for old, new in pairwise(trained)
        if old in taken and seen.spans[old][1]
    )


def _hunts(nodes: Sequence[Node]) -> tuple[float, ...]:
    first: dict[int, int] = {}
    for node in nodes:
        at_us = first.get(node.generation, node.requested_at_us)
        first[node.generation] = min(at_us, node.requested_at_us)
    found = (node for node in nodes if node.chosen and node.startup.hello_at_us)
    return tuple((node.startup.hello_at_us - first[node.generation]) / S for node in found)
