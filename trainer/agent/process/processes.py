"""Processes as `/proc` shows them: which are alive, their descendants, and how to signal them.

A process is identified by its id *and* its start time, because ids are reused.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_LOG = logging.getLogger(__name__)
_PROC = Path("/proc")
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "busybox"})
# Programs that start the training processes and must not be signalled although they handle signals:
# torchrun kills its workers after its own grace, accelerate or mpirun do not pass every signal on,
# and make ends the shell of a recipe but not what that runs. Any other program is known by what it
# does: see `_only_waits`.
_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "composer"}
    | {"uv", "uvx", "poetry", "conda", "mamba", "micromamba", "pipenv", "hatch", "timeout", "time"}
    | {"tee", "stdbuf", "sudo", "env", "nohup", "numactl", "taskset", "setsid", "srun"}
    | {"make", "gmake", "ninja", "just", "xargs", "parallel", "nice", "ionice", "chrt"}
)
_HELPERS = ("multiprocessing.spawn", "multiprocessing.forkserver", "resource_tracker")
_BUSIER_S = 0.5  # so much more CPU time than its child's makes a program more than its launcher
_TICKS = os.sysconf("SC_CLK_TCK")
_STABLE_SCANS = 2
_SUDO_S = 5.0
_STOPPED = "T"
_LAUNCHER_MODULES = ("torch.distributed.", "accelerate.commands.", "deepspeed.launcher.")


@dataclass(frozen=True)
class Process:
    """A process; `started` is its start time in clock ticks since boot."""

    pid: int
    started: int


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    session: int
    cpu_ticks: int  # of user and system time
    started: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # ended, or hidden from us (hidepid)
    # The name in parentheses may contain anything, so parse from the last ")".
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        started=int(fields[19]),
    )


def identify(pid: int) -> Process | None:
    """Return the live process that has this id now."""
    stat = _stat(pid)
    return None if stat is None or stat.state in "ZX" else Process(pid, stat.started)


def is_alive(process: Process) -> bool:
    """Whether the process still runs; a zombie does not."""
    return identify(process.pid) == process


def send_signal(process: Process, number: int) -> bool:
    """Signal exactly this process, never a later one with the same id.

    Returns False if it is gone, or belongs to another user and cannot be signalled as root either.
    """
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
    """Signal a process of root, such as one in a container or one that the job started with
    sudo."""
    if _as_root("kill", "-s", str(number), "--", str(pid)) is not None:
        return True
    _log_refused(pid)
    return False


def _as_root(*argv: str) -> str | None:
    """Return the output of a command run by root through sudo; None if it is not allowed or fails.

    Prepared machines allow sudo.
    """
    if not os.getuid():
        return None
    try:
        result = subprocess.run(
            ["sudo", "-n", *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SUDO_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return None if result.returncode else result.stdout


@lru_cache(maxsize=1024)  # once for each process
def _log_refused(pid: int) -> None:
    _LOG.warning("process %d is of another user and cannot be signalled", pid)


def _process_table() -> dict[int, _Stat]:
    table = {}
    for entry in _PROC.iterdir():
        stat = _stat(int(entry.name)) if entry.name.isdecimal() else None
        if stat is not None and stat.state not in "ZX":
            table[int(entry.name)] = stat
    return table


def descendants(root: int, session: int = 0) -> list[Process]:
    """Return all live processes below `root` (nearest first) and in `session`, without `root`.

    0 stands for no process and no session.
    """
    table = _process_table()
    children = _by_parent(table)
    processes = {
        pid: Process(pid, s.started) for pid, s in table.items() if session == s.session != 0
    }
    todo = [*([root] if root else []), *processes]
    while todo:
        for child in children.get(todo.pop(0), []):
            if child.pid not in processes:
                processes[child.pid] = child
                todo.append(child.pid)
    processes.pop(root, None)
    return list(processes.values())


def session_of(leader: Process) -> int:
    """Return the id of the session that `leader` started, if a process of it is left.

    Else returns 0, because the id may belong to an unrelated session now.
    """
    table = _process_table()
    current = table.get(leader.pid)
    if current is not None and current.started != leader.started:
        return 0
    has_members = any(
        s.session == leader.pid and s.started >= leader.started for s in table.values()
    )
    return leader.pid if has_members else 0


def kill_tree(root: int, session: int = 0) -> int:
    """Kill all descendants of `root` and all of `session`, but not `root`; returns how many.

    Everything is stopped first, so that nothing can fork meanwhile. Whole process groups are
    stopped at once, because reading `/proc` takes time, in which a process may start another and
    end unnoticed. A scan that finds nothing new is repeated.
    """
    stopped: set[Process] = set()
    groups = {session} - {0}
    stable_scans = 0
    while stable_scans < _STABLE_SCANS:
        _signal_groups(groups, signal.SIGSTOP)
        new = set(descendants(root, session)) - stopped
        for process in new:
            send_signal(process, signal.SIGSTOP)
        groups |= _groups_of(new) - _groups_of([Process(root, 0)])
        stopped |= new
        stable_scans = 0 if new else stable_scans + 1
    for process in stopped:
        send_signal(process, signal.SIGKILL)
    _signal_groups(groups, signal.SIGKILL)
    return len(stopped)


def kill_with_descendants(pid: int) -> int:
    """Kill a process and its descendants; returns how many."""
    process = identify(pid)
    killed = kill_tree(pid)
    return killed + (process is not None and send_signal(process, signal.SIGKILL))


def find_script_process(path: Path) -> int:
    """Return the shell whose only argument is this file, the oldest of several, or 0.

    This finds processes that a container engine started, which are not the agent's descendants.
    """
    candidates = [
        (stat.started, pid)
        for pid, stat in _process_table().items()
        if len(argv := _argv(pid)) == 2 and argv[1] == str(path) and _is_shell(argv)
    ]
    return min(candidates)[1] if candidates else 0


def children_since(parent: int, started: int) -> list[int]:
    """Return the live children of a process that started at or after `started`, in clock ticks."""
    table = _process_table()
    return [pid for pid, s in table.items() if s.parent == parent and s.started >= started]


def _groups_of(processes: Iterable[Process]) -> set[int]:
    groups = set()
    for process in processes:
        with suppress(ProcessLookupError):
            groups.add(os.getpgid(process.pid))
    return groups


def _signal_groups(groups: Iterable[int], number: int) -> None:
    for group in groups:
        # Without permission for any process of the group: they are then signalled one by one.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def workers(root: int, number: int) -> list[Process]:
    """Return the processes below `root` to signal: the training processes themselves.

    Shells, launchers and programs that only wait for another one are skipped in favour of their
    children, and children of a training process (data loaders) are left to it. A shell is included
    if it has a trap for the signal or no children, but not if it reads a pipe, which its writer
    needs.
    """
    return list(_workers(root, number, _by_parent(_process_table())))


def _workers(parent: int, number: int, children: Mapping[int, list[Process]]) -> Iterator[Process]:
    for child in children.get(parent, []):
        argv = _argv(child.pid)
        if _is_shell(argv):
            below = list(_workers(child.pid, number, children))
            if catches(child.pid, number) or not (below or _reads_pipe(child.pid)):
                yield child
            yield from below
        elif _is_launcher(argv) or _only_waits(child, argv, number, children):
            yield from _workers(child.pid, number, children)
        else:
            yield child


def _only_waits(
    process: Process, argv: list[str], number: int, children: Mapping[int, list[Process]]
) -> bool:
    """Whether a program only waits for another one that it has started, which is the one to signal.

    So it is if the other one handles the signal or uses a GPU, and it does neither, and has not
    used more CPU time. A program's forks and the helpers of Python's multiprocessing are its own.
    """
    if catches(process.pid, number) or _uses_gpu(process.pid):
        return False
    own_s = _cpu_s(process.pid)
    return any(
        (catches(worker.pid, number) or _uses_gpu(worker.pid))
        and _cpu_s(worker.pid) + _BUSIER_S >= own_s
        for worker in _workers(process.pid, number, children)
        if not _is_own_helper(worker.pid, argv)
    )


def _is_own_helper(pid: int, parent_argv: list[str]) -> bool:
    """Whether a process is a fork of its parent, or a helper of Python's multiprocessing."""
    argv = _argv(pid)
    return argv == parent_argv or any(name in word for word in argv for name in _HELPERS)


