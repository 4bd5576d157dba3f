"""S1 and S2 of shared duties: who was overtaken writes nothing, and begins nothing."""

from __future__ import annotations

from spotd.store.leases import MARGIN_S
from tests.sim.daemon import Duty
from tests.sim.oracles.base import Oracle, S
from tests.sim.world import SimWorld


class DutyOracle(Oracle):
    """Hears of every lease that the store gives, and of every write that it takes from a holder."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._epochs: dict[str, int] = {}  # of the lease that was given last
        self._until_us: dict[str, int] = {}
        # A holder whose clock is wrong is wrong about its margin as well.
        self._clocks_are_right = "clock_jumps" not in world.faults.enabled()
        world.on_duty_taken = self._taken
        world.on_duty_write = self._written
        world.on_duty_held = self._held

    def _taken(self, duty: Duty, ttl_us: int) -> None:
        self._epochs[duty.name] = duty.epoch
        self._until_us[duty.name] = self.world.kernel.now_us + ttl_us

    def _written(self, duty: Duty, what: str) -> None:
        now = self._epochs[duty.name]
        if duty.epoch != now:
            text = f"{what} of epoch {duty.epoch} of {duty.name} was written, and it is {now}"
            self.fail("S1", text)

    def _held(self, duty: Duty) -> None:
        now = self._epochs[duty.name]
        if duty.epoch != now:
            self.fail("S2", f"epoch {duty.epoch} of {duty.name} may begin things, and it is {now}")
        left_s = (self._until_us[duty.name] - self.world.kernel.now_us) / S
        if self._clocks_are_right and left_s < MARGIN_S:
            self.fail("S2", f"something is begun for {duty.name} with {left_s:.1f} s of its lease")
