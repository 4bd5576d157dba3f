"""`spotctl doctor --live --gpu`: what it refuses before anything costs money. The whole way is
tests/e2e/test_rehearsal.py."""

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


def words(file: str, config: Path, spend: str = "60usd") -> list[str]:
    found = ["doctor", "--live", "--gpu", file, "--cloud", "aws", "--spend-up-to", spend]
    return [*found, "--config", str(config)]


def test_nothing_is_submitted_that_cannot_be_paid_for(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path, config: Path
) -> None:
    assert spotctl(rig, *words(job(tmp_path), config, "1usd")) == 4
    said = capsys.readouterr().err
    assert "for 2 machines of 20 minutes and 0.30 for the interruption, and 1.00 may be sp" in said
    assert "--spend-up-to" in said
    assert rig.store.jobs(True) == []


def test_what_the_interruption_costs_is_not_for_the_job(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path, config: Path
) -> None:
    assert spotctl(rig, *words(job(tmp_path), config, "0.3usd")) == 4
    assert "the interruption alone costs up to 0.30 USD" in capsys.readouterr().err
    assert rig.store.jobs(True) == []


def test_nothing_is_submitted_that_nobody_sells(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path, config: Path
) -> None:
    text = JOB_FILE.replace("H100:8", "B300:8")
    assert spotctl(rig, *words(job(tmp_path, text), config)) == 4
    assert "no spot machine that fits is on sale there" in capsys.readouterr().err
    assert rig.store.jobs(True) == []


def test_a_job_without_checkpoints_is_none_to_rehearse(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path, config: Path
) -> None:
    text = JOB_FILE.replace("engine: spotd", "engine: none")
    assert spotctl(rig, *words(job(tmp_path, text), config)) == 2
    assert "spotd.checkpoint.engine is not spotd" in capsys.readouterr().err


def test_a_report_has_a_place_before_anything_costs_money(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path, config: Path
) -> None:
    (tmp_path / "taken").write_text("")
    taken = ("--report", str(tmp_path / "taken" / "reports"))
    assert spotctl(rig, *words(job(tmp_path), config), *taken) == 1
    assert "no report can be written to" in capsys.readouterr().err
    assert rig.store.jobs(True) == []


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--live", "--gpu", "x", "--type", "p5.48xlarge"], "are not for --gpu"),
        (["--gpu", "x"], "--gpu, --cloud, --spend-up-to"),
    ],
)
def test_options_that_do_not_go_together_are_named(
    spotctl: Spotctl, capsys: Captured, more: list[str], text: str
) -> None:
    assert spotctl(None, "doctor", *more) == 2
    assert text in capsys.readouterr().err
