"""Identify and signal the processes in a tree."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures.processes import command_line, state_of
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import is_running
from trainer.agent.process import processes
from trainer.agent.process.processes import (
    Process,
    descendants,
    hold_shells,
    identify,
    is_alive,
    kill_tree,
    send_signal,
    session_of,
    workers,
)
from trainer.agent.process.script import Script

SLEEP = "import time\nwhile True:\n    time.sleep(1)\n"
# Starts its arguments as a program and waits for it.
WRAP = "import subprocess, sys\nsys.exit(subprocess.call(sys.argv[1:]))\n"


@contextmanager
def started(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, start_new_session=True) as process:
        try:
            yield process
        finally:
            kill_tree(process.pid, process.pid)
            process.kill()


def names(found: list[Process]) -> list[str]:
    """Return the last argument of each."""
    lines = (command_line(process.pid) for process in found)
    return sorted(line.split(b"\0")[-2].decode() for line in lines if line)


def test_a_process_is_known_by_its_start_as_well() -> None:
    with started("sleep", "1000") as process:
        found = identify(process.pid)
        assert found is not None
        assert is_alive(found)
        other = Process(found.pid, found.started + 1)
        assert not is_alive(other)
        assert not send_signal(other, signal.SIGKILL)
        assert is_running(process.pid)
        assert send_signal(found, signal.SIGKILL)
        wait_until("it is dead", lambda: not is_alive(found))  # unreaped, it has its pid still
        assert not send_signal(found, signal.SIGTERM)
    assert identify(process.pid) is None


@pytest.mark.parametrize(
    "launcher",
    [
        ["torchrun"],
        ["accelerate"],
        [sys.executable, "-u", "torchrun"],
        [sys.executable, "-m", "torch.distributed.run"],
        [sys.executable, "-m", "torch.distributed.launch"],
        ["bash"],
    ],
    ids=lambda argv: " ".join(Path(word).name for word in argv),
)
def test_launchers_and_shells_are_passed_through(tmp_path: Path, launcher: list[str]) -> None:
    train = tmp_path / "train.py"
    # A trainer with a data loader of its own.
    train.write_text(f"import subprocess, sys\nsubprocess.call([sys.executable, '-c', {SLEEP!r}])")
    wrap = tmp_path / "torchrun"
    wrap.write_text(f"#!{sys.executable}\n{WRAP}")
    wrap.chmod(0o755)
    (tmp_path / "accelerate").symlink_to(wrap)
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    for name in ("__init__.py", "../__init__.py"):
        (package / name).touch()
    for name in ("run.py", "launch.py"):
        (package / name).write_text(WRAP)
    script = f"cd {tmp_path}; PYTHONPATH={tmp_path} PATH={tmp_path}:$PATH "
    if launcher == ["bash"]:
        script += f"bash -c '{sys.executable} {train} one; true'; true"
    else:
        script += f"{' '.join(launcher)} {sys.executable} {train} one; true"
    with started("bash", "-c", script) as process:
        wait_until("the tree is up", lambda: SLEEP in names(descendants(process.pid)))
        assert names(workers(process.pid, signal.SIGTERM)) == ["one"]


HEARS = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
Path(sys.argv[1]).touch()
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(WRAP, id="subprocess.call"),
        pytest.param(
            "import subprocess, sys\n"
            "subprocess.run(['sh', '-c', ' '.join(sys.argv[1:]) + '; true'])",
            id="a shell of its own",
        ),
        pytest.param(
            "import os, sys\nif (pid := os.fork()): os.waitpid(pid, 0)\n"
            "else: os.execv(sys.argv[1], sys.argv[1:])",
            id="fork and exec",
        ),
    ],
)
def test_a_launcher_in_no_list_is_known_by_what_it_does(tmp_path: Path, wrap: str) -> None:
    """The program that it waits for handles the signal, and it does not."""
    (tmp_path / "wrapper.py").write_text(wrap)
    (tmp_path / "train.py").write_text(HEARS)
    up = tmp_path / "up"
    line = f"{sys.executable} {tmp_path}/wrapper.py {sys.executable} {tmp_path}/train.py {up}; true"
    with started("bash", "-c", line) as process:
        wait_until("it is up", up.exists)
        assert names(workers(process.pid, signal.SIGTERM)) == [str(up)]
        found = workers(process.pid, signal.SIGTERM)
        assert b"train.py" in command_line(found[0].pid).split(b"\0")[1]


def test_a_program_that_works_itself_is_signalled_and_not_what_helps_it(tmp_path: Path) -> None:
    """A tracker of experiments beside the training, which handles the signal."""
    up = tmp_path / "up"
    (tmp_path / "tracker.py").write_text(HEARS)
    (tmp_path / "train.py").write_text(
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, {str(tmp_path / 'tracker.py')!r}, {str(up)!r}])\n"
        "while time.process_time() < 2: pass\n"
        f"open({str(tmp_path / 'worked')!r}, 'w').close()\n"
        "time.sleep(1000)\n"
    )
    with started("bash", "-c", f"{sys.executable} {tmp_path}/train.py one; true") as process:
        wait_until("both are up", lambda: up.exists() and (tmp_path / "worked").exists())
        assert names(workers(process.pid, signal.SIGTERM)) == ["one"]


def test_forks_and_helpers_of_a_program_are_its_own(tmp_path: Path) -> None:
    up = tmp_path / "up"
    (tmp_path / "train.py").write_text(
        "import multiprocessing, signal, sys, time\n"
        "def load():\n"
        "    signal.signal(signal.SIGTERM, lambda *_: None)\n"
        f"    open({str(up)!r} + sys.argv[1], 'w').close()\n"
        "    time.sleep(1000)\n"
        "if __name__ == '__main__':\n"
        "    multiprocessing.set_start_method(sys.argv[1])\n"
        "    multiprocessing.Process(target=load).start()\n"
        "    time.sleep(1000)\n"
    )
    for method in ("fork", "spawn"):
        line = f"{sys.executable} {tmp_path}/train.py {method}; true"
        with started("bash", "-c", line) as process:
            wait_until("its loader is up", (tmp_path / f"up{method}").exists)
            assert names(workers(process.pid, signal.SIGTERM)) == [method]


def test_an_ordinary_program_is_a_worker_and_its_children_are_its_own(tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text(f"import subprocess, sys\nsubprocess.call([sys.executable, '-c', {SLEEP!r}])")
    with started("bash", "-c", f"{sys.executable} -m train torchrun & wait; true") as process:
        # A module called train, given "torchrun" as an argument, in a folder where it is not found.
        assert process.wait() == 0
    with started("bash", "-c", f"{sys.executable} {train} torchrun; true") as process:
        wait_until("the tree is up", lambda: SLEEP in names(descendants(process.pid)))
        assert names(workers(process.pid, signal.SIGTERM)) == ["torchrun"]


def test_a_shell_counts_when_it_has_a_trap_or_nobody_below() -> None:
    trap = "trap 'exit 3' TERM; sleep 1000 & wait"
    with started("bash", "-c", f"bash -c {trap!r} first; true".replace("'", '"', 0)) as process:
        wait_until("sleep is up", lambda: "1000" in names(descendants(process.pid)))
        found = names(workers(process.pid, signal.SIGTERM))
        assert found == ["1000", "first"]
        assert names(workers(process.pid, signal.SIGUSR1)) == ["1000"]
    with started("bash", "-c", "bash -c 'read < /dev/zero' alone; true") as process:
        wait_until("it is up", lambda: "alone" in names(descendants(process.pid)))
        assert names(workers(process.pid, signal.SIGTERM)) == ["alone"]


def test_only_shells_that_leave_sigterm_to_the_system_are_held() -> None:
    script = """
        bash -c "trap '' TERM; sleep 1001; true" ignores &
        bash -c "trap 'exit 3' TERM; sleep 1002; true" traps &
        sleep 1003 | bash -c "read word; true" reads &
        bash -c "sleep 1004; true" held &
        wait
    """
    with started("bash", "-c", script) as process:
        below = ["1001", "1002", "1003", "1004", "held", "ignores", "reads", "traps"]
        wait_until("all are up", lambda: names(descendants(process.pid)) == below)
        hold_shells(process.pid)
        wait_until("it is held", lambda: "held" in names(stopped(process.pid)))
        assert names(stopped(process.pid)) == ["held"]


def stopped(root: int) -> list[Process]:
    return [process for process in descendants(root) if state_of(process.pid) == "T"]


def test_a_tree_is_killed_with_what_left_it(tmp_path: Path) -> None:
    """Each process starts the next one and ends, so that two scans see different processes."""
    runner = tmp_path / "runner.py"
    runner.write_text(
        "import os, time\n"
        "while True:\n"
        "    time.sleep(0.005)\n"
        "    if os.fork():\n"
        "        os._exit(0)\n"
    )
    for _ in range(10):
        with started(sys.executable, str(runner)) as process:
            wait_until("it has moved on", lambda: process.poll() is not None)
            assert kill_tree(process.pid, process.pid) >= 1
            wait_until("nothing is left", lambda: not descendants(process.pid, process.pid))


def test_a_session_outlives_its_leader_and_is_not_a_stranger_s() -> None:
    with started("bash", "-c", "trap 'exit 3' TERM; sleep 1000 & wait") as process:
        leader = identify(process.pid)
        assert leader is not None
        wait_until("sleep is up", lambda: "1000" in names(descendants(process.pid)))
        process.terminate()
        assert process.wait() == 3
        assert session_of(leader) == process.pid, "what it left is there still"
        assert kill_tree(0, session_of(leader)) == 1
        wait_until("nobody is left", lambda: not session_of(leader))
    with started("sleep", "1000") as process:
        earlier = Process(process.pid, 1)  # had this id before
        assert session_of(earlier) == 0
        found = identify(process.pid)
        assert found is not None
        assert session_of(found) == process.pid


def test_what_belongs_to_another_user_does_not_save_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As below `sudo docker run`: the other processes were stopped, and must not stay stopped."""
    opened: dict[int, int] = {}
    pidfd_open, pidfd_send, killpg = os.pidfd_open, signal.pidfd_send_signal, os.killpg

    def remember(pid: int) -> int:
        handle = pidfd_open(pid)
        opened[handle] = pid
        return handle

    def refuse(handle: int, number: int) -> None:
        if opened[handle] == foreign.pid:
            raise PermissionError("not yours")
        pidfd_send(handle, number)

    def refuse_group(group: int, number: int) -> None:
        if group == foreign.pid:
            raise PermissionError("not yours")
        killpg(group, number)

    script = "setsid sleep 1000 & sleep 1001 & wait; true"
    with started("bash", "-c", script) as process:
        wait_until("both are up", lambda: names(descendants(process.pid)) == ["1000", "1001"])
        foreign, own = sorted(descendants(process.pid), key=lambda p: names([p]))
        monkeypatch.setattr(os, "pidfd_open", remember)
        monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
        monkeypatch.setattr(os, "killpg", refuse_group)
        monkeypatch.setattr(os, "getuid", lambda: 0)  # who has nobody to ask
        try:
            assert not send_signal(foreign, signal.SIGTERM)
            kill_tree(process.pid, process.pid)
            assert process.wait(LIMIT_S) == -signal.SIGKILL
            wait_until("the rest is gone", lambda: not is_alive(own))
            assert is_alive(foreign)
        finally:
            monkeypatch.undo()
            send_signal(foreign, signal.SIGKILL)


