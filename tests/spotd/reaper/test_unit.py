"""The reaper's unit: systemd finds nothing wrong with it, and it agrees with the program."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

import spotd
from spotd.reaper.command import main
from spotd.reaper.config import DEFAULT
from tests.fixtures.waiting import LIMIT_S

FOLDER = Path(spotd.__file__).parent.parent / "systemd"
SERVICE, TIMER = "spot-reaper.service", "spot-reaper.timer"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as an installation has them: the program exists."""
    (tmp_path / "spot-reaper").symlink_to("/bin/true")
    for name in (SERVICE, TIMER):
        text = (FOLDER / name).read_text()
        program = str(tmp_path / "spot-reaper")
        (tmp_path / name).write_text(text.replace("/opt/spotd/bin/spot-reaper", program))
    return tmp_path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_verify_says_nothing(installed: Path) -> None:
    done = analyze("verify", "--man=no", str(installed / SERVICE), str(installed / TIMER))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_is_locked_up_well(installed: Path) -> None:
    unit = installed / SERVICE
    done = analyze("security", "--offline=true", "--threshold=12", "--no-pager", str(unit))
    assert done.returncode == 0, done.stdout[-500:]
    unit.write_text(unit.read_text().replace("CapabilityBoundingSet=", ""))
    done = analyze("security", "--offline=true", "--threshold=12", "--no-pager", str(unit))
    assert done.returncode != 0, "the threshold is one"


def test_it_agrees_with_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = [x for x in (FOLDER / SERVICE).read_text().splitlines() if x.startswith("ExecStart=")]
    program, *options = shlex.split(line.removeprefix("ExecStart="))
    assert program.endswith("/spot-reaper")
    assert options == ["--once", "--config", str(DEFAULT)]
    assert main([*options, "--help"]) == 0
    assert "LoadCredential" not in "".join(
        x for x in (FOLDER / SERVICE).read_text().splitlines() if not x.startswith("#")
    ), "a credential that is not there would keep it from starting"
