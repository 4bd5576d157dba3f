"""`make test`, once everything is installed: lint, tests, simulation, and how long each took.

Root runs all of it. For an ordinary user the tests that need root run through sudo, and what they
leave behind becomes the user's; without sudo they are left out, by name and number. CI leaves
nothing out: there it is an error.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.fixtures.processes import alive, below

ROOT = Path(__file__).parent.parent
STAGES = ("lint", "tests", "dist", "simulation", "where")
MAKE = (os.environ.get("MAKE", "make"), "--no-print-directory")
PYTEST = (sys.executable, "-m", "pytest", "-n", "4", "--dist", "loadgroup")
SUDO = ("sudo", "-n", "-H")
_OWN = ("HOME", "USER", "LOGNAME", "MAIL", "SHELL")  # who somebody is: sudo says it anew
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_FOUND_NONE = 5  # pytest's
_END_S = 10.0
_BY_ITSELF_S = 2.0  # Python's own helper processes end when their parent has


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description=__doc__)
    parser.add_argument(
        "--install-s", type=float, default=0.0, help="what came before took so long"
    )
    parser.add_argument("--stages", nargs="+", choices=STAGES, help="all; `where` in CI alone")
    parser.add_argument(
        "--root-only", action="store_true", help="the tests that need root, as root"
    )
    parser.add_argument("pytest", nargs="*", help="for pytest, behind --")
    given = parser.parse_args()
    # What a test lets go of becomes a child of ours.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if given.root_only:
        return run([*PYTEST, "--root-only", *given.pytest])
    took, code = {"install": given.install_s}, 0
    for stage in given.stages or STAGES[: None if os.environ.get("CI") else -1]:
        began_s = time.monotonic()
        match stage:
            case "lint":
                code = run([*MAKE, "-j2", "-Otarget", "lint", "loaded"])
            case "tests":
                code = run_tests(given.pytest)
            case "dist":
                code = run([*MAKE, "docs", "dist"])
            case "simulation":
                code = run([*MAKE, "sim"])
            case _:
                code = run([sys.executable, "-m", "tests.where", "--ci"])
        took[stage] = time.monotonic() - began_s
        if code:
            print(f"{stage} failed", file=sys.stderr)
            break
    print("timings:", ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in took.items()))
    return code


def run(command: Sequence[str]) -> int:
    """The exit code of a command. What it has left running ends with it."""
    sys.stdout.flush()
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == process.pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode
    finally:
        _end_leftovers()


def _end_leftovers() -> None:
    end_s = time.monotonic() + _BY_ITSELF_S
    while any(alive(pid) for pid in below(os.getpid())) and time.monotonic() < end_s:
        time.sleep(0.1)
    end_s = time.monotonic() + _END_S
    named = set()
    while (left := [pid for pid in below(os.getpid()) if alive(pid)]) and time.monotonic() < end_s:
        for pid in left:
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                os.kill(pid, signal.SIGKILL)
                if pid not in named:
                    print(f"was left running: {words[:200].decode(errors='replace')}")
                    named.add(pid)
        time.sleep(0.1)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def run_tests(more: Sequence[str]) -> int:
    """The exit code: of two runs where one of them is through sudo."""
    if os.geteuid() == 0:
        return run([*PYTEST, *more])
    may_become_root = shutil.which("sudo") is not None and (
        subprocess.run([*SUDO, "true"], capture_output=True, check=False).returncode == 0
    )
    if os.environ.get("CI") and not may_become_root:
        print("CI leaves no test out: run it as root, or with passwordless sudo", file=sys.stderr)
        return 1
    code = run([*PYTEST, *more])
    if may_become_root:
        codes = {code, run_as_root(more)} - {_FOUND_NONE}  # a selection may lie in one of them
        return next((code for code in codes if code), 0) if codes else _FOUND_NONE
    names = need_root(more)
    total = sum(int(name.rpartition(": ")[2]) for name in names)
    print(
        f"left out: {total} tests that need root; make test runs them, too, as root or with "
        f"passwordless sudo: {', '.join(names)}"
    )
    return code


def run_as_root(more: Sequence[str]) -> int:
    """Tests that need root, by a user who may become it."""
    environ = {name: value for name, value in os.environ.items() if name not in _OWN}
    with tempfile.TemporaryDirectory(prefix="spotd-root-", ignore_cleanup_errors=True) as folder:
        environ |= {"PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/h"}
        variables = [f"{name}={value}" for name, value in environ.items()]
        ours = [sys.executable, "-m", "tests.suite", "--root-only", "--", *more]
        code = run(
            [*SUDO, "env", *variables, *ours, f"--basetemp={folder}/t", "-pno:cacheprovider"]
        )
        run([*SUDO, "rm", "-rf", folder])
    run([*SUDO, "chown", "-hR", "--from=root", f"{os.getuid()}:{os.getgid()}", str(ROOT)])
    return code


def need_root(more: Sequence[str]) -> list[str]:
    """The files with tests that need root, each with their number."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "--root-only", *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if ": " in line]


if __name__ == "__main__":
    sys.exit(main())
