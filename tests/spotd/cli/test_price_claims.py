"""`spotctl price claims`: prices that guides claim, beside current prices."""

from __future__ import annotations

import json

import pytest

from tests.spotd.api.rig import OFFERS, Rig
from tests.spotd.cli.conftest import Spotctl


@pytest.mark.req("PLC-11")
def test_current_prices_stand_beside_claims(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.offer_them(*OFFERS)
    assert spotctl(rig, "price", "claims", "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    rows = [item for item in data["items"] if item["seller"] == "spheron"]
    assert [item["note"] for item in rows] == ["superseded: $2.91 of $5.07 since 2026-06-01", ""]
    for item in rows:  # of one GPU of eight: $19.93 and $55.04
        assert item["here"] == {"on_demand": 55.04 / 8, "spot": 19.93 / 8}
    assert {item["here"] is None for item in data["items"] if item["accelerator"] != "H100"} == {
        True
    }
    assert data["deepest"]["RTX4090"]["seller"] == "lambda"


@pytest.mark.req("PLC-10")
def test_without_a_daemon_only_claims_are_shown(
    spotctl: Spotctl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert spotctl(None, "price", "claims") == 0
    shown = capsys.readouterr()
    assert "without current prices: " in shown.err
    [line] = [line for line in shown.out.splitlines() if line.startswith("A100-80GB  lambda")]
    assert line.split()[2:] == ["$3.40", "$2.40", "29.4", "%", "2026-01-01", "-", "-", *NO_SPOT]


NO_SPOT = ["unverified:", "provider", "sells", "no", "spot"]
