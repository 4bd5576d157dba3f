"""`spotctl doctor --live --gpu`: what it refuses before anything costs money.

The entire test is tests/e2e/test_rehearsal.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spotd.api.rig import JOB_FILE, Rig
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(
        f'state_dir = "{tmp_path / "state"}"\n[checkpoint]\nstore = "s3://runs/team"\n'
        "[limits]\nmax_nodes = 4\nmax_usd_per_hour = 2.0\n"
        '[providers.aws]\nkind = "aws"\nregions = ["us-east-1"]\n'
    )
    return path


def job(tmp_path: Path, text: str = JOB_FILE) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return str(path)


def command_line(file: str, config: Path, spend: str = "60usd") -> list[str]:
    arguments = ["doctor", "--live", "--gpu", file, "--cloud", "aws", "--spend-up-to", spend]
    return [*arguments, "--config", str(config)]


def test_job_beyond_the_spending_limit_is_refused(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path, config: Path
) -> None:
    assert spotctl(rig, *command_line(job(tmp_path), config, "1usd")) == 4
    stderr = capsys.readouterr().err
    assert (
        "for 2 machines of 20 minutes and $0.3000 for the interruption, and $1.00 may be sp"
        in stderr
    )
    assert "--spend-up-to" in stderr
    assert rig.store.jobs.rows(True) == []


def test_interruption_fee_reduces_the_job_budget(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path, config: Path
) -> None:
    assert spotctl(rig, *command_line(job(tmp_path), config, "0.3usd")) == 4
    assert "the interruption itself costs up to $0.3000" in capsys.readouterr().err
    assert rig.store.jobs.rows(True) == []


def test_job_without_an_offer_is_refused(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path, config: Path
) -> None:
    text = JOB_FILE.replace("H100:8", "B300:8")
    assert spotctl(rig, *command_line(job(tmp_path, text), config)) == 4
    assert "no matching spot machine is available there" in capsys.readouterr().err
    assert rig.store.jobs.rows(True) == []


def test_job_without_checkpoints_is_refused(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path, config: Path
) -> None:
    text = JOB_FILE.replace("engine: spotd", "engine: none")
    assert spotctl(rig, *command_line(job(tmp_path, text), config)) == 2
    assert "spotd.checkpoint.engine is not spotd" in capsys.readouterr().err


def test_unwritable_report_folder_is_refused_first(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path, config: Path
) -> None:
    (tmp_path / "taken").write_text("")
    report_option = ("--report", str(tmp_path / "taken" / "reports"))
    assert spotctl(rig, *command_line(job(tmp_path), config), *report_option) == 1
    assert "no report can be written to" in capsys.readouterr().err
    assert rig.store.jobs.rows(True) == []


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--live", "--gpu", "x", "--type", "p5.48xlarge"], "are not for --gpu"),
        (["--gpu", "x"], "--gpu, --cloud, --spend-up-to"),
    ],
)
def test_conflicting_options_are_named(
    spotctl: Spotctl, capsys: Captured, more: list[str], text: str
) -> None:
    assert spotctl(None, "doctor", *more) == 2
    assert text in capsys.readouterr().err
