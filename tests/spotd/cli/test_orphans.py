"""`spotctl orphans` with clouds that its daemon does not sweep."""

from __future__ import annotations

import pytest

from spotd.planner.core.orphan_policy import OrphanAction
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl

ALL_GOOD = "everything with spotd's tag belongs to a job\n"


def test_unswept_clouds_are_named(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spotctl(rig, "orphans") == 0
    assert capsys.readouterr().err == ALL_GOOD
    rig.unlisted_providers = ["gcp", "aws"]
    assert spotctl(rig, "orphans") == 0
    assert capsys.readouterr().err == (
        "unknown here for aws, gcp: check the other control box, or spotctl doctor\n"
    )
    rig.hold("i-1", 60, "job jold is not on record")
    assert spotctl(rig, "orphans") == 0
    captured = capsys.readouterr()
    assert "unknown here for aws, gcp" in captured.err
    assert "i-1" in captured.out
    assert "leftovers" not in captured.err
    assert "not in any job's bill: $19.93/h\n" in captured.err


def test_machines_of_other_deployments_are_not_ended(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.hold("i-1", 60, "job jold is not on record")
    rig.hold("i-2", 60, "its tag says that it belongs to d1", OrphanAction.FOREIGN)
    assert spotctl(rig, "orphans", "end") == 0, "one machine is ended without its number"
    assert "released: i-1;" in capsys.readouterr().err
    rig.hold("i-3", 60, "job jold is not on record")
    assert spotctl(rig, "orphans", "end") == 2
