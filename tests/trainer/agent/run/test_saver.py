"""The saver beside the program: staged data is saved, whatever happens to the program."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.sockets import accepts
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node, is_running
from trainer.agent.base.pythons import SAVER_PYTHON, find_python
from trainer.agent.process.script_supervisor import ScriptPids
from trainer.agent.run.saver import LAST_WORDS_S

PROGRAM = f"{shlex.quote(sys.executable)} {Path(__file__).parents[1] / 'staging.py'}"


def saver(node: Node) -> ScriptPids:
    found: ScriptPids = wait_until("a saver", lambda: node.pids("saver"))
    return found


@contextlib.contextmanager
def held_up(node: Node) -> Iterator[None]:
    """The store accepts no conditional write meanwhile."""
    folder = node.store_root / ".store"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_program_of_our_engine_has_a_saver_that_ends_with_it(node: Node) -> None:
    node.run()
    node.start(run=f"{PROGRAM} --steps 3", engine="spotd")
    exited = node.wait_for(wire.EXITED)
    assert exited.data["code"] == wire.EXIT_FINISHED, node.log()
    assert [entry.data["step"] for entry in node.entries(wire.CHECKPOINT)] == [1, 2, 3]
    assert node.entries(wire.CHECKPOINT)[-1].data["final"]
    assert not is_running(saver(node).program.pid)
    assert node.entries(wire.WARNING) == []


@pytest.mark.req("CKP-15")
def test_a_program_that_is_killed_after_staging_has_saved(node: Node, tmp_path: Path) -> None:
    node.environ["WAIT_FOR"] = str(tmp_path / "go")
    node.run()
    node.start(run=f"exec {PROGRAM} --steps 3 --die", engine="spotd")
    node.wait_for_log("steps")
    with held_up(node):
        (tmp_path / "go").touch()
        wait_until("the program is gone", lambda: not node.is_program_alive())
        time.sleep(LAST_WORDS_S + 0.5)  # in which it would have ended before its save
        assert wire.EXITED not in node.kinds()
    exited = node.wait_for(wire.EXITED)
    saves = node.entries(wire.CHECKPOINT)
    assert saves[-1].data["step"] == 3
    assert saves[-1].seq < exited.seq
    assert exited.data["code"] == 128 + signal.SIGKILL
    head = node.head()
    assert head is not None
    assert head.current is not None
    assert head.current.step == 3


def test_a_saver_that_cannot_save_is_ended_in_time(node: Node, tmp_path: Path) -> None:
    node.environ["WAIT_FOR"] = str(tmp_path / "go")
    node.run()
    node.start(run=f"exec {PROGRAM} --steps 3 --die", engine="spotd", stop_grace_s=1.0)
    node.wait_for_log("steps")
    with held_up(node):
        (tmp_path / "go").touch()
        wait_until("the program is gone", lambda: not node.is_program_alive())
        node.send(wire.DRAIN, {"reason": "a notice", "deadline_s": 2.0})
        exited = node.wait_for(wire.EXITED)
        assert not is_running(saver(node).program.pid)
    assert exited.data["code"] == wire.EXIT_RELEASED
    assert node.entries(wire.CHECKPOINT)[-1].data["step"] == 2


def test_an_agent_that_was_killed_finds_the_saver_again(node: Node, tmp_path: Path) -> None:
    node.environ["WAIT_FOR"] = str(tmp_path / "go")
    node.run()
    node.start(run=f"exec {PROGRAM} --steps 3 --die", engine="spotd")
    node.wait_for_log("steps")
    running = saver(node)
    with held_up(node):
        (tmp_path / "go").touch()
        wait_until("the program is gone", lambda: not node.is_program_alive())
        node.kill_agent()
        node.run()
        time.sleep(LAST_WORDS_S + 0.5)
        assert wire.EXITED not in node.kinds()
        assert is_running(running.program.pid)
    exited = node.wait_for(wire.EXITED)
    saves = node.entries(wire.CHECKPOINT)
    assert saves[-1].data["step"] == 3
    assert saves[-1].seq < exited.seq


def test_a_saver_that_is_killed_is_replaced(node: Node, tmp_path: Path) -> None:
    node.run()
    node.start(run=f"exec {PROGRAM} --steps 3 --linger", engine="spotd", stop_grace_s=20.0)
    node.wait_for_log("steps")
    first = saver(node)
    os.kill(first.program.pid, signal.SIGKILL)
    wait_until("it is gone", lambda: not is_running(first.program.pid))
    node.send(wire.DRAIN, {"reason": "paused"})
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED, node.log()
    failed = node.entries(wire.CHECKPOINT_FAILED)
    assert "the saver is gone" in failed[0].data["error"]
    assert node.entries(wire.CHECKPOINT)[-1].data["step"] == 3
    assert node.entries(wire.RELEASED)[0].data["step"] == 3
    assert saver(node) != first


def test_of_a_job_that_goes_on_the_saver_is_there_before_the_program(
    node: Node, tmp_path: Path
) -> None:
    node.run()
    node.start(run=f"{PROGRAM} --steps 3 --linger", engine="spotd", stop_grace_s=20.0)
    node.wait_for_log("steps")
    node.send(wire.DRAIN, {"reason": "paused"})
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED, node.log()
    go_on = tmp_path / "go"
    with Node(tmp_path / "next", generation=2) as after:
        after.run()
        setup = f"while [ ! -e {go_on} ]; do sleep 0.01; done"
        start = {"engine": "spotd", "head_generation": 1, "setup": setup}
        after.start(run=f"{PROGRAM} --steps 5", **start)
        early = saver(after)
        wait_until("it accepts", lambda: accepts(after.paths.saver_socket))
        assert wire.STARTED not in after.kinds()
        go_on.touch()
        assert after.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED, after.log()
        assert saver(after) == early
        assert "from 3" in after.log()
        assert after.entries(wire.WARNING) == []


def test_one_that_ends_before_the_program_asks_is_replaced(node: Node, tmp_path: Path) -> None:
    own = node.home / ".spotd" / SAVER_PYTHON
    own.parent.mkdir(parents=True)
    own.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    own.chmod(0o700)
    assert find_python(node.home / ".spotd", "s3://bucket") == str(own)
    node.run()
    node.start(run=f"{PROGRAM} --steps 3", engine="spotd", head_generation=1)
    failed = node.wait_for(wire.EXITED)
    assert failed.data["code"] != 0  # that HEAD is gone is said by the saver of the program
    assert "is missing" in node.log()
