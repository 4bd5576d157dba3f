"""A test that does not end, and that no exception ends, goes with its processes; others go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.processes import carrying
from tests.rigs.waiting import until

ROOT = Path(__file__).parents[2]
HANGS = """
import subprocess
import pytest
from tests.rigs import watchdog

watchdog.GRACE_S = 5.0

@pytest.mark.timeout(1)
def test_it_hangs():
    subprocess.Popen(["setsid", "--fork", "sleep", "1000"])
    subprocess.run(["sleep", "1000"])

@pytest.mark.parametrize("number", range(5))
def test_it_does_not(number):
    pass
"""
NO_EXCEPTION = """
def pytest_timeout_set_timer(item, settings):
    return True  # pytest-timeout takes it for set, and never raises in the test
"""

SLOW = """
import time
from tests.rigs import watchdog

watchdog.GRACE_S = 0.0

def test_it_is_slow():
    time.sleep(2)
"""


@pytest.mark.parametrize("limit", ["60", "0"])
def test_the_limit_of_the_command_line_holds(tmp_path: Path, limit: str) -> None:
    """`make soak` gives its tests an hour; 0 is none."""
    (tmp_path / "test_slow.py").write_text(SLOW)
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-pno:cacheprovider"]
    limits = ["-o", "timeout=1", "--timeout", limit]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *config, "-ptests.rigs.watchdog", *limits, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "workers", [[], ["-n", "2", "--dist", "loadgroup"]], ids=["one", "several"]
)
def test_the_run_goes_on_without_it(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "conftest.py").write_text(NO_EXCEPTION)
    (tmp_path / "test_hangs.py").write_text(HANGS)
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-pno:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *config, "-p", "tests.rigs.watchdog", *workers, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_hangs.py::test_it_hangs did not end within 6 s" in done.stderr
    assert "in test_it_hangs" in done.stderr, "where it hung"
    until(lambda: carrying("PYTEST_CURRENT_TEST", "test_hangs.py::test_it_hangs (call)") == [])
    if workers:
        assert "crashed while running 'test_hangs.py::test_it_hangs'" in done.stdout
        assert "1 failed, 5 passed" in done.stdout
