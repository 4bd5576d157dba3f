"""What must hold, whatever fails: the invariants, judged from outside.

The oracles believe nobody. Machines and money are judged by the clouds' own books, checkpoints by
the bucket's, decisions by what the store had on record at that moment. Thresholds hide bugs, so
beside each there is a sum: seconds that orphans lived.

Which of them judges what (`ORACLES` says it to the tests); t is time in which somebody could act:

* L1, no leak: waste (an orphan lives for 300 s at most), desertion (without any box, no machine
  outlives `limits.unattended_h` and the reaper's grace; no expiry is moved too far, or for who is
  unwanted).
* L1c, its cost: waste (a machine beside the one that trains; where no fault makes orphans, all of
  them together lived for no second).
* L2, one machine for a token: clouds. L3, a job that has ended has none: waste; nor what
  machines left behind, but what is held, and told: leftovers.
* S1, decisions are a compare-and-swap: record; a write of a shared duty has its lease's epoch, and
  who was overtaken writes nothing: duties.
* S2, nothing is begun for a duty without its lease, with five seconds to spare: duties.
* S3, nobody touches what is another deployment's: clouds.
* F1, F2, fencing: bucket. C1, what HEAD names is there, and it never goes back: bucket, record.
* D1, no false kill: clouds (lost, preempted, boot timeout), record (taken for gone), desertion (by
  the reaper or the dead-man), queue (for a job of no higher priority). D2, one chosen node for a
  rank: record, at every choice.
* G1, nobody's machine is ended unless the record says so: clouds; a record that does not know it
  says nothing: restored; no crowd at once: blast.
* B1, budgets, of a job and by the month: money; of all jobs together: limits; of a project, and
  that room goes by priority: queue. B2, prices above the cap: clouds, record.
* B3, the last machine of a place goes by priority: scarce.
* R1, steps lost: bucket; what is ended for want of a box was saved before: desertion;
  and so was what makes room for another job: queue.
* P1, P2, P3, all comes to its end, whatever one job meets, and without a loop: record; who is due
  is decided about within a tick: turns; who has a full disk goes on elsewhere: filling.
* A1, told at least once, and not without end: record; of a box that is lost, by the reaper:
  desertion.
* K1, deadlines are kept as long as nothing fails but the market: deadlines.
* X1, an intent before each create: clouds. Q1, nothing is left to decide: rest.
* T1, the same seed is the same run: no oracle, but `tests/sim/test_runs.py`, over stores, processes
  and hash seeds.
* C2, HEAD never names a state that is not a number: not judged here. The training engine keeps that
  (docs/faults.md, 66), see tests/trainer/reference/test_numbers.py; a simulated program has no
  weights.
"""

from __future__ import annotations

from spotd.domain.node import Node
from tests.sim.oracles.base import Violation, ViolationError
from tests.sim.oracles.blast import BlastOracle
from tests.sim.oracles.bucket import BucketOracle
from tests.sim.oracles.clouds import CloudOracle
from tests.sim.oracles.deadlines import DeadlineOracle
from tests.sim.oracles.desertion import DesertionOracle
from tests.sim.oracles.duties import DutyOracle
from tests.sim.oracles.filling import FillingOracle
from tests.sim.oracles.leftovers import LeftoverOracle
from tests.sim.oracles.money import MoneyOracle
from tests.sim.oracles.record import RecordOracle
from tests.sim.oracles.restored import RestoredOracle
from tests.sim.oracles.turns import TurnOracle
from tests.sim.oracles.waste import WasteOracle
from tests.sim.world import SimWorld

__all__ = ["ORACLES", "Oracles", "Violation", "ViolationError"]

# By invariant: the attributes of `Oracles` that judge it.
ORACLES = {
    "L1": ("waste", "desertion"),
    "L1c": ("waste",),
    "L2": ("clouds",),
    "L3": ("waste", "leftovers"),
    "S1": ("record", "duties"),
    "S2": ("duties",),
    "S3": ("clouds",),
    "F1": ("bucket",),
    "F2": ("bucket",),
    "C1": ("bucket", "record"),
    "D1": ("clouds", "record", "desertion", "queue"),
    "D2": ("record",),
    "G1": ("clouds", "restored", "blast"),
    "B1": ("money", "limits", "queue"),
    "B2": ("clouds", "record"),
    "B3": ("scarce",),
    "R1": ("bucket", "desertion", "queue"),
    "P1": ("record", "turns", "filling"),
    "P2": ("record", "turns"),
    "P3": ("record",),
    "A1": ("record", "desertion"),
    "X1": ("clouds",),
    "Q1": ("rest",),
    "K1": ("deadlines",),
}
LOOK_S = 10.0  # between looks at who is whose
READ_S = 60.0  # between readings of a record that nobody has decided anything about


class Oracles:
    """All of them on one world; each raises ViolationError out of the event that broke its word."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.bucket = BucketOracle(world)
        self.clouds = CloudOracle(world)
        self.money = MoneyOracle(world)
        self.record = RecordOracle(world, self.bucket, self.money)
        self.limits, self.rest = self.record.limits, self.record.rest
        self.queue, self.scarce = self.record.queue, self.record.scarce
        self.waste = WasteOracle(world)
        self.duties = DutyOracle(world)
        self.desertion = DesertionOracle(world, self.bucket)
        self.restored = RestoredOracle(world)
        self.turns = TurnOracle(world)
        self.blast = BlastOracle(world)
        self.leftovers = LeftoverOracle(world)
        self.filling = FillingOracle(world)
        self.deadlines = DeadlineOracle(world)
        self._nodes: list[Node] = []
        self._ended: frozenset[str] = frozenset()  # jobs
        self._undone = True  # some job has not ended
        self._decisions, self._read_us = -1, 0
        self._look()

    def _look(self) -> None:
        self._world.kernel.after(LOOK_S, self._look)
        if not self._world.store_away:
            self._read()
            self.record.look(self._nodes)
            self.clouds.look(self._nodes, LOOK_S)
            self.waste.look(self._nodes, self._ended, LOOK_S)
            self.leftovers.look(LOOK_S)
            self.filling.look(self._nodes, LOOK_S)
        living = any(cloud.alive() for cloud in self._world.clouds.values())
        self._world.quiet = not self._undone and not living
        self.money.look(LOOK_S)
        self.desertion.look(LOOK_S)
        self.turns.look(LOOK_S)

    def _read(self) -> None:
        """What is judged of the record (who is chosen, in which state, and what has ended) changes
        by decisions; in case it did not, it is read now and then all the same."""
        world, now_us = self._world, self._world.kernel.now_us
        if self._decisions == world.decisions and now_us < self._read_us + int(READ_S * 1e6):
            return
        self._decisions, self._read_us = world.decisions, now_us
        self._nodes = world.store.nodes.active()
        jobs = world.store.jobs.rows()
        self._ended = frozenset(job.id for job in jobs if job.outcome is not None)
        self._undone = len(jobs) > len(self._ended)

    def judge_end(self) -> None:
        """After the calm: everything is done, told, and costs nothing any more. Where nobody was
        left to do or tell anything, it costs nothing."""
        if self._world.deserted_us:
            self.desertion.judge_end()
            return
        self.waste.judge_end()
        self.record.judge_end()
        self.deadlines.judge_end()
