"""Who strikes in a chaos run: an actor for each daemon, one for the database, one for machines.

Every actor draws from its own seed, and draws all of a strike before it looks at what there is to
strike: the same seed strikes in the same way at the same moments, whatever it hits.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from spotd.demo.box import BoxError
from tests.fixtures.netns import Machine, Network, machine_of
from tests.fixtures.pair import Pair, Twin

RETRY_S = 0.5
START_LIMIT_S = 120.0

# How often each comes, and how long it may last.
DAEMON = {"killed": (2, 8.0), "stopped": (3, 25.0)}
DATABASE = {"restarted": (3, 3.0), "sessions ended": (2, 0.0), "cable cut": (2, 15.0)}
MACHINES = {
    "notice": (4, 20.0),  # how long it gives
    "power cut": (3, 0.0),
    "frozen": (3, 40.0),
    "partition": (4, 45.0),
    "packets to it swallowed": (1, 30.0),
    "packets from it swallowed": (1, 30.0),
    "slow link": (2, 30.0),
    "sshd refuses": (2, 20.0),
    "reset": (1, 0.0),
}
SLOW_KBIT = 400


@dataclass
class Record:
    """What was done, and when. Safe to use from every actor."""

    began_s: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)  # what there was nothing to do to
    story: list[str] = field(default_factory=list)
    spans: list[tuple[str, int, int]] = field(default_factory=list)  # who could not act, from, to
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def note(self, text: str) -> None:
        line = f"{time.monotonic() - self.began_s:7.1f} s  {text}"
        with self._lock:
            self.story.append(line)
        print(line, flush=True)

    def count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1

    def miss(self, kind: str, why: Exception) -> None:
        with self._lock:
            self.missed[kind] += 1
        self.note(f"{kind}: nothing came of it: {str(why)[:160]}")

    @contextmanager
    def unable(self, who: str) -> Iterator[None]:
        """It can do nothing in the block."""
        from_us = time.time_ns() // 1000
        try:
            yield
        finally:
            with self._lock:
                self.spans.append((who, from_us, time.time_ns() // 1000))


class Actor(threading.Thread):
    """Strikes every now and then until `stop`; what it began it ends."""

    def __init__(self, name: str, seed: int, record: Record, gap_s: tuple[float, float]) -> None:
        super().__init__(name=name, daemon=True)
        self.random = Random(f"{seed} {name}")
        self.record = record
        self.gap_s = gap_s
        self.stopping = threading.Event()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(self.random.uniform(*self.gap_s)):
            try:
                self.strike()
            except Exception as error:  # noqa: BLE001  whatever it is: the run is not what it says
                self.record.wrong.append(f"{self.name} failed: {error!r}")
                self.record.note(f"{self.name} failed: {error!r}")
        self.done.set()

    def strike(self) -> None:
        raise NotImplementedError

    def draw(self, kinds: dict[str, tuple[int, float]]) -> tuple[str, float]:
        """What, and for how long."""
        weights = [weight for weight, _ in kinds.values()]
        kind = self.random.choices(list(kinds), weights)[0]
        return kind, self.random.random() * kinds[kind][1]


class DaemonActor(Actor):
    """kill -9, or SIGSTOP and SIGCONT."""

    def __init__(self, twin: Twin, keep: Callable[[int], None], seed: int, record: Record) -> None:
        super().__init__(f"daemon {twin.box}", seed, record, (10.0, 35.0))
        self.twin = twin
        self.keep = keep

    def strike(self) -> None:
        kind, for_s = self.draw(DAEMON)
        self.record.count(f"daemon {kind}")
        self.record.note(f"{self.name} {kind} for {for_s:.1f} s")
        with self.record.unable(self.twin.box):
            if kind == "stopped":
                self.twin.pause_daemon()
                self.stopping.wait(for_s)
                self.twin.resume_daemon()
                return
            self.twin.kill_daemon()
            self.stopping.wait(for_s)
            self.start_again()

    def start_again(self) -> None:
        """As systemd does: without end, because the database may be away."""
        end_s = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self.twin.start_daemon()
            except BoxError:
                self.twin.kill_daemon()
                if time.monotonic() > end_s:
                    raise
                time.sleep(RETRY_S)
            else:
                assert self.twin.daemon is not None
                self.keep(self.twin.daemon.pid)
                return


class DatabaseActor(Actor):
    """The server restarts, or a daemon's connections to it end or say nothing any more."""

    def __init__(self, pair: Pair, seed: int, record: Record) -> None:
        super().__init__("database", seed, record, (15.0, 50.0))
        self.pair = pair

    def run(self) -> None:
        super().run()
        # The server is told to end when the thread that started it does.
        threading.Event().wait()

    def strike(self) -> None:
        (kind, for_s), twin = self.draw(DATABASE), self.random.choice(self.pair.twins)
        self.record.count(f"database {kind}")
        where = "" if kind == "restarted" else f" of {twin.box}"
        self.record.note(f"database: {kind}{where}, for {for_s:.1f} s")
        if kind == "restarted":
            with self.record.unable("database"):
                self.pair.server.stop()
                self.stopping.wait(for_s)
                self.pair.server.start()
        elif kind == "cable cut":
            with self.record.unable(twin.box):
                twin.cable.cut()
                self.stopping.wait(for_s)
                twin.cable.mend()
        else:
            query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            self.pair.server.execute(f"{query} WHERE application_name = '{twin.box}'")


