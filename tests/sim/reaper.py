"""spot-reaper, which goes round by itself: its own code, on a box that none of our faults reach."""

from __future__ import annotations

from typing import Any

from spotd.reaper.clock_trust import ClockTrust
from spotd.reaper.notify import NotificationState, Notifier
from spotd.reaper.sweep import Reaper
from tests.sim.daemon import CloudClient
from tests.sim.kernel import Process
from tests.sim.net import Net
from tests.sim.world import SimWorld

ROUND_S = 300.0  # as it is configured where nobody says anything else


class SimReaper:
    """One for all clouds, as in production; what it pages comes to `world.paged`."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._process = Process("reaper")

    def start(self) -> None:
        self._world.kernel.spawn(self._process, self._run)

    def _run(self) -> None:
        world = self._world
        net = Net(world.kernel, world.faults, lambda _what: None)
        providers: Any = {
            name: CloudClient(cloud, net, "reaper") for name, cloud in world.clouds.items()
        }
        reaper = Reaper(world.store.deployment.id(), providers, Notifier())
        now_us = lambda: world.kernel.now_us  # noqa: E731
        told, trust = NotificationState(None), ClockTrust(None, lambda: (now_us(), now_us()))
        while True:
            world.kernel.sleep(ROUND_S)
            for text in reaper.go_round(told, *trust.look()).pages:
                world.tell(f"the reaper pages: {text}")
                world.paged.append((world.kernel.now_us, text))
