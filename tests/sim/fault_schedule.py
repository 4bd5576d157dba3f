"""What happens to a deployment over time: the faults that come by themselves, not by a call."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from providers.base import CapacityType, Notice, NoticeKind
from spotd.base.clock import BELIEF_S
from spotd.planner.core.orphan_policy import BLAST_LEAST
from tests.sim.cloud import Rented, SimCloud
from tests.sim.daemon import SimDaemon
from tests.sim.faults import Fault
from tests.sim.world import SimWorld

PRICE_EVERY_S = 600.0
CALM_MICROUSD_PER_H = 16_000_000  # everybody can afford it
STEADY_S = 60.0  # that a time server keeps a clock right which it has just set


class Weather:
    """Brings about what the run's faults say, until `calm`."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._kernel = world.kernel
        self._faults = world.faults

    def begin(self) -> None:
        """Let the market walk, and start the clock of every fault that has a rate."""
        self._kernel.after(PRICE_EVERY_S, self._walk)
        for name, happen in _HAPPENS.items():
            self._next(name, happen)
        for daemon in self._world.daemons:
            self._kernel.after(0.0, daemon.start)

    def clear_up(self) -> None:
        """From here on nothing fails; what is broken mends."""
        world = self._world
        self._faults.calm_down()
        world.bucket.away = world.store_away = False
        for cloud in world.clouds.values():
            cloud.out = cloud.rejects_credentials = False
            for zone in cloud.zones.values():
                zone.on_sale, zone.room = True, max(zone.room, 4)
                cloud.reprice(zone, min(zone.spot_microusd_per_h, CALM_MICROUSD_PER_H))
        for machine in world.machines.values():
            machine.cut = machine.cut_from_us = False
            machine.turn_metadata(up=True)
        for jump in world.jumps.values():
            jump.mend()
        for daemon in world.daemons:
            if not daemon.process.alive:
                daemon.start()

    def _next(self, name: str, happen: Callable[[SimWorld, Random], bool]) -> None:
        pause_s = self._faults.pause_s(name)
        if pause_s == float("inf"):
            return

        def strike() -> None:
            if not self._faults.on(name):
                return
            self._faults.expected[name] += 1.0
            if happen(self._world, self._faults.stream(name)):
                self._faults.happened(name)
            self._next(name, happen)

        self._kernel.after(pause_s, strike)

    def _walk(self) -> None:
        """Spot prices and room wander, until the calm."""
        if self._faults.calm:
            return
        for cloud in self._world.clouds.values():
            random = self._faults.stream(f"market/{cloud.name}")
            for zone in cloud.zones.values():
                price = zone.spot_microusd_per_h * random.uniform(0.93, 1.08)
                cloud.reprice(zone, int(min(max(price, 12_000_000), 60_000_000)))
                zone.room = min(
                    max(zone.room + random.choice((-1, 0, 0, 1)), 0), self._world.most_room
                )
        self._kernel.after(PRICE_EVERY_S, self._walk)


# --- what can happen; each says whether there was anything to happen to


def _any(random: Random, rented: list[Rented]) -> Rented | None:
    return random.choice(rented) if rented else None


def _alive(world: SimWorld, *, spot: bool = False) -> list[Rented]:
    return [
        rented
        for cloud in world.clouds.values()
        for rented in cloud.alive()
        if not spot or rented.request.capacity_type is CapacityType.SPOT
    ]


def _preempt(world: SimWorld, random: Random) -> bool:
    rented = _any(random, [r for r in _alive(world, spot=True) if not r.notices])
    if rented is not None:
        world.clouds[rented.provider].preempt(rented)
    return rented is not None


def _storm(world: SimWorld, random: Random) -> bool:
    """Everything in one zone, within a minute: preemptions come by pool."""
    rented = _any(random, _alive(world, spot=True))
    if rented is None:
        return False
    cloud = world.clouds[rented.provider]
    zone = cloud.zones[rented.request.zone]
    zone.on_sale = False
    world.kernel.after(random.uniform(600, 7200), lambda: setattr(zone, "on_sale", True))
    for other in _alive(world, spot=True):
        if other.request.zone == zone.name and not other.notices:
            world.kernel.after(
                random.uniform(0, 60),
                lambda o=other: o.alive and not o.notices and cloud.preempt(o),
            )
    return True


