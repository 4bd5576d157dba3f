"""The whole test suite, several times in a row, beside other work on every core.

    python -m tests.repeat --runs 10
    python -m tests.repeat --runs 10 --at-once 2
    python -m tests.repeat --runs 2 --pauses

A test that depends on luck fails here sooner or later. With `--at-once 2` two runs are each other's
other work, which takes two thirds of the time. With `--pauses` processes of the tests stand still
now and then (tests/pauses.py). Logs and results are in bench/out/repeat/; runs that are done are
not repeated, so an interrupted series goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Works for 50 ms, rests for 50 ms.
LOAD = """
import time
while True:
    end_s = time.monotonic() + 0.05
    while time.monotonic() < end_s:
        pass
    time.sleep(0.05)
"""


def main() -> int:
    """Return the exit code: 0 when every run passed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.repeat",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=10, help="how many (default: 10)")
    parser.add_argument(
        "--at-once", type=int, default=1, help="runs beside each other (default: 1)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "repeat")
    parser.add_argument("--pauses", action="store_true", help="with tests.pauses around each run")
    given = parser.parse_args()
    before = [sys.executable, "-m", "tests.pauses", "--"] if given.pauses else []
    given.out.mkdir(parents=True, exist_ok=True)
    load = 0 if given.at_once > 1 else os.cpu_count() or 1
    with ThreadPoolExecutor(given.at_once) as pool:
        results = pool.map(
            lambda n: run_once(given.out, n, load=load, before=before), range(1, given.runs + 1)
        )
        failed = sum(not text.startswith("passed") for text in results)
    return 1 if failed else 0


@contextmanager
def other_work(*, processes: int) -> Iterator[None]:
    """Keep this many processes busy, each for half of the time."""
    running = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def run_once(out: Path, number: int, *, load: int, before: list[str]) -> str:
    """Run all tests once beside `load` busy processes, unless that was done before.

    `before` are the words before `make` in the command.

    Return and print what to say of it: passed or failed, seconds, what failed.
    """
    result = out / f"{number}.txt"
    if not result.exists():
        with other_work(processes=load):
            result.write_text(_run(out / f"{number}.log", before=before))
    text = result.read_text()
    print(f"run {number}: {text}", flush=True)
    return text


def _run(log: Path, *, before: list[str]) -> str:
    began_s = time.monotonic()
    with log.open("wb") as file:
        command = [*before, "make", "--no-print-directory", "test", "STAGES=tests"]
        done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
    lines = log.read_text(errors="replace").splitlines()
    named = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    counts = next((line.strip("= ") for line in reversed(lines) if " passed" in line), "no summary")
    verdict = "failed" if done.returncode else "passed"
    took = f"{time.monotonic() - began_s:.0f} s"
    return "\n  ".join([f"{verdict} after {took}: {counts}", *named])


if __name__ == "__main__":
    sys.exit(main())
