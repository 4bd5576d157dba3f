"""A program's exit and its last messages arrive separately; the messages are processed first."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd import wire
from spotd.wire import AgentConfig
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import Node
from trainer.agent.base.context import AgentContext
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.folders import make_folders
from trainer.agent.base.journal import Journal
from trainer.agent.base.notices import NoWatcher
from trainer.agent.base.paths import write_private
from trainer.agent.base.stop_timing import Stopping
from trainer.agent.main.agent import Agent
from trainer.agent.main.worker_link import WorkerLink
from trainer.agent.process import script_supervisor
from trainer.agent.run.journal_replay import JournalReplay
from trainer.agent.run.training import Phase
from trainer.hook.spotd_hook.agent_client import AgentClient


class Overtaken:
    """An agent that finds its script ended with `code` before it has read the program's messages.

    Its clock stands still.
    """

    def __init__(self, node: Node, code: int, *, stopped: bool) -> None:
        self.node = node
        self.now = 0.0
        paths = node.paths
        make_folders(paths)
        desired = DesiredState(paths.state)
        desired.stopping = Stopping("released", 0.0, 9.0, gentle=True) if stopped else None
        desired.accept(node.start_document(engine="spotd"), 0.0)
        ended = {"code": code, "tail": "", "seconds": 1.0}
        write_private(paths.memory / "run.exit", json.dumps(ended).encode())
        self.journal = Journal(paths.journal, paths.overflow, 1, now_us=lambda: 0)
        self.site = AgentContext(
            config=AgentConfig("test", "job-1", 1, 0, node.token, "none"),
            paths=paths,
            journal=self.journal,
            environ={},
            supervisor_argv=[],
            supervisor_env={},
            log_limit_bytes=1000,
            callbacks=queue.SimpleQueue(),
            ended=threading.Event(),
            now_us=lambda: 0,
            monotonic=lambda: self.now,
        )
        self._past = JournalReplay("boot", False, frozenset({wire.CLAIMED}), (), (), (), 0)
        self._agent = Agent(self.site, NoWatcher(), self._past)
        self._count_polls()
        self.thread = threading.Thread(target=self._agent.run)

    @property
    def lines(self) -> int:
        return self._agent._link.open_count

    def say(self, *kinds: str, exit_code: int) -> None:
        """Send the last message of rank 0."""
        link = AgentClient(str(self.node.paths.worker_socket), 0)
        for kind in kinds:
            link.send(kind, {"step": 5, "manifest": "m"})
        link.close(exit_code=exit_code, timeout_s=20.0)
        wait_until("the line to be known", lambda: self.lines)

    def look(self) -> None:
        """Let the agent check its script."""
        self._agent.announce(self._past)
        self.thread.start()
        self.turn()

    def turn(self) -> None:
        """Run one complete iteration of the loop and its consequences."""
        wanted = self.polls + 2  # the one under way may have begun before
        while self.polls < wanted:
            self._hand_over()
        self._hand_over()

    def _hand_over(self) -> None:
        """Wait until the loop has run all posted callbacks."""
        done = threading.Event()
        self.site.post(done.set)
        assert done.wait(LIMIT_S)

    def _count_polls(self) -> None:
        self.polls, training = 0, self._agent._training
        poll = training.poll

        def counted() -> None:
            poll()
            self.polls += 1

        training.poll = counted  # type: ignore[method-assign]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No message of a training process is processed before this is set."""
    free, hear = threading.Event(), WorkerLink._dispatch

    def wait_and_hear(link: WorkerLink, text: bytes) -> None:
        assert free.wait(LIMIT_S)
        hear(link, text)

    monkeypatch.setattr(WorkerLink, "_dispatch", wait_and_hear)
    return free


@pytest.fixture
def overtaken(node: Node, request: pytest.FixtureRequest) -> Iterator[Overtaken]:
    code, stopped = request.param
    found = Overtaken(node, code, stopped=stopped)
    try:
        yield found
    finally:
        found.site.ended.set()
        found.thread.join(LIMIT_S)
        found.journal.close()


@pytest.mark.parametrize(
    ("overtaken", "words", "exit_code"),
    [
        ((wire.EXIT_RELEASED, True), [wire.RELEASED], wire.EXIT_RELEASED),
        ((1, True), [], wire.EXIT_RELEASED),  # torchrun says 1 whatever its workers say
        ((1, False), [], wire.EXIT_FENCED),
    ],
    indirect=["overtaken"],
    ids=["released", "released-torchrun", "fenced-torchrun"],
)
def test_the_end_waits_for_the_last_words(
    overtaken: Overtaken, held: threading.Event, words: list[str], exit_code: int
) -> None:
    overtaken.say(*words, exit_code=exit_code)
    overtaken.look()
    assert wire.EXITED not in overtaken.node.kinds()
    held.set()
    exited = overtaken.node.wait_for(wire.EXITED)
    assert exited.data["code"] == exit_code
    assert exited.data["ranks"]["worker0"] == exit_code
    said = [kind for kind in overtaken.node.kinds() if kind != wire.WARNING]
    assert said == [*words, wire.EXITED]
    texts = [entry.data["text"] for entry in overtaken.node.entries(wire.WARNING)]
    assert texts == ["the node agent was started again"]


@pytest.mark.parametrize("overtaken", [(1, False)], indirect=True)
def test_words_that_come_while_the_agent_looks_count_too(
    overtaken: Overtaken, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    still_open = WorkerLink.open_count.fget
    assert still_open is not None

    def hang_up_now(link: WorkerLink) -> int:
        held.set()
        wait_until("the line to end", lambda: not still_open(link))
        return 0

    overtaken.say(exit_code=wire.EXIT_FENCED)
    monkeypatch.setattr(WorkerLink, "open_count", property(hang_up_now))
    overtaken.look()
    assert overtaken.node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FENCED


@pytest.mark.parametrize("overtaken", [(9, False)], indirect=True)
def test_a_line_that_stays_open_is_not_waited_for_long(
    overtaken: Overtaken, held: threading.Event
) -> None:
    overtaken.say(exit_code=9)
    overtaken.look()
    for now, ended in ((0.9, False), (1.0, True)):
        overtaken.now = now
        overtaken.turn()
        assert (wire.EXITED in overtaken.node.kinds()) is ended
    held.set()
    wait_until("the line to end", lambda: not overtaken.lines)


def test_a_supervisor_that_reads_late_still_has_the_last_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the time for late output may be over before the supervisor reads once."""
    monkeypatch.setattr(script_supervisor, "_QUIET_S", -1.0)
    order = script_supervisor.ScriptSpec([], "", {}, str(tmp_path / "log"), 1000, "", "", [])
    with subprocess.Popen(["echo", "cannot find it"], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        output = script_supervisor._Output(program.stdout.fileno(), order)
        script_supervisor._pump_while(program, output)
        assert output.tail() == "cannot find it\n"


def test_the_shells_are_held_before_the_program_is_asked_to_stop(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a program that ends at once, the script would run its next line."""
    overtaken = Overtaken(node, 0, stopped=False)
    agent, done = overtaken._agent, list[str]()
    monkeypatch.setattr(agent._training, "phase", Phase.RUNNING)
    monkeypatch.setattr(agent._training, "hold_shells", lambda *, end: done.append("held"))
    monkeypatch.setattr(agent._link, "publish", lambda: done.append("asked"))
    agent.stop("released", None)
    assert done == ["held", "asked"]
    overtaken.journal.close()