def _withdrawn(world: SimWorld, random: Random) -> bool:
    """A notice that does not come true."""
    rented = _any(random, [r for r in _alive(world, spot=True) if not r.notices])
    if rented is None:
        return False
    cloud = world.clouds[rented.provider]
    cloud.preempt(rented)
    [notice_id] = rented.notices
    after_s = random.uniform(0.1, 0.9) * cloud.notice_s
    world.kernel.after(after_s, lambda: cloud.withdraw(rented, notice_id))
    return True


def _rebalance(world: SimWorld, random: Random) -> bool:
    """A recommendation: nothing follows from it."""
    rented = _any(random, _alive(world, spot=True))
    if rented is not None:
        notice = Notice(f"{rented.id}-rebalance", NoticeKind.REBALANCE, None, "imds", rented.id)
        rented.machine.warn(notice)
    return rented is not None


def _sudden_death(world: SimWorld, random: Random) -> bool:
    rented = _any(random, _alive(world))
    if rented is not None:
        world.clouds[rented.provider].end(rented, "died")
    return rented is not None


def _freeze(world: SimWorld, random: Random) -> bool:
    """A machine stops, and may go on much later: a zombie then."""
    rented = _any(random, _alive(world))
    if rented is not None:
        world.kernel.freeze(world.machines[rented.id].process, random.uniform(5, 1800))
    return rented is not None


def _cut(world: SimWorld, random: Random) -> bool:
    """A machine is off the network: for everybody, or for us alone."""
    rented = _any(random, _alive(world))
    if rented is None:
        return False
    machine = world.machines[rented.id]
    how = random.choice(("cut", "cut_from_us"))
    setattr(machine, how, True)
    world.kernel.after(random.uniform(5, 1800), lambda: setattr(machine, how, False))
    return True


def _metadata_down(world: SimWorld, random: Random) -> bool:
    rented = _any(random, _alive(world))
    if rented is None:
        return False
    machine = world.machines[rented.id]
    machine.turn_metadata(up=False)
    world.kernel.after(random.uniform(10, 1800), lambda: machine.turn_metadata(up=True))
    return True


def _stale(world: SimWorld, random: Random) -> bool:
    """What its cloud answers from has not heard of a machine, for less than a minute."""
    rented = _any(random, _alive(world))
    if rented is not None:
        rented.hidden_until_us = world.kernel.now_us + int(random.uniform(1, 45) * 1e6)
    return rented is not None


def _forget(world: SimWorld, random: Random) -> bool:
    """A cloud lists none of our machines for a while, which are off our network in the same hour:
    all that we could know of them says that they are gone. A person looks when it is over."""
    kernel = world.kernel
    cloud = max(world.clouds.values(), key=lambda one: (len(one.alive()), one.name))
    crowd = cloud.alive()
    waiting = any(one.forgotten_us > world.released_us for one in _alive(world))
    if len(crowd) <= BLAST_LEAST or waiting:
        return False
    until_us = kernel.now_us + int(random.uniform(10, 20) * 60e6)
    looked_us = until_us + int(random.uniform(10, 40) * 60e6)

    def end() -> None:
        for rented in crowd:
            world.machines[rented.id].cut_from_us = False

    def look() -> None:
        world.tell("a person lets go of what nobody wants")
        world.released_us = kernel.now_us
        world.store.orphans.release(cloud.name, kernel.now_us)

    for rented in crowd:
        rented.hidden_until_us, rented.forgotten_us = until_us, kernel.now_us
        world.machines[rented.id].cut_from_us = True
    kernel.at(until_us, end)
    kernel.at(looked_us, look)
    return True


def _disk_fills(world: SimWorld, random: Random) -> bool:
    """Something takes all its room: some time it is removed, or the machine is left."""
    rented = _any(random, [r for r in _alive(world) if not world.machines[r.id].disk_is_full])
    if rented is None:
        return False
    machine = world.machines[rented.id]
    machine.fill_disk(full=True)
    if random.random() < 0.3:
        after_s = random.uniform(10, 3600)
        world.kernel.after(after_s, lambda: machine.fill_disk(full=False))
    return True


def _jump_dies(world: SimWorld, random: Random) -> bool:
    """A jump host is gone, and comes back as a new one: what went through it is broken."""
    jump = random.choice([*world.jumps.values()])
    if jump.up:
        jump.die(random.choice((random.uniform(1, 60), random.uniform(60, 3600))))
    return not jump.up


