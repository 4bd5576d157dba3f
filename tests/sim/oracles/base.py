"""What a violation is, and what every oracle knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from tests.sim.cloud import Rented
from tests.sim.kernel import EPOCH_US
from tests.sim.world import SimWorld

S = 1_000_000


@dataclass(frozen=True)
class Violation:
    """`invariant` as docs/faults.md names it."""

    invariant: str
    at_s: float
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at_s:.1f} s: {self.text}"


class ViolationError(Exception):
    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


class Oracle:
    """Sees the whole world, and touches nothing of it."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world

    def fail(self, invariant: str, text: str) -> NoReturn:
        """Raises ViolationError. Where the daemon itself stands in between and takes that for one
        of its own troubles, it comes out of the event all the same."""
        at_s = (self.world.kernel.now_us - EPOCH_US) / S
        error = ViolationError(Violation(invariant, at_s, text))
        self.world.kernel.fail(error)
        raise error

    def everybody_up(self, rented: Rented) -> bool:
        """Whether somebody could do something about this machine now: a daemon that runs, a store
        and a cloud that answer."""
        world = self.world
        cloud = world.clouds[rented.provider]
        awake = any(daemon.awake(world.kernel.now_us) for daemon in world.daemons)
        return awake and not (world.store_away or cloud.out or cloud.rejects_credentials)
