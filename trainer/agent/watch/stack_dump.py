"""Take the stack of every thread of the training processes before they are ended.

py-spy does it if it is on the agent's PATH, on the process's own, or beside its Python. It reads
any Python process from outside, if the machine allows that. Otherwise a process with a handler for
STACKS_SIGNAL is asked to write its stacks itself: faulthandler is in C, and works while Python
hangs (spotd_hook.stop registers it; `faulthandler.register(signal.SIGUSR2)` does so in any script).
The output is read back from the log, one process after the other, because a machine's processes
share a log, and while they hang no other process writes to it.
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
WRITE_S = 2.0  # for a process to write its stacks
QUIET_S = 0.15  # after so long without a byte, it has written all
TOTAL_S = 20.0  # for all processes, because the machine costs money
MAX_PROCESSES = 16  # a machine has eight GPUs
MAX_CHARS = 8000  # of one process, so that MAX_PROCESSES fit in a line of the journal


@dataclass(frozen=True)
class StackDump:
    """The stacks of one process.

    `rank` is the launcher's RANK variable, or -1 if there is none; `how` is py-spy or faulthandler.
    """

    rank: int
    pid: int
    how: str
    text: str

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def dump_stacks(processes: Sequence[Process], log: Path) -> list[StackDump]:
    """Return the stacks of each process that shows them, by rank. Takes seconds: call it in a
    thread."""
    end = time.monotonic() + TOTAL_S
    dumps = []
    for process in processes[:MAX_PROCESSES]:
        if time.monotonic() < end:
            dumps += _dump_process(process, log)
    return sorted(dumps, key=lambda dump: (dump.rank, dump.pid))


def _dump_process(process: Process, log: Path) -> list[StackDump]:
    environ = _environ(process.pid)
    how, text = PY_SPY, _run_py_spy(process.pid, environ)
    if not text:
        how, text = "faulthandler", _run_faulthandler(process, log)
    if not text:
        return []
    launcher_rank = environ.get("RANK", "")
    rank = int(launcher_rank) if launcher_rank.isdecimal() else -1
    return [StackDump(rank=rank, pid=process.pid, how=how, text=text[:MAX_CHARS])]


def _environ(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if /proc does not show it."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return {}
    return dict(pair.partition("=")[::2] for pair in data.split("\0") if "=" in pair)


def _find_py_spy(pid: int, environ: dict[str, str]) -> str | None:
    """Find py-spy for a process. For one in a container, only the agent's PATH is of use."""
    try:
        python = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except (OSError, UnicodeDecodeError):
        python = ""
    python_folder = str(Path(python).parent) if python.startswith("/") else ""
    folders = [os.environ.get("PATH", ""), environ.get("PATH", ""), python_folder]
    return shutil.which(PY_SPY, path=os.pathsep.join(folder for folder in folders if folder))


def _run_py_spy(pid: int, environ: dict[str, str]) -> str:
    """Return the stacks; empty if there is no py-spy or it has no permission."""
    program = _find_py_spy(pid, environ)
    if program is None:
        return ""
    try:
        result = subprocess.run(
            [program, "dump", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PY_SPY_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return "" if result.returncode else result.stdout.decode("utf-8", "replace").strip()


def _run_faulthandler(process: Process, log: Path) -> str:
    """Return what the process writes to its log; empty without a handler, as the signal would end
    it."""
    if not catches(process.pid, STACKS_SIGNAL):
        return ""
    reader = LogReader(log)
    begin = reader.bounds()[1]
    if not send_signal(process, STACKS_SIGNAL):
        return ""
    end = quiet_at = time.monotonic() + WRITE_S
    read_to = begin
    while (now := time.monotonic()) < min(end, quiet_at):
        size = reader.bounds()[1]
        if size > read_to:
            read_to, quiet_at = size, now + QUIET_S
        time.sleep(0.02)
    text = reader.read(begin, MAX_CHARS)[1].decode("utf-8", "replace").strip()
    # The process has a handler, but it writes elsewhere, for example to its own file.
    return text or f"(it wrote nothing to {log.name} within {WRITE_S:g} s)"
