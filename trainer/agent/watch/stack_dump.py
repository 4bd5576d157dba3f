"""Where each training process is, taken before it is ended: the stack of every one of its threads.

py-spy is asked where it can be had: on the agent's PATH, on the process's own, or beside its
Python. It reads any Python from outside, if the machine allows that. Else a process that has a
handler for
STACKS_SIGNAL is asked to write them itself: faulthandler's is C, and answers where Python hangs
(spotd_hook.stop registers it; `faulthandler.register(signal.SIGUSR2)` does in any script). What it
writes is read back from the log of its output, one process after the other, because those of one
machine share a log, and while they hang nobody else writes there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.agent.base.streams import LogReader
from trainer.agent.process.processes import Process, catches, send_signal

STACKS_SIGNAL = signal.SIGUSR2
PY_SPY = "py-spy"
PY_SPY_S = 5.0
ANSWER_S = 2.0  # for a process to write its stacks
QUIET_S = 0.15  # without another byte, it has written all
ALL_S = 20.0  # for all of them: the machine costs money
MOST = 16  # processes: a machine has eight GPUs
MOST_CHARS = 8000  # of one: with MOST of them a line of the journal stays far below its limit


@dataclass(frozen=True)
class Stacks:
    """What one process was doing. `rank` is what its launcher told it (RANK), -1 of one that was
    told none; `how`: py-spy or faulthandler."""

    rank: int
    pid: int
    how: str
    text: str

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def take(processes: Sequence[Process], log: Path) -> list[Stacks]:
    """Those of each process that shows them, by rank. Takes seconds: to be called from a thread."""
    end = time.monotonic() + ALL_S
    found = []
    for process in processes[:MOST]:
        if time.monotonic() < end:
            found += _take_one(process, log)
    return sorted(found, key=lambda one: (one.rank, one.pid))


def _take_one(process: Process, log: Path) -> list[Stacks]:
    told = _environ(process.pid)
    how, text = PY_SPY, _ask_py_spy(process.pid, told)
    if not text:
        how, text = "faulthandler", _ask_itself(process, log)
    if not text:
        return []
    rank = told.get("RANK", "")
    return [Stacks(int(rank) if rank.isdecimal() else -1, process.pid, how, text[:MOST_CHARS])]


def _environ(pid: int) -> dict[str, str]:
    """What it was started with; nothing where /proc does not show it."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return {}
    return dict(pair.partition("=")[::2] for pair in data.split("\0") if "=" in pair)


def _find_py_spy(pid: int, told: dict[str, str]) -> str | None:
    """In a container its own paths lead nowhere here, and the agent's are left."""
    try:
        python = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except (OSError, UnicodeDecodeError):
        python = ""
    beside = str(Path(python).parent) if python.startswith("/") else ""
    folders = [os.environ.get("PATH", ""), told.get("PATH", ""), beside]
    return shutil.which(PY_SPY, path=os.pathsep.join(folder for folder in folders if folder))


def _ask_py_spy(pid: int, told: dict[str, str]) -> str:
    """Empty where there is none, or the machine does not let it look."""
    program = _find_py_spy(pid, told)
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PY_SPY_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return "" if done.returncode else done.stdout.decode("utf-8", "replace").strip()


def _ask_itself(process: Process, log: Path) -> str:
    """What it writes to its log; empty of one that has no handler: the signal would end it."""
    if not catches(process.pid, STACKS_SIGNAL):
        return ""
    reader = LogReader(log)
    begin = reader.bounds()[1]
    if not send_signal(process, STACKS_SIGNAL):
        return ""
    end = quiet_at = time.monotonic() + ANSWER_S
    seen = begin
    while (now := time.monotonic()) < min(end, quiet_at):
        size = reader.bounds()[1]
        if size > seen:
            seen, quiet_at = size, now + QUIET_S
        time.sleep(0.02)
    text = reader.read(begin, MOST_CHARS)[1].decode("utf-8", "replace").strip()
    # It answered, but not into this log: to a file of its own, say.
    return text or f"(it wrote nothing to {log.name} within {ANSWER_S:g} s)"
