"""Find, stop and kill all processes of a machine. Linux only.

A machine's root process is a child subreaper: detached processes (double fork, new session) remain
its descendants and are found by walking parent ids in /proc.
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
_NOT_RUNNING = _STOPPED | _DEAD
_CHILDREN = Path("/proc/thread-self/children")  # not every kernel has it


class TreeError(Exception):
    """Processes of a machine could not be stopped or killed in time."""


@dataclass(frozen=True)
class Process:
    """A process in /proc. `started` (clock ticks since boot) distinguishes a reused id."""

    pid: int
    parent: int
    state: str
    started: int


def become_root(name: str) -> None:
    """Make the calling process the root of a machine: adopt orphans, and set its name for ps.

    Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot become a child subreaper: {os.strerror(number)}")
    libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def read_process(pid: int) -> Process | None:
    """The process, or None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    rest = text[text.rindex(")") + 2 :].split()  # the name may contain spaces and parentheses
    return Process(pid, int(rest[1]), rest[0], int(rest[19]))


def descendants(root: int, *, thorough: bool = False) -> dict[int, Process]:
    """All descendants of `root`, without `root` itself.

    By default reads the kernel's lists of children, which are exact only for stopped processes;
    with `thorough` reads the whole process table, which is always exact.
    """
    tree: dict[int, Process] = {}
    table = _children_by_parent() if thorough or not _CHILDREN.exists() else None
    todo = [root]
    while todo:
        pid = todo.pop()
        for process in _children(pid) if table is None else table.get(pid, ()):
            tree[process.pid] = process
            todo.append(process.pid)
    return tree


def _children(pid: int) -> list[Process]:
    children = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  there are many to read
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                row = Path(f"/proc/{pid}/task/{thread}/children").read_text("ascii")
                children += [p for child in row.split() if (p := read_process(int(child)))]
    return children


def _children_by_parent() -> dict[int, list[Process]]:
    table: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and (process := read_process(int(name))):
            table.setdefault(process.parent, []).append(process)
    return table


def find_with_environment(variable: str, value: str) -> dict[int, Process]:
    """All our processes with `variable=value` in their environment; works without a tree root."""
    wanted = f"{variable}={value}".encode()
    processes = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                process = read_process(int(name))
                if process and process.state not in _DEAD:
                    processes[process.pid] = process
    return processes


def send(pids: Iterable[int], number: int) -> None:
    """Signal each process; ended ones are ignored."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stop_tree(root: int, *, with_root: bool = True, timeout_s: float = 5.0) -> set[int]:
    """SIGSTOP the whole tree; return the ids of its live processes.

    A process may still finish a fork while being stopped, so repeat until two rounds agree. Raises
    TreeError after `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    before: set[int] = set()
    while True:
        tree = descendants(root)
        if with_root and (top := read_process(root)):
            tree[root] = top
        running = {pid for pid, process in tree.items() if process.state not in _NOT_RUNNING}
        # A parent in vfork whose child is stopped before exec cannot stop yet, but it will stop
        # before it runs again.
        parents = {process.parent for process in tree.values() if process.state in _STOPPED}
        waiting = {pid for pid in running & parents if tree[pid].state == "D"}
        send(waiting, signal.SIGSTOP)
        running -= waiting
        alive = {pid for pid, process in tree.items() if process.state not in _DEAD}
        if not running and alive == before:
            return alive
        send(running, signal.SIGSTOP)
        before = alive
        if time.monotonic() > deadline_s:
            raise TreeError(f"processes under {root} do not stop: {sorted(running)}")
        if running:
            time.sleep(0.001)


def continue_tree(root: int) -> None:
    """Resume a stopped tree."""
    send([*descendants(root), root], signal.SIGCONT)


def kill_below(root: int, *, timeout_s: float = 10.0) -> None:
    """SIGKILL all descendants of `root` until none is alive. Raises TreeError on timeout.

    Does not reap them: that is up to `root` or whoever adopts its children.
    """
    deadline_s = time.monotonic() + timeout_s
    thorough = False
    while True:
        tree = descendants(root, thorough=thorough).values()
        alive = {process.pid for process in tree if process.state not in _DEAD}
        if not alive and thorough:
            return
        send(alive, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise TreeError(f"processes under {root} do not die: {sorted(alive)}")
        thorough = not alive
        time.sleep(0.002 if alive else 0.0)


def kill_tree(root: int, *, timeout_s: float = 10.0) -> bool:
    """Stop the tree, then kill all descendants and `root`; return when `root` is dead.

    Returns False if `root` was dead before, so that its descendants have other parents. Raises
    TreeError on timeout.
    """
    alive = root in stop_tree(root)
    kill_below(root, timeout_s=timeout_s)
    send([root], signal.SIGKILL)
    wait_dead([root], timeout_s=timeout_s)
    return alive


def kill_with_environment(variable: str, value: str, *, timeout_s: float = 10.0) -> None:
    """Kill the processes of a machine whose root died. Raises TreeError on timeout."""
    deadline_s = time.monotonic() + timeout_s
    while processes := find_with_environment(variable, value):
        send(processes, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise TreeError(f"processes with {variable}={value} do not die: {sorted(processes)}")
        time.sleep(0.002)


def wait_dead(pids: Iterable[int], *, timeout_s: float) -> None:
    """Wait until each process is gone or a zombie. Raises TreeError on timeout."""
    deadline_s = time.monotonic() + timeout_s
    for pid in pids:
        while (process := read_process(pid)) and process.state not in _DEAD:
            if time.monotonic() > deadline_s:
                raise TreeError(f"process {pid} does not die (state {process.state})")
            time.sleep(0.002)
