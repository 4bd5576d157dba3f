"""How long an agent stays after its program has ended; here every clock reading is an hour
later."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from spotd import wire
from spotd.wire import AgentConfig, Command, Reply
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import Node
from trainer.agent.base.context import AgentContext
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.folders import make_folders
from trainer.agent.base.journal import Journal
from trainer.agent.base.notices import NoWatcher
from trainer.agent.base.paths import write_private
from trainer.agent.base.stop_timing import Stopping
from trainer.agent.main.agent import LINGER_S, Agent
from trainer.agent.main.control import send_command
from trainer.agent.run.journal_replay import JournalReplay


class Ended:
    """A restarted agent whose script has ended with 0 and is recorded; it runs in a thread."""

    def __init__(self, node: Node, num_nodes: int, *, stopped: bool = False) -> None:
        self._paths = paths = node.paths
        make_folders(paths)
        desired = DesiredState(paths.state)
        desired.stopping = Stopping("released", 0.0, 1.0, gentle=False) if stopped else None
        desired.accept(node.start_document(num_nodes=num_nodes), 0.0)
        ended = {"code": 0, "tail": "", "seconds": 1.0}
        write_private(paths.memory / "run.exit", json.dumps(ended).encode())
        self._hours = count()
        self.hours = 0
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
            monotonic=self._monotonic,
        )
        past = JournalReplay("boot", False, frozenset({wire.CLAIMED, wire.EXITED}), (), (), (), 0)
        agent = Agent(self.site, NoWatcher(), past)
        agent.announce(past)
        self.thread = threading.Thread(target=agent.run)
        self.thread.start()

    def _monotonic(self) -> float:
        self.hours = next(self._hours)
        return 3600.0 * self.hours

    def send(self, name: str, **data: object) -> Reply:
        return send_command(self._paths.control_socket, Command(name, 1, data).to_line(), 20.0)

    def has_left(self) -> bool:
        return not self.thread.is_alive()

    def stays(self) -> bool:
        """Whether it is still there after many times the usual time."""
        until = self.hours + 100 * LINGER_S / 3600
        wait_until("time to pass", lambda: self.has_left() or self.hours > until)
        return not self.has_left()


@contextmanager
def ended(node: Node, num_nodes: int, *, stopped: bool = False) -> Iterator[Ended]:
    agent = Ended(node, num_nodes, stopped=stopped)
    try:
        yield agent
    finally:
        agent.site.ended.set()
        agent.thread.join(LIMIT_S)
        agent.journal.close()


@pytest.mark.parametrize(("num_nodes", "stopped"), [(1, False), (2, True)])
def test_one_that_has_nothing_to_wait_for_leaves(
    node: Node, num_nodes: int, *, stopped: bool
) -> None:
    with ended(node, num_nodes, stopped=stopped) as agent:
        wait_until("the agent has left", agent.has_left)


@pytest.mark.parametrize("last_word", ["save", "stop"])
def test_rank_0_of_a_gang_stays_until_its_success_is_in_head(node: Node, last_word: str) -> None:
    with ended(node, 2) as agent:
        assert agent.stays(), "the slowest rank may need hours more"
        if last_word == "save":
            assert agent.send(wire.SAVE, final=True).ok
        else:
            assert agent.send(wire.STOP).ok
        wait_until("the agent has left", agent.has_left)
    head = node.head()
    assert (head is not None and head.final) is (last_word == "save")
