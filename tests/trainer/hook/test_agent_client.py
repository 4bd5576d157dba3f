"""The connection to the agent never delays training, and it is restored."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.waiting import LIMIT_S, until
from tests.trainer.rig import AgentEnd
from trainer.hook.spotd_hook.agent_client import MAX_QUEUED_LINES, AgentClient
from trainer.hook.spotd_hook.stop import StopRequests


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd(claim="after_release", claim_deadline_s=30.0) as end:
        yield end


def test_messages_and_flags(agent: AgentEnd) -> None:
    began_s = time.monotonic()
    link = AgentClient.connect({"SPOTD_SOCKET": agent.path}, rank=3)
    assert link.wait_flag(LIMIT_S)
    claim, remaining_s = link.current_claim()
    assert claim == "after_release"
    assert 30 - (time.monotonic() - began_s) <= remaining_s <= 30
    assert agent.wait("hello").data == {"rank": 3, "pid": os.getpid()}
    link.send("progress", {"to_step": 1})
    assert agent.wait("progress").data == {"to_step": 1}
    told_s = time.monotonic()
    agent.tell(stop=True, save=2, deadline_s=5.0, reason="reclaimed")
    until(lambda: link.flag.stop)
    assert link.flag.saves_requested == 2
    assert link.flag.reason == "reclaimed"
    assert link.flag.deadline is not None
    assert told_s <= link.flag.deadline - 5.0 <= time.monotonic()
    link.close(exit_code=75)
    assert agent.wait("exit").data["code"] == 75


def test_how_far_a_rank_has_come_is_told_to_an_agent_that_asks(agent: AgentEnd) -> None:
    """The last step matters most: no further call follows it."""
    link = AgentClient.connect({"SPOTD_SOCKET": agent.path}, rank=3)
    agent.tell(ranks=True)
    until(lambda: link.flag.wants_steps)
    for step in range(1, 200):
        link.set_step(step)
    report = agent.wait("at", lambda data: data["step"] == 199)
    assert report.data == {"rank": 3, "step": 199}
    agent.hang_up()
    again = agent.wait("hello", lambda _: len(hellos(agent)) == 2)
    assert again.data["rank"] == 3
    until(lambda: len([m for m in agent.messages if m.kind == "at"]) >= 2)
    link.close()
    assert len([m for m in agent.messages if m.kind == "at"]) <= 4, "not every step"


def hellos(agent: AgentEnd) -> list[object]:
    return [message for message in agent.messages if message.kind == "hello"]


def test_an_older_agent_is_not_told(agent: AgentEnd) -> None:
    """An older agent rejects messages that it does not know."""
    link = AgentClient.connect({"SPOTD_SOCKET": agent.path})
    assert link.wait_flag(10)
    link.set_step(7)
    link.send("progress", {})
    agent.wait("progress")
    link.close(exit_code=0)
    agent.wait("exit")
    assert "at" not in {message.kind for message in agent.messages}


def test_before_the_agent_speaks_it_is_as_it_said_at_the_start() -> None:
    until_s = time.monotonic() + 40
    until = str(until_s)
    link = AgentClient.connect({"SPOTD_CLAIM": "after_release", "SPOTD_CLAIM_UNTIL": until})
    claim, remaining_s = link.current_claim()
    assert claim == "after_release"
    assert until_s - time.monotonic() <= remaining_s <= 40
    assert not link.flag.stop
    link.close()


def test_without_an_agent_everything_works() -> None:
    link = AgentClient.connect({})
    link.send("progress", {})
    assert link.wait_flag(0)
    assert not link.flag.stop
    assert link.current_claim()[0] == "now"
    link.close(exit_code=0)


def test_an_agent_that_dies_is_dialled_again() -> None:
    folder = tempfile.TemporaryDirectory(prefix="rig")
    with folder, AgentEnd() as first:
        path = Path(folder.name) / "s"
        path.symlink_to(first.path)
        link = AgentClient(str(path), 0)
        link.send("progress", {"to_step": 1})
        first.wait("progress")
        path.unlink()
        first.hang_up()
        link.send("progress", {"to_step": 2})
        with AgentEnd(stop=True) as second:
            path.symlink_to(second.path)
            second.wait("hello")
            link.send("progress", {"to_step": 3})
            second.wait("progress", lambda data: data["to_step"] == 3)
            assert link.flag.stop
            link.close()


def test_an_agent_that_does_not_read_holds_nothing_up() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="rig") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        listener.bind(f"{folder}/s")
        listener.listen()
        link = AgentClient(f"{folder}/s", 0)
        connection = listener.accept()[0]
        started = time.monotonic()
        for step in range(MAX_QUEUED_LINES + 5000):
            link.send("progress", {"to_step": step, "losses": [0.5] * 20})
        link.close(timeout_s=0.3)
        assert time.monotonic() - started < LIMIT_S
        connection.close()


def test_nonsense_from_the_agent_breaks_the_line_only(
    agent: AgentEnd, capsys: pytest.CaptureFixture[str]
) -> None:
    link = AgentClient(agent.path, 0)
    assert link.wait_flag(10)
    agent.tell(save="many")
    until(lambda: "invalid flag" in capsys.readouterr().err)
    agent.flag["save"] = 7
    until(lambda: link.flag.saves_requested == 7)
    link.close()


def test_signals_set_flags_only() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    stop = StopRequests()
    try:
        stop.install()
        assert not stop.stopping
        assert not stop.take_save_requests()
        signal.raise_signal(signal.SIGUSR1)
        assert stop.take_save_requests()
        assert not stop.take_save_requests()
        assert not stop.stopping
        signal.raise_signal(signal.SIGTERM)
        assert stop.stopping
        assert stop.reason == "SIGTERM"
        assert stop.remaining_s is None
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGUSR1), handlers, strict=True):
            signal.signal(number, handler)


def test_the_flag_counts_like_a_signal(agent: AgentEnd) -> None:
    stop, link = StopRequests(), AgentClient(agent.path, 0)
    stop.listen(link)
    assert link.wait_flag(10)
    agent.tell(save=1)
    until(stop.take_save_requests)
    agent.tell(save=1)
    agent.tell(stop=True, deadline_s=60.0, reason="notice")
    until(lambda: stop.stopping)
    assert not stop.take_save_requests()
    assert stop.reason == "notice"
    assert stop.remaining_s is not None
    assert 50 < stop.remaining_s <= 60
    link.close()
