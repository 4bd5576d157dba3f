"""Processes as `/proc` shows them: who is alive, who descends from whom, who is to be signalled.

A process is known by its id *and* its start time, because ids are used again.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_LOG = logging.getLogger(__name__)
_PROC = Path("/proc")
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "busybox"})
# Programs that start the training processes and mean their own end by a signal: torchrun kills its
# workers after a grace of its own, and accelerate or mpirun do not pass everything on.
_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "composer"}
    | {"uv", "uvx", "poetry", "conda", "mamba", "micromamba", "pipenv", "hatch", "timeout", "time"}
    | {"tee", "stdbuf", "sudo", "env", "nohup", "numactl", "taskset", "setsid", "srun"}
)
_LOOKS = 2
_SUDO_S = 5.0
_STOPPED = "T"
_LAUNCHER_MODULES = ("torch.distributed.", "accelerate.commands.", "deepspeed.launcher.")


@dataclass(frozen=True)
class Process:
    """One process; `started` is its start time in clock ticks since boot."""

    pid: int
    started: int


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    session: int
    started: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # ended, or one that /proc hides from us (hidepid)
    # The name in parentheses may contain anything, so count from the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def identify(pid: int) -> Process | None:
    """The live process with this id now."""
    found = _stat(pid)
    return None if found is None or found.state in "ZX" else Process(pid, found.started)


def is_alive(process: Process) -> bool:
    """Whether it still runs; one that waits to be reaped does not."""
    return identify(process.pid) == process


def send_signal(process: Process, number: int) -> bool:
    """Signal exactly this process, never a later one with its id. False when it is gone, or of
    another user, who alone can end it."""
    try:
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1
    except ProcessLookupError:
        return False
    except OSError:
        handle = -1  # a kernel before 5.3
    try:
        if not is_alive(process):
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return _signal_as_root(process.pid, number)
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def _signal_as_root(pid: int, number: int) -> bool:
    """A container's processes, and what the job started by sudo, are root's."""
    if _as_root("kill", "-s", str(number), "--", str(pid)) is not None:
        return True
    _say_refused(pid)
    return False


def _as_root(*argv: str) -> str | None:
    """What a command prints that root runs for us, as it may on machines that we prepared; None
    where it may not, or fails."""
    if not os.getuid():
        return None
    try:
        done = subprocess.run(
            ["sudo", "-n", *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SUDO_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout


@lru_cache(maxsize=1024)  # once for each
def _say_refused(pid: int) -> None:
    _LOG.warning("process %d is of another user and cannot be signalled", pid)


def _table() -> dict[int, _Stat]:
    found = {}
    for entry in _PROC.iterdir():
        stat = _stat(int(entry.name)) if entry.name.isdecimal() else None
        if stat is not None and stat.state not in "ZX":
            found[int(entry.name)] = stat
    return found


def descendants(root: int, session: int = 0) -> list[Process]:
    """All live processes below `root`, nearest first, and those of `session`; not `root`. 0 is
    nobody."""
    table = _table()
    children = _by_parent(table)
    found = {pid: Process(pid, s.started) for pid, s in table.items() if session == s.session != 0}
    todo = [*([root] if root else []), *found]
    while todo:
        for child in children.get(todo.pop(0), []):
            if child.pid not in found:
                found[child.pid] = child
                todo.append(child.pid)
    found.pop(root, None)
    return list(found.values())


def session_of(leader: Process) -> int:
    """The id of the session that `leader` began, if any of it is left; else 0, because the id may
    belong to strangers now."""
    table = _table()
    taken = table.get(leader.pid)
    if taken is not None and taken.started != leader.started:
        return 0
    left = any(s.session == leader.pid and s.started >= leader.started for s in table.values())
    return leader.pid if left else 0


def kill_tree(root: int, session: int = 0) -> int:
    """Kill all that descends from `root` (or is in `session`), but not `root`; returns how many.

    Everything is stopped first, so that nothing can fork away meanwhile. Whole groups are stopped
    at a stroke, because reading `/proc` takes time, in which a process may start another and end
    unseen; and a look that finds nothing new is repeated.
    """
    found: set[Process] = set()
    groups = {session} - {0}
    looks = 0
    while looks < _LOOKS:
        _signal_groups(groups, signal.SIGSTOP)
        fresh = set(descendants(root, session)) - found
        for process in fresh:
            send_signal(process, signal.SIGSTOP)
        groups |= _groups_of(fresh) - _groups_of([Process(root, 0)])
        found |= fresh
        looks = 0 if fresh else looks + 1
    for process in found:
        send_signal(process, signal.SIGKILL)
    _signal_groups(groups, signal.SIGKILL)
    return len(found)


def kill_whole(pid: int) -> int:
    """Kill a process and all that descends from it; returns how many."""
    process = identify(pid)
    killed = kill_tree(pid)
    return killed + (process is not None and send_signal(process, signal.SIGKILL))


def find_script(path: Path) -> int:
    """The shell that runs this file and was given nothing else, the eldest of several; 0 when none
    does. So is found what a container's engine started, of whom we are no ancestor."""
    found = [
        (stat.started, pid)
        for pid, stat in _table().items()
        if len(argv := _argv(pid)) == 2 and argv[1] == str(path) and _is_shell(argv)
    ]
    return min(found)[1] if found else 0


