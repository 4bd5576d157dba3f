"""What people ask for during a run: jobs of every kind, and now and then a change of mind."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from providers.base import CapacityType, OfferRequest
from spotd.domain.health import HealthSpec
from spotd.domain.job import CheckpointSpec, Desired
from spotd.domain.on_node_loss import Elastic, OnNodeLoss
from spotd.domain.preferences import Preferences
from tests.sim.profiles import Profile
from tests.sim.world import BUCKET, SimWorld

ANYWHERE = OfferRequest(accelerator="H100", accelerator_count=8)


class Users:
    """Submits the profile's jobs over the first hours; some are paused or cancelled later."""

    def __init__(self, world: SimWorld, profile: Profile) -> None:
        self._world = world
        self._profile = profile
        self._random = world.faults.stream("users")

    def begin(self, hours: float) -> None:
        for number in range(self._profile.jobs):
            after_s = 0.0 if number == 0 else self._random.uniform(0.0, hours * 3600 / 2)
            self._world.kernel.after(after_s, partial(self._submit, number, hours * 3600))

    def _submit(self, number: int, left_s: float) -> None:
        """A job that could be done in the time left, if little went wrong."""
        random, world, profile = self._random, self._world, self._profile
        steps = int(left_s * random.uniform(*self._profile.share) / 10.0)
        job_id = world.submit(
            f"job{number}",
            steps,
            alternatives=(self._wanted(),),
            candidates=random.choice((1, 1, 1, 2)),
            checkpoint=CheckpointSpec(
                store=BUCKET, engine="spotd", every_s=random.choice((120.0, 600.0, 1800.0))
            ),
            progress_every_s=120.0,
            health=HealthSpec(check_every_s=300.0),
            max_hourly_microusd=0
            if profile.hurry
            else random.choice((0, 0, profile.cap_microusd_per_h)),
            max_cost_microusd=random.choice(self._profile.budgets_microusd),
            **self._gang(),
            **self._deadline(steps),
            **self._standing(),
        )
        if self._profile.poison and number == 0:
            world.poisoned.add(job_id)
        if self._profile.hurry:
            return  # a pause would be its user's own delay
        if self._profile.regret_s:
            self._later(job_id, Desired.CANCEL, self._profile.regret_s)
        elif random.random() < 0.15:
            self._later(job_id, Desired.CANCEL, left_s * 0.3)
        elif random.random() < 0.15:
            self._later(job_id, Desired.PAUSE, left_s * 0.3)
            self._later(job_id, Desired.RUN, left_s * 0.3, left_s * 0.35)

    def _wanted(self) -> OfferRequest:
        spot = (CapacityType.SPOT,)
        only = self._profile.spot
        return replace(ANYWHERE, cloud=only, capacity_types=spot) if only else ANYWHERE

    def _standing(self) -> dict[str, object]:
        """Whose it is, and how urgent."""
        profile, random = self._profile, self._random
        found: dict[str, object] = {}
        if profile.priorities:
            found["priority"] = random.choice(profile.priorities)
        if profile.projects:
            found["project"] = random.choice(profile.projects)
        return found

    def _gang(self) -> dict[str, object]:
        """Most go on with fewer machines, or do when nobody comes in time."""
        if self._profile.nodes == 1:
            return {}
        chosen = self._random.choice(
            (OnNodeLoss.WAIT, OnNodeLoss.SHRINK, OnNodeLoss.SHRINK, OnNodeLoss.WAIT_THEN_SHRINK)
        )
        waits_s = 300.0 if chosen is OnNodeLoss.WAIT_THEN_SHRINK else 0.0
        return {"num_nodes": self._profile.nodes, "elastic": Elastic(chosen, 1, waits_s)}

    def _deadline(self, steps: int) -> dict[str, object]:
        """Of a job whose profile has some: its work, and when that has to be done."""
        if not self._profile.hurry:
            return {}
        work_s = steps * 10.0
        us = int(work_s * self._random.choice(self._profile.hurry) * 1e6)
        due_us = self._world.kernel.now_us + us
        return {"preferences": Preferences(work_s=work_s), "deadline_us": due_us}

    def _later(self, job_id: str, desired: Desired, most_s: float, least_s: float = 0.0) -> None:
        after_s = least_s + self._random.uniform(1.0, most_s)
        self._world.kernel.after(after_s, partial(self._world.desire, job_id, desired))
