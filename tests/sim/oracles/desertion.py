"""L1, D1, R1, A1 when nobody is left: what a machine does, and costs, without a control box."""

from __future__ import annotations

from collections import Counter

from spotd.config.schedule import Schedule
from spotd.domain.states import NodeState
from spotd.planner.core.expiry import LATE_SHARE, RENEW_SHARE
from spotd.planner.core.reaper_policy import SKEW_S
from tests.sim.cloud import Rented
from tests.sim.oracles.base import Oracle, S
from tests.sim.oracles.bucket import BucketOracle
from tests.sim.reaper import ROUND_S
from tests.sim.world import SimWorld
from trainer.agent.main.deadman import SLACK_SHARE

# Without a fault for so long, who lives has renewed everything that it wants.
ATTENDED_S = 2 * Schedule.expiry_s + 60.0
LATE_S = 300.0  # for the reaper to ask once more, and for the cloud to end it
ASKED_S = 2 * ROUND_S  # for each terminate that the cloud took and did not follow
UNWANTED_S = 120.0  # a renewal may be on its way when its machine is given up
SAVE_S = 120.0  # before its end, for a program to save and release: more where saves took longer


class DesertionOracle(Oracle):
    """Sees who is attended, who is renewed, and who is ended by whom."""

    def __init__(self, world: SimWorld, bucket: BucketOracle) -> None:
        super().__init__(world)
        self._bucket = bucket
        self._up_s: Counter[str] = Counter()  # without a gap
        self._starts = 0  # of daemons
        self._attended_us: dict[str, int] = {}
        self._overdue_s: Counter[str] = Counter()
        self._silent_s = 0.0
        world.left_alone = self._left_alone
        for cloud in world.clouds.values():
            cloud.hear_told(self._told_to_end)
            cloud.hear_renewed(self._renewed)
            cloud.hear_ended(self._ended)

    def look(self, passed_s: float) -> None:
        starts = sum(daemon.starts for daemon in self.world.daemons)
        if starts != self._starts:  # what was under way may have died with who began it
            self._starts = starts
            self._up_s.clear()
        living = [r for cloud in self.world.clouds.values() for r in cloud.alive()]
        for rented in living:
            up = self.everybody_up(rented) and self.world.machines[rented.id].reachable
            up = up and not self._unheard(rented)
            self._up_s[rented.id] = self._up_s[rented.id] + int(passed_s) if up else 0
            if self._up_s[rented.id] >= ATTENDED_S:
                self._attended_us[rented.id] = self.world.kernel.now_us
            if not self._cloud_away(rented):
                self._judge_age(rented, passed_s)
        if self.world.deserted_us:
            self._judge_pages(living, passed_s)

    def _unheard(self, rented: Rented) -> bool:
        """Whether the cloud moved its expiry on, and the answer was lost: it is done again with the
        next round, and may be lost again."""
        if not rented.expires_at_us:
            return False  # it never was
        node = self.world.node_of(rented.token)
        known_us = (
            max(node.lease.expires_at_us, node.lease.renewed_until_us) if node is not None else 0
        )
        return node is not None and rented.expires_at_us > known_us

    def _judge_age(self, rented: Rented, passed_s: float) -> None:
        """Nobody outlives `limits.unattended_h` without a control box by more than the reaper's
        grace. Only time counts in which the cloud would have listened, and had told it what is
        there."""
        deserted_us, now_us = self.world.deserted_us, self.world.kernel.now_us
        if not deserted_us or now_us < deserted_us + self._time_s() * S:
            return
        if "reaper" in self.world.clouds[rented.provider].unanswered:
            return
        self._overdue_s[rented.id] += int(passed_s)
        most_s = SKEW_S + 2 * ROUND_S + LATE_S + rented.ignored * ASKED_S
        if self._overdue_s[rented.id] > most_s:
            text = f"lives on for {self._overdue_s[rented.id]} s more than it may without a box"
            self.fail("L1", f"{rented.id} {text}")

    def _judge_pages(self, living: list[Rented], passed_s: float) -> None:
        """At half of the time a person is told."""
        world = self.world
        half_us = world.deserted_us + int(LATE_SHARE * self._time_s() * S)
        if any(at_us > world.deserted_us for at_us, _ in world.paged):
            return
        if world.kernel.now_us > half_us and any(not self._cloud_away(r) for r in living):
            self._silent_s += passed_s
            if self._silent_s > 3 * ROUND_S + LATE_S:
                self.fail("A1", "the reaper told nobody that the control box is silent")

    # --- who is ended, and by whom

    def _told_to_end(self, rented: Rented) -> None:
        if rented.told_by != "reaper":
            return
        self._judge_early(rented, "the reaper ends it")
        agent = self.world.machines[rented.id].agent
        if agent is not None and agent.trains and self._undisturbed():
            self.fail("R1", f"{rented.id} is ended by the reaper, and was not asked to save before")

    def _left_alone(self, rented: Rented) -> None:
        self._judge_early(rented, "its dead-man stops it")

    def _judge_early(self, rented: Rented, what: str) -> None:
        """Who makes progress is not ended before its time without us is over."""
        agent = self.world.machines[rented.id].agent
        trainer = agent.trainer if agent is not None else None
        if trainer is None or trainer.ended:
            return
        attended_us = self._attended_us.get(rented.id, 0)
        shares = 1 - RENEW_SHARE - SLACK_SHARE if attended_us else 1 - SLACK_SHARE
        from_us = (attended_us - ATTENDED_S * S) if attended_us else rented.created_us
        save_s = max(SAVE_S, trainer.policy().stop_duration_s)
        early_s = shares * self._time_s() - save_s - (self.world.kernel.now_us - from_us) / S
        if early_s > 0:
            self.fail("D1", f"{rented.id} trains, and {what} {early_s:.0f} s too early")

    def _ended(self, rented: Rented) -> None:
        """By its own dead-man: then everything that was computed is in the bucket, but of a program
        that had ended by its own mistake before."""
        agent = self.world.machines[rented.id].agent
        trainer = agent.trainer if agent is not None else None
        if rented.ended_by != "dead-man" or trainer is None or not self._undisturbed():
            return
        if trainer.erred:
            return
        head = self._bucket.heads.get(trainer.job_id)
        if head is None or head.generation != trainer.generation:
            return  # somebody took it over
        step = head.current.step if head.current else 0
        if step < trainer.step:
            self.fail("R1", f"{rented.id} switches itself off at step {trainer.step}, saved {step}")

    def _renewed(self, rented: Rented) -> None:
        """Nobody moves the expiry of a machine on that no job wants any more, or too far."""
        ahead_s = (rented.expires_at_us - self.world.kernel.now_us) / S
        if ahead_s > self._time_s() + SKEW_S and self._undisturbed_clocks():
            self.fail("L1", f"{rented.id} may go on for {ahead_s:.0f} s without anybody")
        node = self.world.node_of(rented.token)
        unwanted = node is not None and node.state in (NodeState.TERMINATING, NodeState.GONE)
        if node is not None and unwanted:
            since_s = (self.world.kernel.now_us - node.departure.left_at_us) / S
            if since_s > UNWANTED_S:
                self.fail("L1", f"{rented.id} is renewed, and unwanted for {since_s:.0f} s")

    def judge_end(self) -> None:
        """Long after: a machine that is left would be there for ever."""
        for cloud in self.world.clouds.values():
            for rented in cloud.alive():
                self.fail("L1", f"{rented.id} lives on, and nobody is left to end it")

    # --- what is to be considered

    def _time_s(self) -> float:
        return self.world.timing.unattended_s

    def _cloud_away(self, rented: Rented) -> bool:
        cloud = self.world.clouds[rented.provider]
        return cloud.out or cloud.rejects_credentials

    def _undisturbed(self) -> bool:
        """No fault of this run keeps a program from saving, or an agent from seeing to it."""
        enabled = self.world.faults.enabled()
        return self._bucket.bounded and "agent_dies" not in enabled

    def _undisturbed_clocks(self) -> bool:
        return "clock_jumps" not in self.world.faults.enabled()