def _jump_slow(world: SimWorld, random: Random) -> bool:
    jump = random.choice([*world.jumps.values()])
    jump.slow = True
    world.kernel.after(random.uniform(60, 1800), lambda: setattr(jump, "slow", False))
    return True


def _agent_dies(world: SimWorld, random: Random) -> bool:
    rented = _any(random, _alive(world))
    agent = world.machines[rented.id].agent if rented is not None else None
    if agent is None or not agent.running:
        return False
    agent.die()
    return True


def _outage(world: SimWorld, random: Random) -> bool:
    """A whole cloud answers nothing; with even odds its machines are cut off as well."""
    cloud: SimCloud = random.choice(list(world.clouds.values()))
    cloud.out = True
    seconds, cut = random.uniform(60, 3600), random.random() < 0.5
    world.kernel.after(seconds, lambda: setattr(cloud, "out", False))
    for rented in cloud.alive() if cut else []:
        machine = world.machines[rented.id]
        machine.cut = True
        world.kernel.after(seconds, lambda m=machine: setattr(m, "cut", False))
    return True


def _credentials(world: SimWorld, random: Random) -> bool:
    cloud: SimCloud = random.choice(list(world.clouds.values()))
    cloud.rejects_credentials = True
    after_s = random.uniform(60, 3600)
    world.kernel.after(after_s, lambda: setattr(cloud, "rejects_credentials", False))
    return True


def _bucket_away(world: SimWorld, random: Random) -> bool:
    world.bucket.away = True
    world.kernel.after(random.uniform(5, 900), lambda: setattr(world.bucket, "away", False))
    return True


def _store_away(world: SimWorld, random: Random) -> bool:
    world.store_away = True
    world.kernel.after(random.uniform(1, 300), lambda: setattr(world, "store_away", False))
    return True


def _daemon(world: SimWorld, random: Random) -> SimDaemon | None:
    living = [daemon for daemon in world.daemons if daemon.process.alive]
    return random.choice(living) if living else None


def _daemon_dies(world: SimWorld, random: Random) -> bool:
    daemon = _daemon(world, random)
    if daemon is not None:
        world.crash(daemon, random.uniform(1, 600))
    return daemon is not None


def _daemon_freezes(world: SimWorld, random: Random) -> bool:
    daemon = _daemon(world, random)
    if daemon is not None:
        world.kernel.freeze(daemon.process, random.uniform(10, 300))
    return daemon is not None


def _clock_jumps(world: SimWorld, random: Random) -> bool:
    daemon = _daemon(world, random)
    now_us = world.kernel.now_us
    # Two in a row, with no look at the clock between them, are one that lasts longer than BELIEF_S.
    if daemon is None or daemon.ahead_us or now_us < daemon.set_right_us + int(STEADY_S * 1e6):
        return False
    daemon.ahead_us = int(random.uniform(-7200, 7200) * 1e6)

    def set_right() -> None:
        daemon.ahead_us, daemon.set_right_us = 0, world.kernel.now_us

    # Until a time server sees it.
    world.kernel.after(random.uniform(1, 0.9 * BELIEF_S), set_right)
    return True


_HAPPENS: dict[str, Callable[[SimWorld, Random], bool]] = {
    "preempt": _preempt,
    "storm": _storm,
    "withdrawn": _withdrawn,
    "rebalance": _rebalance,
    "sudden_death": _sudden_death,
    "machine_freezes": _freeze,
    "machine_cut": _cut,
    "metadata_down": _metadata_down,
    "disk_fills": _disk_fills,
    "jump_dies": _jump_dies,
    "jump_slow": _jump_slow,
    "agent_dies": _agent_dies,
    "list_stale": _stale,
    "list_empty": _forget,
    "cloud_outage": _outage,
    "credentials": _credentials,
    "bucket_away": _bucket_away,
    "store_away": _store_away,
    "daemon_dies": _daemon_dies,
    "daemon_freezes": _daemon_freezes,
    "clock_jumps": _clock_jumps,
}


