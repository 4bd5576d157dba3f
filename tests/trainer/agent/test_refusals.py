"""Errors of the machine (no memory, no disk space) never end the agent."""

from __future__ import annotations

import errno
import json
import os
import queue
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from providers.base import Notice, NoticeKind
from spotd import wire
from spotd.wire import AgentConfig, Command, JournalEntry, Reply
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import Node, is_running
from trainer.agent.base.context import AgentContext
from trainer.agent.base.desired_state import load_desired_state
from trainer.agent.base.folders import make_folders
from trainer.agent.base.journal import Journal
from trainer.agent.base.notices import NoWatcher
from trainer.agent.base.paths import write_private
from trainer.agent.main.agent import Agent
from trainer.agent.main.control import send_command
from trainer.agent.process.script_supervisor import PreallocatedFile
from trainer.agent.run.journal_replay import JournalReplay

WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).with_name('worker.py')}"


def refuse(path: Path) -> Path:
    """Make the file `path` unwritable, even for root, until the result is removed."""
    blocked = path.with_name(path.name + ".new")
    blocked.mkdir()
    return blocked


def test_a_stop_that_cannot_be_kept_in_memory_is_carried_out(node: Node) -> None:
    node.run()
    node.start(run="trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    node.wait_for_log("up")
    pid = node.agent_pid
    refuse(node.paths.state)
    assert node.send(wire.DRAIN, {"reason": "paused", "deadline_s": 20.0}).ok
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    assert "saved" in node.log()
    assert (node.agent_pid, is_running(pid)) == (pid, True)
    assert node.paths.agent_log.read_text().count("cannot be saved for a restart") == 1


def test_what_was_asked_is_kept_when_there_is_room_again(node: Node) -> None:
    node.run()
    node.start(run=WORKER, engine="spotd")
    node.wait_for(wire.PROGRESS)
    blocked = refuse(node.paths.state)
    node.send(wire.SAVE)
    node.wait_for_log("save 1")
    assert load_desired_state(node.paths.state).saves == 0
    blocked.rmdir()
    wait_until("it is written", lambda: load_desired_state(node.paths.state).saves == 1)


def test_a_file_that_does_not_fit_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    write_private(tmp_path / "state.json", b"as it was")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_private(tmp_path / "state.json", b"secret")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"as it was"]


def test_how_a_script_ends_has_its_room_from_the_beginning(node: Node) -> None:
    """Training may fill memory, and exit 0 must not be reported as the death of its supervisor."""
    node.run()
    node.start(run="echo up; until [ -e go ]; do sleep 0.02; done; exit 3")
    node.wait_for(wire.STARTED)
    exited = node.paths.memory / "run.exit"
    reserved = exited.with_name("run.exit.new").stat()
    assert reserved.st_blocks * 512 >= 6 * 2048, "the longest tail, every byte of it escaped"
    (node.paths.workdir / "go").touch()
    assert node.wait_for(wire.EXITED).data["code"] == 3
    assert exited.stat().st_ino == reserved.st_ino, "the same file: nothing new was needed"


