"""Short stories without chance, whose every boundary is a place to die."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from spotd.domain.job import CheckpointSpec, Desired
from tests.sim.users import ANYWHERE
from tests.sim.world import BUCKET, SimWorld

CHECKPOINT = CheckpointSpec(store=BUCKET, engine="spotd", every_s=120.0)


def _submit(world: SimWorld, name: str, steps: int, **spec: object) -> str:
    spec = {"checkpoint": CHECKPOINT, "progress_every_s": 60.0, **spec}
    return world.submit(name, steps, alternatives=(ANYWHERE,), **spec)


def _preempted(world: SimWorld) -> None:
    """A job is placed, loses its machine after a notice, goes on elsewhere, and finishes."""
    _submit(world, "job", 90)
    world.kernel.after(500.0, partial(_preempt, world))


def _preempt(world: SimWorld) -> None:
    for cloud in world.clouds.values():
        for rented in cloud.alive():
            cloud.preempt(rented)


def _hedged(world: SimWorld) -> None:
    """Two machines are asked for, the slower one is given back, and the faster one dies."""
    _submit(world, "job", 60, candidates=2)
    world.kernel.after(500.0, partial(_kill_one, world))


def _kill_one(world: SimWorld) -> None:
    living = [(cloud, rented) for cloud in world.clouds.values() for rented in cloud.alive()]
    for cloud, rented in living[:1]:
        cloud.end(rented, "died")


def _cancelled(world: SimWorld) -> None:
    """One job is cancelled while its machine is on its way, another while it trains."""
    early = _submit(world, "early", 60)
    late = _submit(world, "late", 60)
    world.kernel.after(0.5, partial(world.desire, early, Desired.CANCEL))
    world.kernel.after(400.0, partial(world.desire, late, Desired.CANCEL))


def _baked(world: SimWorld) -> None:
    """An image is baked, once by a machine that is taken away while it is made."""
    bake = {"bake": "torch", "setup": "make", "checkpoint": CheckpointSpec(store="")}
    world.submit("job", 0, alternatives=(ANYWHERE,), **bake)
    world.kernel.after(1.0, partial(_take_when_begun, world))


def _take_when_begun(world: SimWorld) -> None:
    for cloud in world.clouds.values():
        if cloud.images.made:
            for rented in cloud.alive():
                cloud.end(rented, "died")
            return
    world.kernel.after(5.0, partial(_take_when_begun, world))


def _followed(world: SimWorld) -> None:
    """One job comes after another."""
    first = _submit(world, "first", 30)
    _submit(world, "second", 30, after=first)


SCENARIOS: Mapping[str, Callable[[SimWorld], None]] = {
    "preempted": _preempted,
    "hedged": _hedged,
    "cancelled": _cancelled,
    "baked": _baked,
    "followed": _followed,
}
