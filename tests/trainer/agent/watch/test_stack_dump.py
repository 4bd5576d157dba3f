"""Stacks of a process, by py-spy from outside or by its own handler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures.waiting import wait_until
from trainer.agent.process.processes import catches, identify
from trainer.agent.watch import stack_dump

HANGS = """
import faulthandler, signal, threading
{register}
def waits_for_ever():
    print("here", flush=True)
    threading.Event().wait()
waits_for_ever()
"""
REGISTER = "faulthandler.register(signal.SIGUSR2)"


OUTPUT = """\
Process 5078: /usr/bin/python3.11 /tmp/hangs.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 5078 (idle): "MainThread"
    Condition.wait (threading.py:320)
    Event.wait (threading.py:622)
    waits_for_ever (hangs.py:3)
    <module> (hangs.py:5)"""  # of py-spy 0.4.3


@pytest.fixture(autouse=True)
def no_other_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the machine's own py-spy, on PATH or beside its Python."""
    monkeypatch.setattr(stack_dump, "PY_SPY", "py-spy-of-this-test")


@contextmanager
def hanging(log: Path, register: str, **environ: str) -> Iterator[int]:
    """The id of a hanging Python process that writes to `log`."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", HANGS.format(register=register)],
            stdout=file,
            stderr=file,
            env={**os.environ, **environ},
        )
    try:
        wait_until("its first word", lambda: b"here" in log.read_bytes())
        yield process.pid
    finally:
        process.kill()
        process.wait()


def taken(pid: int, log: Path) -> list[stack_dump.StackDump]:
    process = identify(pid)
    assert process is not None
    return stack_dump.dump_stacks([process], log)


def py_spy(folder: Path, text: str) -> str:
    """A PATH with a py-spy that does what `text` tells it."""
    folder.mkdir()
    program = folder / stack_dump.PY_SPY
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o700)
    return f"{folder}:{os.environ['PATH']}"


def test_its_own_handler_writes_them_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("before\n")
    with hanging(log, REGISTER, RANK="3") as pid:
        (found,) = taken(pid, log)
    assert (found.rank, found.pid, found.how) == (3, pid, "faulthandler")
    assert "in waits_for_ever" in found.text
    assert "before" not in found.text


def test_one_without_a_handler_is_left_alone(tmp_path: Path) -> None:
    """The signal would end it."""
    log = tmp_path / "rank0.log"
    with hanging(log, "pass") as pid:
        assert not catches(pid, signal.SIGUSR2)
        assert taken(pid, log) == []
        assert identify(pid) is not None


def test_py_spy_is_asked_first_and_found_on_the_process_s_own_path(tmp_path: Path) -> None:
    recorded = f"cat <<'EOF'\n{OUTPUT}\nEOF"
    path = py_spy(tmp_path / "bin", f'[ "$1 $2" = "dump --pid" ] || exit 2\n{recorded}')
    log = tmp_path / "rank0.log"
    with hanging(log, REGISTER, PATH=path) as pid:
        (found,) = taken(pid, log)
    assert (found.how, found.rank, found.pid) == (stack_dump.PY_SPY, -1, pid)
    assert found.text == OUTPUT


@pytest.mark.parametrize("does", ["echo no permission >&2; exit 1", "exec sleep 60"])
def test_where_py_spy_cannot_its_own_handler_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    monkeypatch.setattr(stack_dump, "PY_SPY_S", 0.3)
    path = py_spy(tmp_path / "bin", does)
    log = tmp_path / "rank0.log"
    with hanging(log, REGISTER, PATH=path) as pid:
        (found,) = taken(pid, log)
    assert found.how == "faulthandler"
    assert "in waits_for_ever" in found.text


def test_one_that_writes_them_elsewhere_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_dump, "WRITE_S", 0.2)
    log = tmp_path / "rank0.log"
    elsewhere = f"faulthandler.register(signal.SIGUSR2, file=open({str(tmp_path / 'x')!r}, 'w'))"
    with hanging(log, elsewhere) as pid:
        (found,) = taken(pid, log)
    assert found.text == "(it wrote nothing to rank0.log within 0.2 s)"


def test_a_process_that_has_gone_has_none(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    with hanging(log, REGISTER) as pid:
        process = identify(pid)
    assert process is not None
    assert stack_dump.dump_stacks([process], log) == []
