"""`spotctl quarantine`, and the doctor during a quarantine."""

from __future__ import annotations

import json

import pytest

from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl


def test_quarantine_is_shown_checked_by_the_doctor_and_released(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spotctl(rig, "quarantine", "status") == 0
    assert capsys.readouterr().out == "no quarantine\n"
    assert spotctl(rig, "doctor") == 0
    rig.store.deployment.set_quarantine("restored from a backup", rig.clock.now_us())
    assert spotctl(rig, "quarantine", "status") == 0
    assert "quarantine: restored from a backup\n" in capsys.readouterr().out
    assert spotctl(rig, "doctor") == 1
    captured = capsys.readouterr()
    assert "restored from a backup" in captured.out
    assert "then run: spotctl quarantine release" in captured.err
    assert spotctl(rig, "quarantine", "release", "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["active"], data["reason"]) == (False, "restored from a backup")
    assert rig.store.deployment.quarantine() == ""
    assert spotctl(rig, "doctor") == 0
