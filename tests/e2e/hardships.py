"""What happens to a job on real machines, one thing after the other, with the daemon killed and
restarted in between; what the job is to show in the end, whatever was done, is in verdict.py."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from spotd import wire
from spotd.demo.box import BoxError, wait_for
from spotd.domain.node import Node
from spotd.store.interface import Store
from tests.e2e.rig import POLL_S, Run, open_records
from tests.e2e.scenarios import expect
from tests.fixtures import cgroups
from tests.fixtures.netns import Machine, RealBox
from tests.fixtures.netns_machine import HOME

LOST_S = 8.0
TIMING = f"""
[timing]
suspect_after_s = 4
lost_after_s = {LOST_S:g}
resurvey_s = 2
reterminate_s = 2
survey_every_s = 3
"""
SLOW_KBIT = 400
WAIT_S = 90.0  # for anything that is to happen, on a computer with much else to do


@dataclass
class RealRun(Run):
    """A run on machines of namespaces. `boxed` is its box."""

    @cached_property
    def records(self) -> Store:
        """Open until `close`: it is asked ten times a second."""
        return open_records(self.box)

    def close(self) -> None:
        self.records.close()

    @property
    def boxed(self) -> RealBox:
        assert isinstance(self.box, RealBox)
        return self.box

    def machine(self, number: int) -> Machine:
        """The `number`th that the cloud gave, from 1, once it has its cable."""
        wait_for(f"machine {number}", lambda: len(self.machines()) >= number, WAIT_S, POLL_S)

        def there() -> Machine | None:
            found = self.boxed.machine(self.machines()[number - 1])
            return found if found.pid and found.up() else None

        found = wait_for(f"machine {number} to be there", there, WAIT_S, POLL_S)
        assert found is not None
        return found

    def state_file(self, instance_id: str, name: str) -> Path | None:
        folder = self.boxed.machine(instance_id).path(f"{HOME}/.spotd/{self.job_id}")
        return next(folder.glob(f"g*/{name}"), None)

    def nodes(self) -> list[Node]:
        """As the daemon has them on record, oldest first."""
        return sorted(self.records.nodes.of_job(self.job_id), key=lambda node: node.generation)

    def silent_s(self) -> float:
        """How long the newest node has not been heard."""
        return time.time() - self.nodes()[-1].agent.heard_at_us / 1e6

    def wait(self, what: str, ask: Callable[[], object]) -> None:
        wait_for(what, ask, WAIT_S, POLL_S)
        self.note(what)

    def runs(self, machine: Machine) -> bool:
        """Whether its cloud still counts the time."""
        return any(
            row["instance_id"] == machine.ident and not row["ended_at_us"]
            for row in self.box.meter()
        )

    def exits(self, machine: Machine) -> list[int]:
        """The codes with which programs ended there, by the machine's own journal."""
        path = self.state_file(machine.ident, "journal.jsonl")
        rows = [json.loads(line) for line in path.read_bytes().splitlines()] if path else []
        entries = [row.get("journal", row) for row in rows]
        return [row["data"]["code"] for row in entries if row["kind"] == wire.EXITED]

    def said(self, kind: str) -> list[str]:
        """The events of that kind."""
        return [event["text"] for event in self.box.events(self.job_id) if event["kind"] == kind]


