"""Two machines, each with a saver and torchrun's agent of its own: each uploads what its rank has,
and when one of them is lost the other goes on alone, and later with another one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from spotd.wire import CHECKPOINT
from tests.fixtures.forks import TORCH, nursery
from tests.fixtures.ports import free_port
from tests.fixtures.processes import below
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.reference.test_sharded import final_tensors, head_of, straight, trainer_of
from tests.trainer.rig import AgentEnd, Process, Trainer


@dataclass
class Machines:
    """Of one job; `trainer` says what they run. Of each, its saver and its torchrun."""

    trainer: Trainer
    running: list[list[Process]] = field(default_factory=list)

    def start(self, count: int, generation: int, agent: AgentEnd) -> None:
        port, folder, modules = free_port(), self.trainer.folder, self.trainer.modules
        self.running = []
        for number in range(count):
            env = {
                **self.trainer.env,
                "SPOTD_SAVER": str(folder / f"g{generation}-{number}.sock"),
                "SPOTD_RANK": str(number),
                "SPOTD_TEST_NODES": str(count),
                "SPOTD_TEST_NODE": str(number),
                "SPOTD_TEST_MEET": str(port),
            }
            machine = replace(self.trainer, env=env)
            theirs, log = machine.environment(generation, agent), folder / "saver.log"
            place = nursery(*TORCH, *modules)
            saver = place.fork("trainer.saver", ["--stay"], theirs, folder, log)
            self.running.append([saver, machine.start(generation, agent)])

    def lose(self, number: int) -> None:
        """Without a word."""
        for process in self.running[number]:
            kill(process)

    def end(self) -> None:
        for number in range(len(self.running)):
            self.lose(number)


def kill(process: Process) -> None:
    """With what it has started, which has sessions of its own."""
    theirs = below(process.pid) if process.poll() is None else []
    for pid in [*theirs, process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(LIMIT_S)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    trainer = trainer_of(tmp_path / "job", 1, "--virtual-ranks", "2")
    found = Machines(replace(trainer, every_steps=2))
    yield found
    found.end()


def test_each_saves_its_own_and_the_one_that_is_left_goes_on(
    machines: Machines, tmp_path: Path
) -> None:
    alone, wanted = straight(tmp_path / "alone", 1, "--virtual-ranks", "2")
    usual = machines.trainer
    machines.trainer = usual.held(6)
    with AgentEnd() as agent:
        machines.start(2, 1, agent)
        agent.wait(CHECKPOINT, lambda said: said["step"] >= 4)
        machines.lose(1)
        machines.trainer.go_on()
        assert machines.running[0][1].wait(LIMIT_S) == 1, "its rank cannot go on without the other"
        machines.end()
    head = head_of(machines.trainer)
    left, lost_at = head["current"]["step"], max(agent.losses())
    assert 4 <= left <= lost_at
    store = machines.trainer.folder / "store"
    saved = {path.name[:6] for path in (store / head["current"]["manifest"]).parent.glob("r*")}
    assert saved == {"r00000", "r00001"}
    machines.trainer = usual.held(left + 2)
    with AgentEnd() as agent:
        machines.start(1, 2, agent)
        agent.wait("progress")
        agent.tell(stop=True, deadline_s=20.0, reason="a second machine is there")
        machines.running[0][1].wait(LIMIT_S)
        machines.end()
    assert min(agent.losses()) == left + 1
    assert head_of(machines.trainer)["released"]
    machines.trainer = usual
    with AgentEnd() as agent:
        machines.start(2, 3, agent)
        assert [pair[1].wait(LIMIT_S) for pair in machines.running] == [0, 0], (
            machines.trainer.output()
        )
        machines.end()
    assert agent.losses().items() <= wanted.items()
    ours, theirs = final_tensors(replace(machines.trainer, ranks=2)), final_tensors(alone)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
