"""`make test` ends what its tests leave running, and says how long it took."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.processes import carrying
from tests.fixtures.waiting import LIMIT_S
from tests.suite import ROOT, need_root

LEAVES = """
import subprocess

def test_it_leaves_a_program_that_holds_its_output():
    subprocess.Popen(["setsid", "--fork", "sleep", "1000"])
"""


@pytest.mark.root  # of an ordinary user there would be two runs
def test_what_a_test_leaves_running_is_named_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARK", str(tmp_path))
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    done = subprocess.run(
        [sys.executable, "-m", "tests.suite", "--stages", "tests", "--", "-n0", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was left running: sleep 1000" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("timings: install 0 s, tests ")
    assert carrying("MARK", str(tmp_path)) == []


def test_what_is_left_out_is_named_with_its_number() -> None:
    assert need_root(["tests/fixtures/test_netns.py", "tests/fixtures/test_surroundings.py"]) == [
        "tests/fixtures/test_netns.py: 2"
    ]
