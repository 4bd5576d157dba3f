"""A drill injects its fault once, however often the agent receives it."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from typing import Any

import pytest

from spotd import wire
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node, is_running

CAUGHT = f"""{shlex.quote(sys.executable)} -c '
import signal, sys, time
def leave(*_):
    print("caught", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
while True:
    time.sleep(0.01)
'"""


def runs(node: Node) -> None:
    node.run()
    node.start(run=CAUGHT)
    node.wait_for_log("up")


def inject_fault(node: Node, kind: str, drill: str = "d1") -> wire.Reply:
    data: dict[str, Any] = {"drill": drill, "kind": kind, "notice_s": 60.0}
    return node.send(wire.STRIKE, data)


@pytest.mark.req("DRL-01")
def test_sigterm_stops_the_program_as_a_notice_does(node: Node) -> None:
    runs(node)
    assert inject_fault(node, "sigterm").ok
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    assert "caught" in node.log()
    assert inject_fault(node, "sigterm").ok, "told again, it has done so"
    assert not inject_fault(node, "kill", "d2").ok, "nothing runs that another could strike"


def test_one_that_comes_too_late_says_alone_whether_it_struck(node: Node) -> None:
    runs(node)
    late = {"kind": "kill", "notice_s": 60.0, "late": True}
    assert not node.send(wire.STRIKE, {"drill": "d1", **late}).ok
    assert node.is_program_alive()
    assert inject_fault(node, "notice").ok
    assert node.send(wire.STRIKE, {"drill": "d1", **late}).ok
    assert node.is_program_alive()


def test_kill_gives_the_program_no_moment(node: Node) -> None:
    runs(node)
    assert inject_fault(node, "kill").ok
    assert node.wait_for(wire.EXITED).data["code"] == 128 + signal.SIGKILL
    assert "caught" not in node.log()


def test_an_agent_that_is_killed_leaves_the_program_and_strikes_no_second_time(node: Node) -> None:
    runs(node)
    pid, program = node.agent_pid, node.pids()
    with pytest.raises((AssertionError, wire.WireError)):
        inject_fault(node, "agent")  # it dies before it answers
    wait_until("it is dead", lambda: not is_running(pid))
    node.run()
    assert node.agent_pid != pid
    assert inject_fault(node, "agent").ok
    assert node.pids() == program
    assert node.is_program_alive()


def test_what_the_next_agent_could_not_know_of_is_not_done(node: Node) -> None:
    """The drill would be sent again and injected twice."""
    runs(node)
    pid, program = node.agent_pid, node.pids()
    state = node.paths.state
    in_the_way = state.with_name(f"{state.name}.new")
    in_the_way.mkdir()  # nothing can be written
    reply = inject_fault(node, "agent")
    assert not reply.ok
    assert "memory is full" in reply.error
    assert (node.agent_pid, node.pids()) == (pid, program)
    in_the_way.rmdir()
    assert inject_fault(node, "kill").ok, "once there is room"


def test_a_played_notice_is_met_and_never_withdrawn(node: Node) -> None:
    runs(node)
    before_s = time.time()
    assert inject_fault(node, "notice").ok
    heard = node.wait_for(wire.NOTICE).data
    assert (heard["notice_id"], heard["source"]) == ("drill-d1", wire.DRILL_SOURCE)
    assert 60 - (time.time() - before_s) <= heard["remaining_s"] <= 60
    assert inject_fault(node, "notice").ok
    node.kill_agent()
    node.run()  # its cloud, which is asked anew, knows of no such notice
    node.live_on(2)
    assert len(node.entries(wire.NOTICE)) == 1
    assert node.entries(wire.NOTICE_WITHDRAWN) == []


@pytest.mark.parametrize(
    "data", [{}, {"drill": "d", "kind": "flood"}, {"drill": 1, "kind": "kill"}]
)
def test_nonsense_strikes_nothing(node: Node, data: dict[str, Any]) -> None:
    runs(node)
    assert not node.send(wire.STRIKE, data).ok
    assert node.is_program_alive()
