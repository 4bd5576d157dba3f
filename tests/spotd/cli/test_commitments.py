"""`spotctl advisor commitments` from a file, and from the ledger through the real API."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from providers.base import PREPAID
from spotd.domain.units import US_PER_H
from tests.spotd.api.rig import OFFERS, SPOT, Rig
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]
EXAMPLE = str(Path(__file__).parents[3] / "examples" / "use.csv")
PRICED = ("--on-demand-usd-per-hour", "55.04", "--spot-usd-per-hour", "19.93")


def commitment_advice(
    spotctl: Spotctl, rig: Rig | None, capsys: Captured, *arguments: str
) -> list[dict[str, Any]]:
    assert spotctl(rig, "advisor", "commitments", *arguments, "-o", "json") == 0
    items: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["items"]
    return items


@pytest.mark.req("HYB-09")
def test_hours_of_a_file(spotctl: Spotctl, capsys: Captured) -> None:
    """Four weeks: at least 2 machines on demand and 3 on spot, and more of both by day."""
    [advice] = commitment_advice(
        spotctl, None, capsys, "--use", EXAMPLE, *PRICED, "--discount", "40%"
    )
    assert (advice["hours"], advice["few"]) == (672, False)
    assert advice["machines"] == {"least": 5, "mean": pytest.approx(5 + 11 * 200 / 672), "most": 16}
    assert advice["prices"]["committed"] == pytest.approx(33.024)
    assert advice["advised"] == 2, "the third would be used on demand by day alone"
    assert advice["of_baseline"] == 0.4
    plan = next(plan for plan in advice["plans"] if plan["name"] == "advised")
    assert plan["committed_usd"] == pytest.approx(2 * 672 * 33.024)
    assert (plan["on_demand_h"], plan["spot_h"]) == (400, 3 * 672 + 9 * 200)
    assert plan["saved_usd"] == pytest.approx(2 * 672 * (55.04 - 33.024), abs=1e-3)
    arguments = ("--use", EXAMPLE, *PRICED, "--discount", "40", "-o", "wide")
    assert spotctl(None, "advisor", "commitments", *arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "use: 672 hours, 5.00 to 16.00 machines at once, 8.27 on average"
    assert lines[1].startswith("commit to 2, 40.0 % of those always in use, at $33.02 an hour")
    assert "saves $29,589.50, and leaves 68.6 % of the hours to spot" in lines[1]


def test_hours_of_the_ledger(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    """Two spot machines and one on demand for ten hours; local and reserved ones do not count."""
    job_id = rig.submit(ago_s=40_000)
    paid = replace(OFFERS[1], instance_type="p4d.24xlarge", price_source=PREPAID)
    for offer in (SPOT, SPOT, OFFERS[1], OFFERS[2], paid):
        rig.launch(job_id, offer, ago_s=36_000)
    [advice] = commitment_advice(spotctl, rig, capsys, "--discount", "40")
    assert (advice["cloud"], advice["region"], advice["instance_type"]) == (
        "aws",
        "us-east-1",
        "p5.48xlarge",
    )
    begin, now = rig.clock.now_us() - 36_000_000_000, rig.clock.now_us()
    assert advice["hours"] == now // US_PER_H - -(-begin // US_PER_H)
    assert advice["machines"] == {"least": 3, "mean": 3, "most": 3}
    assert advice["prices"]["on_demand"] == pytest.approx(55.04)
    assert advice["prices"]["spot"] == pytest.approx(19.93)
    assert advice["advised"] == 1, "what runs on demand; the rest is cheaper on spot"
    assert spotctl(rig, "advisor", "commitments", "--discount", "40") == 0
    assert "fewer than four weeks" in capsys.readouterr().err
    none = ("--discount", "40", "--type", "g5.xlarge", "--since", "90d", "-o", "json")
    assert spotctl(rig, "advisor", "commitments", *none) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["items"] == []
    assert "no rented machines of type g5.xlarge are on record of the last 90d" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the price of a commitment is missing"),
        (
            ("--discount", "40", "--committed-usd-per-hour", "5"),
            "the price of a commitment is missing",
        ),
        (("--discount", "x"), "--discount 'x' is not above 0 %"),
        (("--committed-usd-per-hour", "inf"), "should be less than or equal to 1000000"),
        (("--discount", "100"), "is not above 0 % and below 100 %"),
        (("--discount", "40"), "the on-demand price of use is not known"),
        (("--discount", "40", *PRICED[:2]), "the spot price of use is not known"),
    ],
)
def test_missing_options_are_named(
    spotctl: Spotctl, capsys: Captured, arguments: tuple[str, ...], message: str
) -> None:
    assert spotctl(None, "advisor", "commitments", "--use", EXAMPLE, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hour,spot\n", "has the columns hour, spot"),
        ("hour,on_demand,spot\n", "has no hours"),
        ("hour,on_demand,spot\nnow,1,1\n", "line 2: hour: 'now' is not a time"),
        ("hour,on_demand,spot\n2026-01-01T00:00,1,1\n", "has no zone"),
        (
            "hour,on_demand,spot\n2026-01-01T00:00Z,1,1\n2026-01-01T02:00Z,1,1\n",
            "line 3: hour: '2026-01-01T02:00Z' does not follow the hour before",
        ),
        (
            "hour,on_demand,spot\n2026-01-01T00:00Z,-1,1\n",
            "line 2: on_demand: '-1' is not a number",
        ),
        ("hour,on_demand,spot\n2026-01-01T00:00Z,1,nan\n", "line 2: spot: 'nan' is not a number"),
        ("hour,on_demand,spot\n2026-01-01T00:00Z,1\n", "line 2: spot: None is not a number"),
        ("hour,on_demand,spot\n2026-01-01T00:00Z,1,1,1\n", "line 2: it has more fields"),
    ],
)
def test_invalid_file_is_named_with_its_line(
    spotctl: Spotctl, capsys: Captured, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "use.csv").write_text(text)
    arguments = ("--use", str(tmp_path / "use.csv"), *PRICED, "--discount", "40")
    assert spotctl(None, "advisor", "commitments", *arguments) == 2
    assert message in capsys.readouterr().err
