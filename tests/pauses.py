"""Run a command while processes below it stand still now and then, as on a crowded machine.

    python -m tests.pauses -- .venv/bin/pytest tests/trainer/agent

A machine with much other work halts any process at any line for a part of a second. A test that
counts on two processes keeping pace passes for weeks on an idle machine and fails there. Here a
process is chosen by chance every 100 ms, half of the time among those that have just started, and
stopped for up to a second; so such a test fails in the first run or the second.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "SPOTD_PAUSES"
EVERY_S = 0.1
LONGEST_S = 1.0
YOUNG_S = 2.0


def main() -> int:
    """Return the command's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.pauses",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=None, help="of the choices (default: another)")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    given = parser.parse_args()
    mark = f"{os.getpid()}"
    running = subprocess.Popen(given.command, env={**os.environ, MARK: mark})
    pause_while(running, mark=mark, choice=random.Random(given.seed))
    return running.returncode


def pause_while(running: subprocess.Popen[bytes], *, mark: str, choice: random.Random) -> None:
    """Stop and continue processes whose environment has `MARK=mark`, until `running` ends."""
    stopped: dict[int, float] = {}  # process id: when it goes on, monotonic seconds
    try:
        while running.poll() is None:
            now_s = time.monotonic()
            for pid in [pid for pid, until_s in stopped.items() if until_s <= now_s]:
                del stopped[pid]
                _send(pid, signal.SIGCONT)
            pid = _chosen(mark, choice=choice)
            if pid is not None and pid not in stopped and pid != running.pid:
                stopped[pid] = now_s + choice.uniform(0, LONGEST_S)
                _send(pid, signal.SIGSTOP)
            time.sleep(EVERY_S)
    finally:
        for pid in stopped:
            _send(pid, signal.SIGCONT)


def _chosen(mark: str, *, choice: random.Random) -> int | None:
    """A process that runs or sleeps: half of the time one that started lately, if there is any."""
    ages_s = dict(_ages_s(f"{MARK}={mark}".encode()))
    young = [pid for pid, age_s in ages_s.items() if age_s < YOUNG_S]
    among = young if young and choice.random() < 0.5 else list(ages_s)
    return choice.choice(among) if among else None


def _ages_s(mark: bytes) -> list[tuple[int, float]]:
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] in "RSD":  # not one that a test itself stopped
                started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
                found.append((int(folder.name), uptime_s - started_s))
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