def hard_links(run: RealRun) -> None:
    """Everything that can be wrong between the box and a machine that trains: nothing is lost and
    nobody replaced, because its checkpoints say that it lives."""
    first = run.machine(1)  # it boots: its port refuses, and the line to it is slow
    first.slow(SLOW_KBIT)
    run.training(step=5)
    if not first.held_back():
        raise BoxError("the slow link held nothing back")
    run.note(f"it trains, behind a link of {SLOW_KBIT} kbit/s")
    first.quicken()

    def unheard() -> bool:
        return run.silent_s() > LOST_S + 3

    def heard() -> bool:
        return run.silent_s() < 4

    first.swallow("to")  # half open: it hears nothing, and its words arrive
    run.bounce_daemon()
    run.wait("nobody hears it: packets to it are swallowed", unheard)
    first.deliver()
    run.wait("it is heard again", heard)
    first.swallow("from")
    run.wait("nobody hears it: packets from it are swallowed", unheard)
    run.bounce_daemon()
    first.deliver()
    run.wait("it is heard again", heard)
    first.cut()
    run.wait("nobody hears it: the cable is out", unheard)
    first.mend()
    run.wait("it is heard again", heard)
    first.stop_sshd()
    first.hang_up()
    run.wait("nobody hears it: sshd refuses", unheard)
    run.bounce_daemon()
    first.start_sshd()
    run.wait("it is heard again", heard)
    run.finish()
    expect(run, generation=1)
    if len(run.said("started")) != 1:
        raise BoxError("the program was started more than once")


def hard_ends(run: RealRun) -> None:
    """A freeze, and a partition that takes machine and bucket apart and heals when the machine has
    been replaced: the old one trains on, and commits nothing."""
    first = run.machine(1)
    run.training(step=5)
    run.die(first.ident, "frozen")
    run.bounce_daemon()
    second = run.machine(2)
    run.training(step=5, generation=2)
    run.wait("the frozen one is ended", lambda: not run.runs(first))

    second.cut()
    run.box.call_cloud("/control/fault", {"operation": "terminate", "kind": "http_500", "count": 0})
    run.note("the cable of the second is out, and its cloud ends nothing")
    began_s = time.monotonic()
    run.training(step=1, generation=3)
    second.mend()
    run.wait("the old one finds out", lambda: wire.EXIT_FENCED in run.exits(second))
    run.box.call_cloud("/control/clear_faults", {})
    run.refused_s = time.monotonic() - began_s
    run.finish()
    expect(run, generation=3)


def hard_neighbours(run: RealRun) -> None:
    """Another host key at the address, told once and never logged in to; then the power goes."""
    first = run.machine(1)
    run.training(step=5)
    first.change_host_key()
    first.stop_sshd()
    first.start_sshd()
    first.hang_up()
    run.wait("the wrong key is told", lambda: len(run.said("link_refused")) == 1)
    logins = [first.logins()]
    run.bounce_daemon()

    def replaced() -> bool:
        with suppress(BoxError, OSError):  # until it is gone
            logins.append(first.logins())
        return len(run.machines()) == 2

    run.wait("it is replaced", replaced)
    second = run.machine(2)
    if len(set(logins)) > 1:
        raise BoxError("somebody was logged in to who has the wrong key")
    run.training(step=5, generation=2)
    second.lose_cable()
    run.kill_daemon()
    run.die(second.ident, "reset")
    run.start_daemon()
    run.finish()
    expect(run, generation=3)


def hard_times(run: RealRun) -> None:
    """No room on the disk, and a notice in it; then no memory."""
    first = run.machine(1)
    run.training(step=5)
    agent = run.state_file(first.ident, "agent.pid")
    environ = first.enter("cat", f"/proc/{agent and agent.read_text().strip()}/environ")
    if "SPOTD_METADATA_BASE" in environ or "SPOTD_LOCAL_INSTANCE" not in environ:
        raise BoxError("the agent does not ask at the address that clouds have")
    first.fill_disk()
    run.note("the disk is full")
    run.bounce_daemon()
    run.preempt(first.ident, notice_s=20.0)
    second = run.machine(2)
    run.training(step=1, generation=2)
    run.wait("the first one is gone", lambda: not run.runs(first))
    if not run.nodes()[0].training.released_at_us:
        raise BoxError("it did not save and release")
    group = second.group
    trainer = run.trainer_pid(second.ident)
    if trainer is None:
        raise BoxError("the program ended before there was no memory for it: make it longer")
    second.use_up_memory(trainer)
    run.wait("the kernel kills for memory", lambda: cgroups.kills(group))
    run.finish()
    job = expect(run, generation=3)
    if job["failures"] != 1:
        raise BoxError(f"the crash was charged {job['failures']} times")
