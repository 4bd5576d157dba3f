"""bench/hours.py finds a day's cycle where there is one, and none where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.daily import DAYS, HOURS, MARGIN, Day, counted, foretold
from bench.hours import TRACES, main, out_of_time
from spotd.planner.spot_policy import Sighting

TICKS = 28 * 48  # of half an hour


def cycle(tick: int) -> bool:
    return not 12 <= tick / 2 % 24 < 18 or tick % 2 == 0


def flat(tick: int) -> bool:
    return tick % 10 != 0


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    (tmp_path / "data" / "tune").mkdir(parents=True)
    for _, name, gang in TRACES:
        avail = np.array([[up(tick) for tick in range(TICKS)] for up in (cycle, flat)]) * gang
        np.savez(
            tmp_path / "data" / "tune" / f"{name}.npz",
            zones=np.array(["cycle", "flat"]),
            avail=avail.astype(np.uint8),
            gap=1800.0,
            start="2023-02-15T00:00:00",
        )
    return tmp_path


def test_a_cycle_is_found_out_of_time_and_in_turn(traces: Path) -> None:
    out = traces / "out.json"
    assert main(["--traces", str(traces), "--json", str(out)]) == 0
    found: dict[str, list[dict[str, Any]]] = json.loads(out.read_text())
    assert list(found) == [suites for suites, _, _ in TRACES]
    ends = {row["name"]: row for row in found["S1"] if row["of"] == "ends"}
    assert ends["cycle"]["hour"]["low"] > 0.05
    assert ends["cycle"]["speaks"] == 1.0
    assert ends["cycle"]["by_chance"] < 0.2
    assert ends["flat"]["hour"]["nats"] < 0.01
    assert ends["flat"]["speaks"] == 0.0
    both = ends["all 2"]
    assert both["speaks"] == 1.0
    events = [ends[name]["hour"]["events"] for name in ("cycle", "flat")]
    assert both["hour"]["events"] == sum(events)


def test_each_half_is_scored_on_what_the_other_says() -> None:
    """Bad at one hour in the first half and at another in the second: nothing but harm."""

    def day(bad: int) -> Day:
        return Day([6.0 * (hour == bad) for hour in range(HOURS)], [0.25] * HOURS)

    told = {number: day(3 if number < 6 else 15) for number in range(12)}
    hour, weekend = out_of_time(told)
    assert len(hour) == 12
    assert max(nats for nats, _ in hour.values()) < 0
    assert not weekend  # a week holds one


def test_a_folder_without_traces_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--traces", str(tmp_path)]) == 2
    assert "--traces: " in capsys.readouterr().err


def days_of(days: int, up: Callable[[int], bool]) -> Mapping[int, Day]:
    """The ends, of what is looked at each half hour."""
    return counted([Sighting(tick * 1800.0, up(tick)) for tick in range(days * 48)])[0]


def test_a_few_days_do_not_speak_however_clear_they_are() -> None:
    few = foretold(days_of(DAYS, cycle))  # the first day is foretold by none
    assert few.nats > MARGIN
    assert not few.speaks
    assert foretold(days_of(DAYS + 1, cycle)).speaks


def test_bad_hours_that_are_others_each_day_do_not_speak() -> None:
    """Each day is as uneven as in the cycle, and no hour is worse than another."""
    assert not foretold(days_of(28, lambda tick: cycle(tick + 14 * (tick // 48)))).speaks


def test_no_day_is_foretold_by_itself() -> None:
    told = days_of(2, cycle)
    assert (foretold({0: told[0]}).days, foretold({0: told[0]}).nats) == (0, 0.0)
    assert foretold({0: told[0], 1: days_of(1, flat)[0]}).nats < 0