def _catalogue() -> dict[str, Fault]:
    rows = (
        # by time: the most, an hour
        Fault("preempt", 6.0, (52, 55), "a notice, and the machine goes when it has run out"),
        Fault("storm", 1.0, (38, 55), "a zone is taken away and not sold for a while"),
        Fault("withdrawn", 3.0, (53,), "a notice that is withdrawn"),
        Fault("rebalance", 3.0, (53,), "a recommendation that nothing follows"),
        Fault("sudden_death", 3.0, (42, 54), "a machine goes without a notice"),
        Fault("machine_freezes", 2.0, (51, 63), "a machine stops, and goes on later"),
        Fault("machine_cut", 2.0, (50, 63), "a machine is off the network for a while"),
        Fault("metadata_down", 2.0, (56,), "the metadata service does not answer"),
        Fault("list_stale", 6.0, (29,), "listings lack a machine for a while", added=True),
        Fault(
            "list_empty", 0.0, (29,), "a cloud lists nothing, and is off our network", added=True
        ),
        Fault(
            "disk_fills",
            0.5,
            (59,),
            "a machine's disk is full, for a while or for good",
            added=True,
        ),
        # Of a profile that has jump hosts alone.
        Fault("jump_dies", 0.0, (46, 50), "a jump host is gone for a while", added=True),
        Fault("jump_slow", 0.0, (49,), "a jump host takes its time for a while", added=True),
        Fault("agent_dies", 2.0, (58,), "the agent's process ends"),
        Fault("cloud_outage", 0.5, (38,), "a cloud answers nothing for a while"),
        Fault("credentials", 0.5, (39,), "a cloud refuses our credentials for a while"),
        Fault("bucket_away", 1.0, (64,), "the bucket does not answer for a while"),
        Fault("store_away", 2.0, (16, 17, 18), "the database does not answer for a while"),
        Fault("daemon_dies", 6.0, (1, 2, 3, 4, 5, 7, 13, 15), "kill -9, and a start later"),
        Fault("daemon_freezes", 4.0, (6, 10, 12), "the control box is paused"),
        Fault("clock_jumps", 1.0, (11,), "the control box's wall clock is set"),
        # by call: the highest probability
        Fault("boundary_crash", 0.02, (1, 2, 3, 4, 5), "kill -9 between two effects"),
        Fault("boundary_stall", 0.02, (6, 10), "a thread that stands still between two effects"),
        Fault("renewal_late", 0.0, (6, 10), "leases are renewed at the last moment", added=True),
        Fault("commit_unknown", 0.02, (21,), "written, and the answer lost"),
        Fault("cloud_request_lost", 0.1, (27,), "a call that never arrives"),
        Fault("cloud_reply_lost", 0.1, (26,), "a call that arrives, and its answer does not"),
        Fault("cloud_slow", 0.1, (26, 30), "a call that arrives after we gave up"),
        Fault("cloud_throttle", 0.2, (30,), "too many requests"),
        Fault("cloud_capacity", 0.5, (32,), "no capacity"),
        Fault("cloud_quota", 0.2, (33,), "no quota"),
        Fault("cloud_lag", 0.5, (29,), "a new machine is not listed yet"),
        Fault("cloud_late_failure", 0.2, (31,), "an accepted create that fails"),
        Fault("list_misses", 0.05, (29,), "a listing lacks a machine that lives"),
        Fault("boot_never", 0.5, (45,), "a machine that never comes up"),
        Fault("boot_slow", 0.5, (45,), "a machine that comes up late"),
        Fault("terminate_ignored", 0.3, (36,), "a terminate that is accepted and does nothing"),
        Fault("ssh_request_lost", 0.1, (46, 49), "a command that never arrives"),
        Fault("ssh_reply_lost", 0.1, (4, 49), "a command that arrives, and its answer does not"),
        Fault("ssh_slow", 0.1, (49,), "a command that arrives after we gave up"),
        Fault("objects_request_lost", 0.1, (64,), "a write that never arrives"),
        Fault("objects_reply_lost", 0.1, (65,), "a write that arrives, and its answer does not"),
        Fault("objects_slow", 0.05, (64, 65), "a write that takes effect after we gave up"),
        Fault("trainer_crash", 0.01, (70,), "the training program crashes"),
        Fault("trainer_lies", 0.01, (70,), "the training program ends with 0, and is not done"),
        Fault("chat_down", 0.9, (74,), "the chat refuses a message"),
        Fault("chat_hangs", 0.2, (74,), "the chat takes two minutes"),
        Fault("chat_reply_lost", 0.5, (5, 74), "the chat took it, and did not say so"),
    )
    return {row.name: row for row in rows}


FAULTS = _catalogue()
