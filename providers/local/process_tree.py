"""The processes of one machine: find them all, stop them, kill them, and see that none is left.

A machine's root process is a child subreaper, so that whatever detaches itself (double fork, new
session) still hangs below the root and is found by walking parent ids in /proc. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_DEAD = frozenset("ZX")
_STOPPED = frozenset("Tt")
_STILL = _STOPPED | _DEAD
_CHILDREN = Path("/proc/thread-self/children")  # not in every kernel


class TreeError(Exception):
    """Processes of a machine could not be stopped or killed in time."""


@dataclass(frozen=True)
class Process:
    """One row of /proc. `started` (clock ticks since boot) tells a reused id apart."""

    pid: int
    parent: int
    state: str
    started: int


def become_root(name: str) -> None:
    """Make the calling process the root of a machine: adopt orphans, and be called `name` in ps."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot become a child subreaper: {os.strerror(number)}")
    libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def read_process(pid: int) -> Process | None:
    """One process, or None when there is none by that id."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    rest = text[text.rindex(")") + 2 :].split()  # the name may hold spaces and brackets
    return Process(pid, int(rest[1]), rest[0], int(rest[19]))


def descendants(root: int, *, thorough: bool = False) -> dict[int, Process]:
    """Every process below `root`, without `root` itself.

    The quick way reads the kernel's lists of children, which are exact for what is stopped; the
    thorough way reads the whole process table, and is exact however much is going on.
    """
    found: dict[int, Process] = {}
    table = _children_by_parent() if thorough or not _CHILDREN.exists() else None
    todo = [root]
    while todo:
        pid = todo.pop()
        for process in _children(pid) if table is None else table.get(pid, ()):
            found[process.pid] = process
            todo.append(process.pid)
    return found


def _children(pid: int) -> list[Process]:
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  there are many to read
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                row = Path(f"/proc/{pid}/task/{thread}/children").read_text("ascii")
                found += [p for child in row.split() if (p := read_process(int(child)))]
    return found


def _children_by_parent() -> dict[int, list[Process]]:
    table: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and (process := read_process(int(name))):
            table.setdefault(process.parent, []).append(process)
    return table


def marked(variable: str, value: str) -> dict[int, Process]:
    """Every process of ours whose environment carries `variable=value`: for a tree without root."""
    wanted = f"{variable}={value}".encode()
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                process = read_process(int(name))
                if process and process.state not in _DEAD:
                    found[process.pid] = process
    return found


def send(pids: Iterable[int], number: int) -> None:
    """Signal each process; one that is gone already is fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stop_tree(root: int, *, with_root: bool = True, timeout_s: float = 5.0) -> set[int]:
    """SIGSTOP everything until nothing new appears and nothing runs. Returns the stopped ids.

    A process that is being stopped may still finish one fork, so the walk is repeated until two
    rounds agree. Raises TreeError when that takes longer than `timeout_s`.
    """
    end = time.monotonic() + timeout_s
    before: set[int] = set()
    while True:
        tree = descendants(root)
        if with_root and (top := read_process(root)):
            tree[root] = top
        running = {pid for pid, p in tree.items() if p.state not in _STILL}
        # One that waits for a child which is stopped before it came to its own program (vfork)
        # stops before it does anything, and not earlier.
        parents = {p.parent for p in tree.values() if p.state in _STOPPED}
        waiting = {pid for pid in running & parents if tree[pid].state == "D"}
        send(waiting, signal.SIGSTOP)
        running -= waiting
        alive = {pid for pid, p in tree.items() if p.state not in _DEAD}
        if not running and alive == before:
            return alive
        send(running, signal.SIGSTOP)
        before = alive
        if time.monotonic() > end:
            raise TreeError(f"processes under {root} do not stop: {sorted(running)}")
        if running:
            time.sleep(0.001)


def continue_tree(root: int) -> None:
    """Let a stopped tree run again."""
    send([*descendants(root), root], signal.SIGCONT)


def kill_below(root: int, *, timeout_s: float = 10.0) -> None:
    """SIGKILL everything below `root` until nothing is left alive. Raises TreeError on time-out.

    The dead are not waited for here: `root`, or who adopts from it, reaps them.
    """
    end = time.monotonic() + timeout_s
    thorough = False
    while True:
        tree = descendants(root, thorough=thorough).values()
        alive = {process.pid for process in tree if process.state not in _DEAD}
        if not alive and thorough:
            return
        send(alive, signal.SIGKILL)
        if time.monotonic() > end:
            raise TreeError(f"processes under {root} do not die: {sorted(alive)}")
        thorough = not alive
        time.sleep(0.002 if alive else 0.0)


def kill_tree(root: int, *, timeout_s: float = 10.0) -> bool:
    """Stop, then kill everything below `root`, then `root`; returns when `root` is dead too.

    False when `root` had died before: then what was below it hangs elsewhere.
    """
    there = root in stop_tree(root)
    kill_below(root, timeout_s=timeout_s)
    send([root], signal.SIGKILL)
    wait_dead([root], timeout_s=timeout_s)
    return there


def kill_marked(variable: str, value: str, *, timeout_s: float = 10.0) -> None:
    """Kill what a machine left behind whose root died by itself. Raises TreeError on time-out."""
    end = time.monotonic() + timeout_s
    while found := marked(variable, value):
        send(found, signal.SIGKILL)
        if time.monotonic() > end:
            raise TreeError(f"processes with {variable}={value} do not die: {sorted(found)}")
        time.sleep(0.002)


def wait_dead(pids: Iterable[int], *, timeout_s: float) -> None:
    """Return when each process is gone or a zombie waiting to be reaped, else raise TreeError."""
    end = time.monotonic() + timeout_s
    for pid in pids:
        while (process := read_process(pid)) and process.state not in _DEAD:
            if time.monotonic() > end:
                raise TreeError(f"process {pid} does not die (state {process.state})")
            time.sleep(0.002)