def _uses_gpu(pid: int) -> bool:
    """Whether a process has a device of an NVIDIA GPU open."""
    for entry in _entries(_PROC / str(pid) / "fd"):
        with suppress(OSError):
            if str(entry.readlink()).startswith("/dev/nvidia"):
                return True
    return False


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []  # it ended, or is another user's


def _cpu_s(pid: int) -> float:
    """CPU time of a process, in seconds; 0 if it has ended."""
    stat = _stat(pid)
    return 0.0 if stat is None else stat.cpu_ticks / _TICKS


def hold_shells(root: int) -> None:
    """Stop the shells below `root` with SIGSTOP, so that none starts its next line.

    Shells that handle or ignore SIGTERM are left alone, because their scripts handle their own end.
    So are those that read a pipe, whose writer must not be blocked.
    """
    stopped: set[Process] = set()
    # Another scan finds what a shell started before its signal arrived.
    while new := set(_shells(root, _by_parent(_process_table()))) - stopped:
        for shell in new:
            send_signal(shell, signal.SIGSTOP)
        stopped |= new


def end_held_shells(root: int) -> None:
    """End those stopped shells below `root` whose children have all ended; call again for the
    others.

    A shell that receives SIGTERM before SIGCONT does not run its next line.
    """
    children = _by_parent(_process_table())
    for shell in _stopped_shells(root):
        if shell.pid not in children:
            send_signal(shell, signal.SIGTERM)
            send_signal(shell, signal.SIGCONT)