def test_what_is_roots_is_signalled_and_looked_at_through_sudo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a docker container, on a machine where the agent's user may use sudo."""
    log = tmp_path / "log"
    sudo = tmp_path / "sudo"
    pipe = '[ "$1" = readlink ] && echo "pipe:[1]" && exit'
    sudo.write_text(f'#!/bin/sh\necho "$*" >>{log}\nshift\n{pipe}\nexec "$@"\n')
    sudo.chmod(0o755)

    def refuse(*_: object) -> None:
        raise PermissionError("not yours")

    with started("sleep", "1000") as process:
        asleep = identify(process.pid)
        assert asleep is not None
        monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
        monkeypatch.setattr(Path, "readlink", refuse)
        monkeypatch.setattr(os, "getuid", lambda: 0)
        assert not send_signal(asleep, signal.SIGTERM), "root has nobody to ask"
        assert not processes._reads_pipe(process.pid)
        monkeypatch.setattr(os, "getuid", lambda: 1000)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert processes._reads_pipe(process.pid)
        assert send_signal(asleep, signal.SIGTERM)
        assert process.wait(LIMIT_S) == -signal.SIGTERM
    monkeypatch.undo()
    asked = [f"-n readlink /proc/{process.pid}/fd/0", f"-n kill -s 15 -- {asleep.pid}"]
    assert log.read_text().splitlines() == asked


def test_a_script_that_is_long_gone_is_not_killed_by_its_numbers(tmp_path: Path) -> None:
    """The ids of the supervisor and the script belong to other processes by now."""
    with started("bash", "-c", "sleep 1000; true") as keeper, started("sleep", "1000") as program:
        wait_until("its child is up", lambda: "1000" in names(descendants(keeper.pid)))
        pids = {"keeper": [keeper.pid, 1], "program": [program.pid, 1]}
        (tmp_path / "run.proc").write_text(json.dumps(pids))
        (tmp_path / "run.ordered").write_text(json.dumps(pids["keeper"]))
        script = Script(tmp_path / "run", [], {})
        assert script.kill() == 0
        (tmp_path / "run.proc").unlink()
        assert script.kill() == 0
        assert keeper.poll() is None
        assert program.poll() is None