class MachineActor(Actor):
    """Strikes a machine that runs. What is to be healed is healed when its time has come, while
    others are struck."""

    def __init__(self, pair: Pair, network: Network, seed: int, record: Record) -> None:
        super().__init__("machines", seed, record, (3.0, 12.0))
        self.cloud = pair.cloud
        self.network = network
        self.heals: list[tuple[float, str, Callable[[], None]]] = []
        self.healed = threading.Event()

    def run(self) -> None:
        healer = threading.Thread(target=self._heal, name="healer", daemon=True)
        healer.start()
        super().run()

    def strike(self) -> None:
        (kind, for_s), chance = self.draw(MACHINES), self.random.random()
        rows = [row for row in self.cloud.meter() if not row["ended_at_us"]]
        if not rows:
            self.record.miss(kind, BoxError("there is no machine"))
            return
        rows.sort(key=lambda row: row["launched_at_us"])
        ident = str(rows[int(chance * len(rows))]["instance_id"])
        self.record.note(f"{ident}: {kind} ({for_s:.1f} s)")
        try:
            self.hurt(kind, for_s, machine_of(self.cloud, self.network, ident))
        except (BoxError, OSError, RuntimeError) as error:
            self.record.miss(kind, error)
        else:
            self.record.count(kind)

    def hurt(self, kind: str, for_s: float, machine: Machine) -> None:
        """Raises BoxError, RuntimeError, OSError for a machine that has gone meanwhile."""
        cloud, ident = self.cloud, machine.ident
        match kind:
            case "notice":
                cloud.preempt(ident, kind="preempt", mode="notice", notice_s=2 + for_s)
            case "power cut":
                machine.lose_cable()
                cloud.preempt(ident, kind="none", mode="reset")
            case "reset":
                cloud.preempt(ident, kind="none", mode="reset")
            case "frozen":
                cloud.preempt(ident, kind="none", mode="frozen", thaw_after_s=1 + for_s)
            case "partition":
                machine.cut()
                self.later(for_s, f"{ident}: the partition ends", machine.mend)
            case "slow link":
                machine.slow(SLOW_KBIT)
                self.later(for_s, f"{ident}: the link is fast again", machine.quicken)
            case "sshd refuses":
                machine.stop_sshd()
                machine.hang_up()
                self.later(for_s, f"{ident}: sshd is back", machine.start_sshd)
            case _:
                machine.swallow("to" if " to " in kind else "from")
                self.later(for_s, f"{ident}: packets arrive again", machine.deliver)

    def later(self, after_s: float, what: str, heal: Callable[[], None]) -> None:
        self.heals.append((time.monotonic() + after_s, what, heal))

    def _heal(self) -> None:
        while True:
            time.sleep(0.2)
            last = self.stopping.is_set()
            due = [heal for heal in self.heals if last or heal[0] <= time.monotonic()]
            for heal in due:
                self.heals.remove(heal)
                try:
                    heal[2]()
                except (BoxError, OSError, RuntimeError):
                    self.record.note(f"{heal[1]}: but it has gone")
                else:
                    self.record.note(heal[1])
            if self.done.is_set() and not self.heals:
                self.healed.set()
                return
