"""`--clock`: the policy is told the time and what was before the case, and nothing of the case."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from policy import main
from policy_clock import WITH, WITHOUT, Watched, begins_s, trace_of
from policy_score import Bounds, brought

from spotd.decide.policy import UNKNOWN, Sighting, learned, recorded
from tests.bench.test_policy import BENCH, rows, told

HALF_H, DAY = 1800.0, 48
VIEW = SimpleNamespace(nz=1, gap=HALF_H, zones=["us-east-1a_v100_1"])


def cycle(tick: int) -> int:
    return int(not 12 <= tick / 2 % 24 < 18 or tick % 2 == 0)


def case(start: int, after: int = 0) -> dict[str, Any]:
    """Ten days of a cycle, and then what `after` says."""
    row = [cycle(tick) for tick in range(10 * DAY)] + [after] * DAY
    return {"suite": "zone", "start": start, "avail": [row], "zones": VIEW.zones}


def begun(one: dict[str, Any], *, hours: bool = True) -> Watched:
    policy = Watched(0.0, hours=hours)
    policy.play([one], 1_000 * 86_400.0)
    policy.reset(VIEW)
    return policy


def test_what_was_before_a_case_is_known_at_its_time() -> None:
    policy = begun(case(10 * DAY))
    assert policy.origin_s == 1_010 * 86_400
    seen = [Sighting(1_000 * 86_400 + n * HALF_H, bool(cycle(n))) for n in range(10 * DAY)]
    assert (policy.records[0], policy.hours[0]) == learned(seen)
    assert policy.hours[0].ends.used
    assert policy.records[0].seen_s < policy.origin_s


def test_nothing_of_the_case_itself_is_known() -> None:
    ours = [begun(case(10 * DAY, after)) for after in (0, 1)]
    assert ours[0].records == ours[1].records
    assert ours[0].hours == ours[1].hours
    first = begun(case(0))
    assert (first.records, first.hours) == ([recorded([])], [UNKNOWN])


def test_without_the_term_the_same_is_known_but_for_the_hours() -> None:
    whole, without = begun(case(10 * DAY)), begun(case(10 * DAY), hours=False)
    assert without.records == whole.records
    assert without.origin_s == whole.origin_s
    assert without.hours == [UNKNOWN]


def test_cases_are_told_in_their_order() -> None:
    policy = Watched(0.0, hours=True)
    policy.play([case(DAY), case(2 * DAY)], 0.0)
    for days in (1, 2):
        policy.reset(VIEW)
        assert policy.origin_s == days * 86_400


def test_what_a_term_brings_is_told_case_by_case() -> None:
    on_demand = np.array([10.0, 10.0, 10.0, 10.0])
    bounds = Bounds(on_demand, on_demand, None, np.array([0, 0, 1, 1]))
    without = np.array([1.0, 9.0, 5.0, 5.0])
    found = brought(without - np.array([1.0, 0.0, 1.0, 0.0]), without, bounds)
    assert found.ratio == pytest.approx(-0.05)
    assert found.ci90 == (pytest.approx(-0.05), pytest.approx(-0.05))
    assert found.changed == 2


def test_it_is_scored_with_the_hour_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run_bench.py").write_text(BENCH.replace("dict(", 'dict(suite="zone", '))
    words = ["--traces", str(tmp_path), "--suites", "S1", "--clock"]
    assert main(words) == 2  # a trace that says no time
    assert "zone.npz" in capsys.readouterr().err
    file = trace_of(tmp_path, "tune", "zone")
    file.parent.mkdir(parents=True)
    np.savez(file, start="2023-02-15T22:08:16")
    assert begins_s(file) == 1_676_498_896
    found = told(tmp_path, "--clock")
    assert {WITH, WITHOUT} < set(rows(found))
    assert found["S1"]["hour"] == {"ratio": 0.0, "ci90": [0.0, 0.0], "changed": 0}
    assert "the hour of the day brings +0.00000 of ratio" in capsys.readouterr().out
    assert WITH not in rows(told(tmp_path))
