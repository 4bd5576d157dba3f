"""Drawn cases are of the suite's series, each with zones, a time and a start of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from policy_drawn import EGRESS, RESTART, ZONES, drawn

TICKS, GAP_S = 400, 600.0


def case(zones: int, deadline_s: float) -> dict[str, Any]:
    """Each zone's numbers are its own."""
    named = [f"z{n}" for n in range(zones)]
    return {
        "series": f"all{zones}",
        "start": 0,
        "avail": [[n] * TICKS for n in range(zones)],
        "spot": [[10.0 + n] * TICKS for n in range(zones)],
        "od_price": [100.0 + n for n in range(zones)],
        "zones": named,
        "egress": [[0.0 if a == b else 10.0 * a + b for b in range(zones)] for a in range(zones)],
        "gap": GAP_S,
        "deadline_s": deadline_s,
        "work_s": 40 * 3600.0,
        "d_s": 720.0,
        "net": "latch",
    }


SUITE = [case(zones, times * 40 * 3600.0) for zones in (3, 12) for times in (1.1, 1.5)]


def test_zones_keep_what_is_theirs() -> None:
    found = drawn(SUITE, 60, seed=1)
    for one in found:
        numbers = [int(zone[1:]) for zone in one["zones"]]
        assert ZONES[0] <= len(set(numbers)) == len(numbers) <= ZONES[1]
        assert [series[0] for series in one["avail"]] == numbers
        assert [series[0] for series in one["spot"]] == [10.0 + n for n in numbers]
        assert one["od_price"] == [100.0 + n for n in numbers]
        ways = [10.0 * a + b if a != b else 0.0 for a in numbers for b in numbers]
        told = [usd for row in one["egress"] for usd in row]
        [times] = {round(usd / way, 6) for usd, way in zip(told, ways, strict=True) if way}
        assert EGRESS[0] <= times <= EGRESS[1]
    assert {zone for one in found for zone in one["zones"]} == set(SUITE[-1]["zones"])
    assert len({tuple(one["zones"]) for one in found}) > 50


def test_windows_lie_within_the_series_and_deadlines_take_turns() -> None:
    found = drawn(SUITE, 60, seed=1)
    for number, one in enumerate(found):
        assert one["deadline_s"] == SUITE[number % 2]["deadline_s"]
        assert 0 <= one["start"] <= TICKS - one["deadline_s"] / GAP_S
        assert RESTART[0] * 720 - 30 <= one["d_s"] <= RESTART[1] * 720 + 30
        assert one["d_s"] % 60 == 0
    assert len({one["start"] for one in found}) > 40


def test_one_zone_stays_one_and_has_no_ways() -> None:
    single = {key: value for key, value in case(1, 60 * 3600.0).items() if key != "egress"}
    for one in drawn([single], 5, seed=1):
        assert one["zones"] == ["z0"]
        assert "egress" not in one


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_draws_the_same(seed: int) -> None:
    assert drawn(SUITE, 9, seed) == drawn(SUITE, 9, seed)
    assert drawn(SUITE, 9, seed) != drawn(SUITE, 9, seed + 1)
