"""The line to the agent: it never holds training up, and it comes back."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.waiting import until
from tests.trainer.rig import AgentEnd
from trainer.hook.spotd_hook.agent_client import QUEUE_LINES, AgentClient
from trainer.hook.spotd_hook.stop import StopRequests


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd(claim="after_release", claim_deadline_s=30.0) as end:
        yield end


def test_messages_and_flags(agent: AgentEnd) -> None:
    link = AgentClient.connect({"SPOTD_SOCKET": agent.path}, rank=3)
    assert link.wait_flag(10)
    claim, left_s = link.claim_of()
    assert claim == "after_release"
    assert 25 < left_s <= 30
    assert agent.wait("hello").data == {"rank": 3, "pid": os.getpid()}
    link.send("progress", {"to_step": 1})
    assert agent.wait("progress").data == {"to_step": 1}
    agent.tell(stop=True, save=2, deadline_s=5.0, reason="reclaimed")
    until(lambda: link.flag.stop)
    assert link.flag.save == 2
    assert link.flag.reason == "reclaimed"
    assert link.flag.deadline is not None
    assert 3 < link.flag.deadline - time.monotonic() <= 5
    link.close(exit_code=75)
    assert agent.wait("exit").data["code"] == 75


def test_how_far_a_rank_has_come_is_told_to_an_agent_that_asks(agent: AgentEnd) -> None:
    """The last step above all: after it nobody calls any more."""
    link = AgentClient.connect({"SPOTD_SOCKET": agent.path}, rank=3)
    agent.tell(ranks=True)
    until(lambda: link.flag.ranks)
    for step in range(1, 200):
        link.at(step)
    told = agent.wait("at", lambda data: data["step"] == 199)
    assert told.data == {"rank": 3, "step": 199}
    agent.hang_up()
    again = agent.wait("hello", lambda _: len(hellos(agent)) == 2)
    assert again.data["rank"] == 3
    until(lambda: len([m for m in agent.messages if m.kind == "at"]) >= 2)
    link.close()
    assert len([m for m in agent.messages if m.kind == "at"]) <= 4, "not every step"


def hellos(agent: AgentEnd) -> list[object]:
    return [message for message in agent.messages if message.kind == "hello"]


def test_an_older_agent_is_not_told(agent: AgentEnd) -> None:
    """It takes what it does not know for nonsense."""
    link = AgentClient.connect({"SPOTD_SOCKET": agent.path})
    assert link.wait_flag(10)
    link.at(7)
    link.send("progress", {})
    agent.wait("progress")
    link.close(exit_code=0)
    agent.wait("exit")
    assert "at" not in {message.kind for message in agent.messages}


def test_before_the_agent_speaks_it_is_as_it_said_at_the_start() -> None:
    until = str(time.monotonic() + 40)
    link = AgentClient.connect({"SPOTD_CLAIM": "after_release", "SPOTD_CLAIM_UNTIL": until})
    claim, left_s = link.claim_of()
    assert claim == "after_release"
    assert 30 < left_s <= 40
    assert not link.flag.stop
    link.close()


def test_without_an_agent_everything_works() -> None:
    link = AgentClient.connect({})
    link.send("progress", {})
    assert link.wait_flag(0)
    assert not link.flag.stop
    assert link.claim_of()[0] == "now"
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
        line = listener.accept()[0]
        started = time.monotonic()
        for step in range(QUEUE_LINES + 5000):
            link.send("progress", {"to_step": step, "losses": [0.5] * 20})
        link.close(timeout_s=0.3)
        assert time.monotonic() - started < 8
        line.close()


def test_nonsense_from_the_agent_breaks_the_line_only(
    agent: AgentEnd, capsys: pytest.CaptureFixture[str]
) -> None:
    link = AgentClient(agent.path, 0)
    assert link.wait_flag(10)
    agent.tell(save="many")
    until(lambda: "language" in capsys.readouterr().err)
    agent.flag["save"] = 7
    until(lambda: link.flag.save == 7)
    link.close()


def test_signals_set_flags_only() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    stop = StopRequests()
    try:
        stop.install()
        assert not stop.stopping
        assert not stop.take_saves()
        signal.raise_signal(signal.SIGUSR1)
        assert stop.take_saves()
        assert not stop.take_saves()
        assert not stop.stopping
        signal.raise_signal(signal.SIGTERM)
        assert stop.stopping
        assert stop.reason == "SIGTERM"
        assert stop.left_s is None
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGUSR1), before, strict=True):
            signal.signal(number, handler)


def test_the_flag_counts_like_a_signal(agent: AgentEnd) -> None:
    stop, link = StopRequests(), AgentClient(agent.path, 0)
    stop.listen(link)
    assert link.wait_flag(10)
    agent.tell(save=1)
    until(stop.take_saves)
    agent.tell(save=1)
    agent.tell(stop=True, deadline_s=60.0, reason="notice")
    until(lambda: stop.stopping)
    assert not stop.take_saves()
    assert stop.reason == "notice"
    assert stop.left_s is not None
    assert 50 < stop.left_s <= 60
    link.close()