def test_a_record_is_read_when_it_is_whole(tmp_path: Path) -> None:
    record = PreallocatedFile(tmp_path / "run.exit")
    assert not (tmp_path / "run.exit").exists()
    record.put({"code": 0})
    assert json.loads((tmp_path / "run.exit").read_bytes()) == {"code": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["run.exit"]


def test_a_script_that_cannot_begin_is_told_and_not_tried_for_ever(node: Node) -> None:
    node.run()
    refuse(node.paths.memory / "run.exit")
    node.start(run="echo ran")
    exited = node.wait_for(wire.EXITED).data
    assert exited["code"] == 1
    assert "should start run ends at once: see agent.log" in exited["tail"]
    assert node.paths.agent_log.read_text().count("spot-node keep: ") == 3
    assert node.log() == ""
    assert is_running(node.agent_pid)


def test_an_order_that_cannot_be_written_is_tried_again(node: Node) -> None:
    node.run()
    blocked = refuse(node.paths.memory / "run.ordered")
    node.start(run="echo ran; exit 3")
    log = node.paths.agent_log
    wait_until("the refusal", lambda: "run cannot be started" in log.read_text())
    for _ in range(5):  # however often it is looked at: each command is a turn of the loop
        assert node.send(wire.SAVE).ok
    blocked.rmdir()
    assert node.wait_for(wire.EXITED).data["code"] == 3
    assert node.log() == "ran\n"
    assert log.read_text().count("run cannot be started") == 1


def test_an_agent_starts_where_its_number_cannot_be_written(node: Node) -> None:
    node.paths.pid.mkdir(parents=True)
    pid = node.run()["pid"]
    try:
        assert is_running(pid)
        assert node.run() == {"started": False, "pid": pid}
    finally:
        os.kill(pid, signal.SIGKILL)
        node.paths.pid.rmdir()


def test_folders_are_made_where_their_mark_cannot_be_written(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "write_text", full)
    make_folders(node.paths)
    assert node.paths.memory.is_dir()


class Witness(Journal):
    """Runs `look` before each entry is written, and records the results."""

    def __init__(self, node: Node) -> None:
        paths = node.paths
        super().__init__(paths.journal, paths.overflow, 1, now_us=lambda: 0)
        self.look: Any = lambda: None
        self.seen: list[tuple[str, Any]] = []

    def append(self, kind: str, data: Mapping[str, Any] | None = None) -> JournalEntry:
        self.seen.append((kind, self.look()))
        return super().append(kind, data)


class Built:
    """An agent in this process that does not run yet."""

    def __init__(self, node: Node) -> None:
        self.paths = node.paths
        make_folders(node.paths)
        self.journal = Witness(node)
        self.site = AgentContext(
            config=AgentConfig("test", "job-1", 1, 0, node.token, "none"),
            paths=node.paths,
            journal=self.journal,
            environ=node.env,
            supervisor_argv=[str(node.home / "missing")],
            supervisor_env={},
            log_limit_bytes=1000,
            callbacks=queue.SimpleQueue(),
            ended=threading.Event(),
            now_us=lambda: 0,
            monotonic=lambda: 100.0,
        )
        self.agent = Agent(
            self.site, NoWatcher(), JournalReplay("boot", True, frozenset(), (), (), (), 0)
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.agent.run)
        thread.start()
        try:
            yield
            assert thread.is_alive()
        finally:
            self.site.ended.set()
            self.site.post(lambda: None)
            thread.join(LIMIT_S)

    def send(self, name: str, **data: object) -> Reply:
        return send_command(self.paths.control_socket, Command(name, 1, data).to_line(), 20.0)


@pytest.fixture
def built(node: Node) -> Built:
    return Built(node)


def test_an_error_of_the_machine_ends_nothing_and_is_on_record_once(
    node: Node, built: Built
) -> None:
    def refused() -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with built.running():
        built.site.post(refused)
        built.site.post(refused)
        assert built.send(wire.SAVE).ok
    texts = [entry.data["text"] for entry in node.entries(wire.WARNING)]
    assert len(texts) == 2
    assert "No such file" in texts[0], "a supervisor cannot be started ahead of time"
    assert "no space left" in texts[1]


def test_training_is_told_before_anything_is_written(built: Built) -> None:
    """A disk that is writing a checkpoint, and full memory, both take time."""
    heard: list[Any] = []

    def listen() -> bool:
        line.setblocking(False)
        with suppress(BlockingIOError):
            heard.append(json.loads(line.recv(4096).splitlines()[-1]))
        return bool(heard and heard[-1]["flag"]["stop"])

    with socket.socket(socket.AF_UNIX) as line, built.running():
        line.connect(str(built.paths.worker_socket))
        line.sendall(wire.encode({"hello": {"rank": 0, "pid": 1}}))
        heard.append(json.loads(line.recv(4096)))
        assert not heard[0]["flag"]["stop"]
        built.journal.look = listen
        blocked = refuse(built.paths.state)
        assert built.send(wire.DRAIN, reason="paused").ok
        blocked.rmdir()
    assert (wire.DRAINING, True) in built.journal.seen


def test_the_loop_hears_of_a_notice_before_the_disk_does(built: Built) -> None:
    built.journal.look = built.site.callbacks.empty
    built.agent.on_notice(Notice("n", NoticeKind.PREEMPT, 5))
    assert built.journal.seen == [(wire.NOTICE, False)]
