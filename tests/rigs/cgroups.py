"""Groups of processes whose memory has a limit, in either version of the kernel's interface."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_TOP = Path("/sys/fs/cgroup")
_OLD = _TOP / "memory"
_REMOVE_S = 10.0


def top() -> Path:
    """The folder below which groups can be made that limit memory. Raises RuntimeError."""
    if (_OLD / "memory.limit_in_bytes").exists() or (_OLD / "cgroup.procs").exists():
        return _OLD
    if "memory" in _read(_TOP / "cgroup.controllers").split():
        with suppress(OSError):
            (_TOP / "cgroup.subtree_control").write_text("+memory")
        return _TOP
    raise RuntimeError("there is no cgroup that limits memory: run this on a Linux that has one")


def make(name: str) -> Path:
    """A group for groups."""
    group = top() / name
    group.mkdir()
    if not is_old(group):
        (group / "cgroup.subtree_control").write_text("+memory")
    return group


def is_old(group: Path) -> bool:
    return _OLD in (group, *group.parents)


def used_bytes(group: Path) -> int:
    name = "memory.usage_in_bytes" if is_old(group) else "memory.current"
    return int((group / name).read_text())


def limit_bytes(group: Path, limit: int) -> None:
    """No more memory than that: the kernel kills when it is used up."""
    name = "memory.limit_in_bytes" if is_old(group) else "memory.max"
    (group / name).write_text(str(limit))


def kills(group: Path) -> int:
    """How many of its processes the kernel has killed for their memory."""
    rows = _read(group / ("memory.oom_control" if is_old(group) else "memory.events"))
    return sum(int(row.split()[1]) for row in rows.splitlines() if row.startswith("oom_kill "))


def remove(group: Path) -> None:
    """End everything in it and in the groups below it; the kernel empties it a moment later."""
    end_s = time.monotonic() + _REMOVE_S
    for path in [*sorted(group.rglob("*/"), key=lambda p: -len(p.parts)), group]:
        while path.is_dir() and time.monotonic() < end_s:
            for pid in _read(path / "cgroup.procs").split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            with suppress(OSError):
                path.rmdir()
                continue
            time.sleep(0.01)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