def children_since(parent: int, started: int) -> list[int]:
    """The live children of a process that are no older than this, in clock ticks since boot."""
    table = _table()
    return [pid for pid, s in table.items() if s.parent == parent and s.started >= started]


def _groups_of(processes: Iterable[Process]) -> set[int]:
    found = set()
    for process in processes:
        with suppress(ProcessLookupError):
            found.add(os.getpgid(process.pid))
    return found


def _signal_groups(groups: Iterable[int], number: int) -> None:
    for group in groups:
        # Without leave to signal any of a group: its processes are tried, and told, one by one.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def workers(root: int, number: int) -> list[Process]:
    """Whom to send a signal, below `root`: the training processes themselves.

    Shells and launchers are passed through to what they started, and what a training process
    started (data loaders) is left to it. A shell is meant as well when it has a trap for the
    signal, or when there is nobody else; not one that reads a pipe, which its writer needs.
    """
    return list(_workers(root, number, _by_parent(_table())))


def _workers(parent: int, number: int, children: Mapping[int, list[Process]]) -> Iterator[Process]:
    for child in children.get(parent, []):
        argv = _argv(child.pid)
        if _is_shell(argv):
            below = list(_workers(child.pid, number, children))
            if catches(child.pid, number) or not (below or _reads_pipe(child.pid)):
                yield child
            yield from below
        elif _is_launcher(argv):
            yield from _workers(child.pid, number, children)
        else:
            yield child


def hold_shells(root: int) -> None:
    """Stop the shells below `root`, so that none begins another line.

    Left alone are those that handle or ignore SIGTERM, because their scripts see to their own end,
    and those that read a pipe: who writes into it is not to be held up.
    """
    seen: set[Process] = set()
    # What one of them started before its signal came is found by another look.
    while fresh := set(_shells(root, _by_parent(_table()))) - seen:
        for shell in fresh:
            send_signal(shell, signal.SIGSTOP)
        seen |= fresh


def end_held_shells(root: int) -> None:
    """End those held shells below `root` whose children have all ended; to be called again for the
    others. A shell that meets SIGTERM first when it goes on does not come to its next line."""
    table = _table()
    children = _by_parent(table)
    for shell in _shells(root, children):
        if table[shell.pid].state == _STOPPED and shell.pid not in children:
            send_signal(shell, signal.SIGTERM)
            send_signal(shell, signal.SIGCONT)


def resume_shells(root: int) -> None:
    """Let the held shells below `root` go on with their lines."""
    for shell in _shells(root, _by_parent(_table())):
        send_signal(shell, signal.SIGCONT)


def _shells(parent: int, children: Mapping[int, list[Process]]) -> Iterator[Process]:
    """Those that may be held; like `_workers`, through launchers and not below a program."""
    for child in children.get(parent, []):
        argv = _argv(child.pid)
        if not (_is_shell(argv) or _is_launcher(argv)):
            continue
        own = catches(child.pid, signal.SIGTERM) or ignores(child.pid, signal.SIGTERM)
        if _is_shell(argv) and not own and not _reads_pipe(child.pid):
            yield child
        yield from _shells(child.pid, children)


def _reads_pipe(pid: int) -> bool:
    stdin = _PROC / str(pid) / "fd" / "0"
    try:
        target = str(stdin.readlink())
    except PermissionError:
        target = _as_root("readlink", str(stdin)) or ""
    except OSError:
        return False
    return target.startswith("pipe:")


def _by_parent(table: Mapping[int, _Stat]) -> dict[int, list[Process]]:
    found: dict[int, list[Process]] = {}
    for pid, stat in table.items():
        found.setdefault(stat.parent, []).append(Process(pid, stat.started))
    return found


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler of its own for a signal."""
    return _in_mask(pid, "SigCgt:", number)


def ignores(pid: int, number: int) -> bool:
    """Whether a signal does nothing to the process."""
    return _in_mask(pid, "SigIgn:", number)


def _in_mask(pid: int, mask: str, number: int) -> bool:
    try:
        text = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    for line in text.splitlines():
        if line.startswith(mask):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _argv(pid: int) -> list[str]:
    try:
        data = (_PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return data.decode("utf-8", "replace").split("\0")[:-1]


def _is_shell(argv: list[str]) -> bool:
    return bool(argv) and Path(argv[0]).name.lstrip("-") in _SHELLS


def _is_launcher(argv: list[str]) -> bool:
    if not argv:
        return False
    if Path(argv[0]).name in _LAUNCHERS:
        return True
    if not Path(argv[0]).name.startswith(("python", "pypy")):
        return False
    for index, word in enumerate(argv[1:], start=1):
        if word == "-m":
            return " ".join(argv[index + 1 : index + 2]).startswith(_LAUNCHER_MODULES)
        if not word.startswith("-"):
            return Path(word).name in _LAUNCHERS
    return False
