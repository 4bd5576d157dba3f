"""`spotctl orphans` says nothing of clouds that its daemon does not sweep."""

from __future__ import annotations

import pytest

from spotd.planner.core.orphan_policy import OrphanAction
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl

ALL_GOOD = "everything with our tag belongs to a job\n"


def test_a_box_that_does_not_sweep_says_so(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spotctl(rig, "orphans") == 0
    assert capsys.readouterr().err == ALL_GOOD
    rig.unswept = ["gcp", "aws"]
    assert spotctl(rig, "orphans") == 0
    assert capsys.readouterr().err == (
        "not known here of aws, gcp: ask the other control box, or spotctl doctor\n"
    )
    rig.hold("i-1", 60, "job jold is not on record")
    assert spotctl(rig, "orphans") == 0
    captured = capsys.readouterr()
    assert "not known here of aws, gcp" in captured.err
    assert "i-1" in captured.out
    assert "leftovers" not in captured.err
    assert "in no job's bill: $19.93/h\n" in captured.err


def test_others_machines_are_not_counted_in_the_order_to_end(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.hold("i-1", 60, "job jold is not on record")
    rig.hold("i-2", 60, "its tag says that it belongs to d1", OrphanAction.FOREIGN)
    assert spotctl(rig, "orphans", "end") == 0, "one machine is ended without its number"
    assert "released: i-1;" in capsys.readouterr().err
    rig.hold("i-3", 60, "job jold is not on record")
    assert spotctl(rig, "orphans", "end") == 2