def resume_shells(root: int) -> None:
    """Continue the stopped shells below `root`."""
    for shell in _stopped_shells(root):
        send_signal(shell, signal.SIGCONT)


def _stopped_shells(root: int) -> list[Process]:
    """Return the stopped shells below `root`, wherever: by now, nothing may tell any more that a
    program above one only waited for another that it had started."""
    return [
        process
        for process in descendants(root)
        if (stat := _stat(process.pid)) is not None
        and stat.state == _STOPPED
        and _is_shell(_argv(process.pid))
    ]


def _shells(parent: int, children: Mapping[int, list[Process]]) -> Iterator[Process]:
    """Yield the shells that may be stopped; like `_workers`, through launchers and not below a
    program."""
    for child in children.get(parent, []):
        argv = _argv(child.pid)
        if not (
            _is_shell(argv)
            or _is_launcher(argv)
            or _only_waits(child, argv, signal.SIGTERM, children)
        ):
            continue
        handles_term = catches(child.pid, signal.SIGTERM) or ignores(child.pid, signal.SIGTERM)
        if _is_shell(argv) and not handles_term and not _reads_pipe(child.pid):
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
    children: dict[int, list[Process]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.parent, []).append(Process(pid, stat.started))
    return children


def catches(pid: int, number: int) -> bool:
    """Whether the process has its own handler for a signal."""
    return _in_mask(pid, "SigCgt:", number)


def ignores(pid: int, number: int) -> bool:
    """Whether the process ignores a signal."""
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
    for index, argument in enumerate(argv[1:], start=1):
        if argument == "-m":
            return " ".join(argv[index + 1 : index + 2]).startswith(_LAUNCHER_MODULES)
        if not argument.startswith("-"):
            return Path(argument).name in _LAUNCHERS
    return False


def run_command(
    argv: Sequence[str], timeout_s: float, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with `environ` added to ours. A command that cannot run or times out has exit
    code 127."""
    try:
        return subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env={**os.environ, **environ},
        )
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(list(argv), 127, "", str(error))
