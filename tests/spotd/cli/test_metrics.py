"""`spotctl metrics`, and the column of margins at a notice."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import spotd.api.metrics
from tests.spotd.api.metrics.test_exposition import read, value, warned
from tests.spotd.api.rig import Rig, story
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[bytes]


def test_metrics_rules_and_board_are_printed(
    rig: Rig, spotctl: Spotctl, capfdbinary: Captured
) -> None:
    story(rig)
    assert spotctl(rig, "metrics", "show") == 0
    assert value(read(capfdbinary.readouterr().out), "spotd_jobs", phase="running", project="") == 1
    folder = Path(spotd.api.metrics.__file__).parent
    for command, name in (("board", "grafana-board.json"), ("rules", "rules.yml")):
        assert spotctl(rig, "metrics", command) == 0
        assert capfdbinary.readouterr().out == (folder / name).read_bytes()


@pytest.mark.req("PRE-07")
def test_the_margin_of_a_notice_is_a_column(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    warned(rig, 1000, 30, 10)
    for arguments in (("show", "warned1"), ("nodes", "warned1")):
        assert spotctl(rig, *arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        [(titles, row)] = [two for two in itertools.pairwise(lines) if "MARGIN" in two[0]]
        at = titles.index("MARGIN")
        assert row[at : at + len("MARGIN")].strip() == "20s"
    story(rig)
    assert spotctl(rig, "nodes", "gpt") == 0
    assert "MARGIN" not in capsys.readouterr().out
