"""F1, F2, C1, R1: who may write, that what is committed is there, and how much work was lost."""

from __future__ import annotations

from collections import Counter

from spotd.wire import Head, parse_head, parse_manifest, sha256
from tests.sim.machine import SAVE_S, STEP_S, Trainer
from tests.sim.oracles.base import Oracle
from tests.sim.world import SimWorld

# A save may have to wait for the step under way, for the one before it, and for a bucket that does
# not answer at once.
SLACK_S = 4 * STEP_S + 3 * SAVE_S[1] + 30.0
UNBOUNDED = ("bucket_away", "objects_", "machine_cut", "machine_freezes", "cloud_outage")


class BucketOracle(Oracle):
    """Hears of every write to the bucket and of every end of a training program."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self.heads: dict[str, Head] = {}
        self.moved_us: dict[str, int] = {}  # job -> when its newest checkpoint was committed
        self.reached: Counter[str] = Counter()  # job -> the furthest step that was computed
        self.steps_lost: Counter[str] = Counter()
        world.bucket.moved = self._moved
        world.watch = self
        enabled = world.faults.enabled()
        self.bounded = not any(name.startswith(UNBOUNDED) for name in enabled)

    def _moved(self, key: str, before: bytes | None, after: bytes) -> None:
        if not key.endswith("/HEAD"):
            return
        new = parse_head(after)
        if before is not None:
            self._judge_move(parse_head(before), new)
        if new.current is not None:
            self._judge_checkpoint(new)
            known = self.heads.get(new.job)
            if known is None or known.current != new.current:
                self.moved_us[new.job] = self.world.kernel.now_us
        self.heads[new.job] = new

    def _judge_move(self, old: Head, new: Head) -> None:
        if new.generation < old.generation:
            self.fail("F1", f"{new.job}: generation {new.generation} wrote over {old.generation}")
        if old.final and new.current != old.current:
            self.fail("C1", f"{new.job}: something was committed after the final checkpoint")
        old_step = old.current.step if old.current else 0
        new_step = new.current.step if new.current else 0
        if new_step < old_step:
            self.fail("C1", f"{new.job}: HEAD went back from step {old_step} to {new_step}")

    def _judge_checkpoint(self, head: Head) -> None:
        assert head.current is not None
        data = self.world.bucket.objects.get(head.current.manifest)
        if data is None or sha256(data[0]) != head.current.digest:
            self.fail("C1", f"{head.job}: HEAD names {head.current.manifest}, which is not there")
        if parse_manifest(data[0]).step != head.current.step:
            self.fail("C1", f"{head.job}: HEAD says step {head.current.step}, its manifest not")

    def fenced(self, job_id: str, generation: int, owner: str) -> None:
        """A trainer gives up because somebody else owns HEAD: then somebody does. A generation has
        one owner; that it is given a second time can happen to a database that forgot the first."""
        head = self.heads.get(job_id)
        if head is None or (head.generation, head.owner) <= (generation, owner):
            newer = head is not None and head.generation == generation and head.owner != owner
            if not (newer and self.world.restored_us):
                self.fail("F2", f"{job_id}: generation {generation} was fenced by nobody")

    def trained(self, trainer: Trainer, step: int) -> None:
        """So far it has come."""
        self.reached[trainer.job_id] = max(self.reached[trainer.job_id], step)

    def claimed(self, trainer: Trainer, step: int) -> None:
        """A new generation resumes at `step`: what lies between there and what was computed before
        is lost. What its predecessors' `every_s` allows is the most that may be."""
        job_id = trainer.job_id
        current = self.heads[job_id].current
        committed = current.step if current else 0
        if step < committed:
            self.fail("C1", f"{job_id}: resumes at step {step}, and {committed} was committed")
        lost = max(self.reached[job_id] - step, 0)
        self.steps_lost[job_id] += lost
        most = int((self.world.spec(job_id).checkpoint.every_s + SLACK_S) / STEP_S)
        if self.bounded and lost > most:
            self.fail("R1", f"{job_id}: {lost} steps were lost, and its cadence allows {most}")
        self.reached[job_id] = step
