"""A supervisor that dies before it starts its script is replaced, unless the job is to stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from spotd import wire
from tests.fixtures.processes import command_line
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node, is_running
from trainer.agent.process.processes import descendants


def supervisor_of(node: Node) -> int:
    """Return the supervisor that waits for its spec."""

    def found() -> list[int]:
        below = [process.pid for process in descendants(node.agent_pid)]
        lines = [(pid, command_line(pid)) for pid in below]
        return [pid for pid, line in lines if line.endswith(b"\0keep\0")]

    pid: int = wait_until("a supervisor", found)[0]
    return pid


@contextmanager
def started_and_frozen(node: Node) -> Iterator[int]:
    """Return the id of a supervisor that has its spec and has not started the script."""
    pid = supervisor_of(node)
    os.kill(pid, signal.SIGSTOP)
    node.start(run="echo ran; exit 3")
    wait_until("the order", (node.paths.memory / "run.ordered").exists)
    yield pid


def test_one_that_died_while_it_waited_is_replaced(node: Node) -> None:
    node.run()
    pid = supervisor_of(node)
    os.kill(pid, signal.SIGKILL)
    wait_until("it is dead", lambda: not is_running(pid))
    node.start(run="echo ran; exit 3")
    assert node.wait_for(wire.EXITED).data["code"] == 3
    assert node.log() == "ran\n"


def test_one_that_died_with_its_order_is_replaced(node: Node) -> None:
    node.run()
    with started_and_frozen(node) as pid:
        os.kill(pid, signal.SIGKILL)
    assert node.wait_for(wire.EXITED).data["code"] == 3
    assert node.log() == "ran\n"
    assert wire.WARNING not in node.kinds()


def test_nothing_is_begun_while_the_job_is_to_stop(node: Node) -> None:
    node.run()
    with started_and_frozen(node):
        assert node.send(wire.STOP).ok
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    assert wire.STARTED not in node.kinds()
    assert node.log() == ""
    head = node.head()
    assert head is not None
    assert head.released
