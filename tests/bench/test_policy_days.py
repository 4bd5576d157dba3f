"""The made-up zones of bench/policy_days.py have the day that it says."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from policy_days import LENGTH_D, cases, main, zone


def there(shift_h: float, day: float) -> list[float]:
    """The share of time in which it is there, by hour."""
    rows = [zone(np.random.default_rng(seed), shift_h, day) for seed in range(20)]
    by_hour = np.array(rows).reshape(20 * LENGTH_D, 24, 6).mean((0, 2))
    return [float(share) for share in by_hour]


def test_a_day_has_bad_hours_where_it_is_shifted_to() -> None:
    bad, good = there(0, 6.0)[18], there(0, 6.0)[10]
    assert good > bad + 0.3
    shifted = there(8, 6.0)
    assert shifted[2] > shifted[10] + 0.3
    alike = there(0, 1.0)
    assert max(alike) - min(alike) < 0.2


def test_cases_begin_at_all_hours_and_hold_their_deadline() -> None:
    made = cases(1.7, (0, 8, 16), 24)
    assert len({one["start"] // 6 % 24 for one in made}) == 24
    for one in made:
        assert one["start"] + one["deadline_s"] / one["gap"] <= len(one["avail"][0])
    assert made[0]["avail"] != made[1]["avail"]
    assert made[0]["avail"] == cases(1.7, (0, 8, 16), 1)[0]["avail"]


def test_what_cannot_be_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--traces", str(tmp_path)]) == 2
    assert "--traces: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--traces", str(tmp_path), "--cases", "1"])
