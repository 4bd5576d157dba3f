"""What rented machines say, without the machines: the agent and its trainer, as seen on the wire.

Every machine keeps a journal and speaks it to whoever follows, with a heartbeat every 2 s and
progress and checkpoints as often as its job says. One thread speaks for all of them.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from spotd import wire
from spotd.wire import Command, Heartbeat, JournalEntry, LogChunk, Reply, StartDocument

HEARTBEAT_S = 2.0
STEPS_PER_S = 2.0
TOKENS_PER_STEP = 4096

Write = Callable[[bytes], None]  # raises OSError when nobody reads any more


def now_us() -> int:
    """Wall time, on the clock that the daemon has too."""
    return time.time_ns() // 1_000


@dataclass(eq=False)
class Machine:
    """One machine, from its launch to its end."""

    row: dict[str, Any]  # as the cloud lists it
    keys: tuple[str, str]  # who may log in, and its own host key
    job_id: str = ""
    generation: int = 0
    journal: list[bytes] = field(default_factory=list)
    follower: Write | None = None
    start: StartDocument | None = None
    step: int = 0
    reported_us: int = 0
    printed: int = 0  # bytes
    claimed: bool = False
    over: bool = False  # its program has ended

    @property
    def up(self) -> bool:
        return bool(self.row["state"] == "running")

    @property
    def training(self) -> bool:
        return self.claimed and not self.over


class Agents:
    """All machines' agents; every method may be called from any thread."""

    def __init__(self, seed: int = 0) -> None:
        self.said = {"entries": 0, "heartbeats": 0}
        self._random = random.Random(seed)
        self._by_job: dict[str, list[Machine]] = {}
        self._due: list[tuple[float, int, Machine, Callable[[Machine], float]]] = []
        self._number = count()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def start(self) -> None:
        """Speak, on a thread that ends with the process."""
        threading.Thread(target=self._run, name="agents", daemon=True).start()

    # --- what is done to a machine

    def boot(self, machine: Machine, config: Mapping[str, Any]) -> None:
        """`spot-node run`; a second time does nothing."""
        with self._lock:
            if machine.job_id:
                return
            machine.job_id, machine.generation = config["job_id"], config["generation"]
            self._by_job.setdefault(machine.job_id, []).append(machine)
            self._say(machine, wire.HELLO, {"agent": "bench", "wire": wire.WIRE_VERSION})
            self._plan(machine, self._heartbeat, self._random.uniform(0, HEARTBEAT_S))

    def follow(self, machine: Machine, after: int, write: Write) -> None:
        """`spot-node follow`: the journal from the disk, then live."""
        with self._lock:
            machine.follower = write
            for line in machine.journal[after:]:
                self._speak(machine, line)

    def command(self, machine: Machine, command: Command) -> Reply:
        """`spot-node send`."""
        with self._lock:
            if command.generation != machine.generation or not machine.job_id:
                return Reply(ok=False, error=f"generation {machine.generation} runs here")
            match command.name:
                case wire.START:
                    self._start(machine, wire.parse_start(command.data))
                case wire.SAVE:
                    self._save(machine)
                case _:
                    self._release(machine)
        return Reply(ok=True)

    def end(self, machine: Machine) -> None:
        """The machine is gone, whatever it was doing."""
        with self._lock:
            machine.row["state"] = "terminated"
            machine.over, machine.follower = True, None

    def warn(self, machine: Machine, notice_s: float) -> int:
        """A preemption notice reaches the journal; when, in microseconds."""
        with self._lock:
            said_us = now_us()
            notice_id = f"n-{machine.row['instance_id']}"
            notice = {"notice_id": notice_id, "kind": "preempt", "source": "bench"}
            self._say(machine, wire.NOTICE, {**notice, "remaining_s": notice_s})
            return said_us

    def print_every(self, every_s: float, machines: Sequence[Machine]) -> None:
        """Ten lines each, again and again."""
        with self._lock:
            for machine in machines:
                act = partial(self._print, every_s=every_s)
                self._plan(machine, act, self._random.uniform(0, every_s))

    # --- what a machine does by itself

    def _start(self, machine: Machine, document: StartDocument) -> None:
        if machine.start is None:
            self._say(machine, wire.STARTED, {"pids": [1]})
            self._say(machine, wire.READY, {})
        machine.start = document
        others = (other for other in self._by_job[machine.job_id] if other is not machine)
        if document.head.claim == wire.CLAIM_NOW or not any(other.training for other in others):
            self._claim(machine)

    def _claim(self, machine: Machine) -> None:
        if machine.claimed or machine.start is None:
            return
        machine.claimed, machine.reported_us = True, now_us()
        machine.step = max(other.step for other in self._by_job[machine.job_id])
        self._say(machine, wire.CLAIMED, {"step": machine.step, "manifest": _manifest(machine)})
        self._plan(
            machine, self._progress, self._random.uniform(1, machine.start.program.progress_every_s)
        )
        # As if it had trained for long: the saves of many jobs are spread over their period.
        self._plan(
            machine, self._periodic_save, self._random.uniform(1, machine.start.checkpoint.every_s)
        )

    def _progress(self, machine: Machine) -> float:
        """Reports, and returns when to report again (0: never), as all that is planned does."""
        if not machine.training or machine.start is None:
            return 0.0
        last_us = now_us()
        busy_s = (last_us - machine.reported_us) / 1e6
        steps = max(round(busy_s * STEPS_PER_S), 1)
        first, machine.step = machine.step + 1, machine.step + steps
        report = {
            "from_step": first,
            "to_step": machine.step,
            "losses": [round(9.0 / (1 + step / 1000), 6) for step in range(first, first + steps)],
            "first_at_us": machine.reported_us,
            "last_at_us": last_us,
            "tokens": steps * TOKENS_PER_STEP,
            "busy_s": busy_s,
        }
        machine.reported_us = last_us
        self._say(machine, wire.PROGRESS, report)
        return machine.start.program.progress_every_s

    def _periodic_save(self, machine: Machine) -> float:
        self._save(machine)
        return machine.start.checkpoint.every_s if machine.training and machine.start else 0.0

    def _save(self, machine: Machine, *, released: bool = False) -> None:
        if machine.training:
            saved = {"step": machine.step, "manifest": _manifest(machine), "bytes": 1 << 30}
            self._say(machine, wire.CHECKPOINT, {**saved, "trigger": "time", "released": released})

    def _release(self, machine: Machine) -> None:
        """Save, release, exit; a replacement that waits for HEAD takes it."""
        if machine.over:
            return
        self._save(machine, released=True)
        end = {"step": machine.step, "manifest": _manifest(machine)}
        self._say(machine, wire.RELEASED, end)
        machine.over = True
        self._say(machine, wire.EXITED, {"code": wire.EXIT_RELEASED, "ranks": {}, "tail": ""})
        newest = max(self._by_job[machine.job_id], key=lambda other: other.generation)
        self._claim(newest)

    def _heartbeat(self, machine: Machine) -> float:
        if machine.follower is not None:
            beat = Heartbeat(len(machine.journal), now_us(), machine.generation, machine.step)
            self._speak(machine, beat.to_line())
            self.said["heartbeats"] += 1
        return HEARTBEAT_S

    def _print(self, machine: Machine, every_s: float) -> float:
        if not machine.training:
            return 0.0
        text = f"step {machine.step:>9}  loss 2.3456  412345 tokens/s  grad norm 1.23\n" * 10
        chunk = LogChunk(machine.generation, "rank0", machine.printed, text)
        machine.printed += len(text)
        self._speak(machine, chunk.to_line())
        return every_s

    # --- speaking

    def _say(self, machine: Machine, kind: str, data: Mapping[str, Any]) -> None:
        entry = JournalEntry(len(machine.journal) + 1, now_us(), machine.generation, kind, data)
        machine.journal.append(entry.to_line())
        self.said["entries"] += 1
        self._speak(machine, machine.journal[-1])

    def _speak(self, machine: Machine, line: bytes) -> None:
        if machine.follower is None:
            return
        try:
            machine.follower(line)
        except OSError:
            machine.follower = None  # it hung up, and will follow again when it wants to

    def _plan(self, machine: Machine, act: Callable[[Machine], float], wait_s: float) -> None:
        """Do it after a while, and again after as long as it says."""
        heapq.heappush(self._due, (time.monotonic() + wait_s, next(self._number), machine, act))
        self._changed.notify()

    def _run(self) -> None:
        with self._lock:
            while True:
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                at_s, _, machine, act = heapq.heappop(self._due)
                again_s = act(machine) if machine.up else 0.0
                if again_s:
                    again = (at_s + again_s, next(self._number), machine, act)
                    heapq.heappush(self._due, again)


def _manifest(machine: Machine) -> str:
    return f"g{machine.generation}-s{machine.step}"
