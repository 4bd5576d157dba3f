"""`spotctl metrics`, and the column of margins."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

import spotd.monitoring
from spotd.monitoring.board import board
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.serve.rig import Rig, story
from tests.spotd.serve.test_metrics import read, value, warned

Captured = pytest.CaptureFixture[bytes]


def test_what_it_prints(rig: Rig, spotctl: Spotctl, capfdbinary: Captured) -> None:
    story(rig)
    assert spotctl(rig, "metrics", "show") == 0
    assert value(read(capfdbinary.readouterr().out), "spotd_jobs", phase="running", project="") == 1
    assert spotctl(rig, "metrics", "board") == 0
    assert json.loads(capfdbinary.readouterr().out) == board()
    assert spotctl(rig, "metrics", "rules") == 0
    rules = Path(spotd.monitoring.__file__).parent / "rules.yml"
    assert capfdbinary.readouterr().out == rules.read_bytes()


@pytest.mark.req("PRE-07")
def test_the_margin_of_a_notice_is_a_column(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    warned(rig, 1000, 30, 10)
    for words in (("show", "warned1"), ("nodes", "warned1")):
        assert spotctl(rig, *words) == 0
        lines = capsys.readouterr().out.splitlines()
        [(titles, row)] = [two for two in itertools.pairwise(lines) if "MARGIN" in two[0]]
        at = titles.index("MARGIN")
        assert row[at : at + len("MARGIN")].strip() == "20s"
    story(rig)
    assert spotctl(rig, "nodes", "gpt") == 0
    assert "MARGIN" not in capsys.readouterr().out
