"""bench/policy.py counts what policies cost as its page says; the traces' folder is a small one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from policy import main
from policy_score import Bounds, blocks_of, score, within

# Four windows of 10 ticks, in a series of 40; a policy costs what its class says.
BENCH = """
class Suites:
    def suite(self, name, part):
        return [dict(avail=[[1] * 40], spot=[[1.0] * 40], od_price=[3.0], zones=["zone"],
                     start=start, deadline_s=100.0, work_s=50.0, d_s=60.0, gap=10.0, series="zone")
                for start in (0, 10, 20, 30)]

S = Suites()

class Fixed:
    def __init__(self, name, cost, missed=(), guarded=()):
        self.name, self.cost, self.missed, self.guarded = name, cost, missed, guarded

def od_only(case):
    return 10.0

def oracle(name, part):
    return [4.0] * 4

def baselines(name):
    return [Fixed("on-demand", 10.0), Fixed("uniform-progress" if name == "S1" else "UP(S)", 8.0)]

def run(policy, cases, ckpt_s):
    def one(start):
        if start in getattr(policy, "missed", ()):
            return 20.0, 1, None
        told = {"safety_hits": int(start in getattr(policy, "guarded", ()))}
        return getattr(policy, "cost", 7.0) + ckpt_s / 600, 0, told  # 7: the daemon's own
    return [one(case["start"]) for case in cases]
"""
OURS = """
class Ours:
    name, cost, missed, guarded = "ours", 6.0, (), (10,)
class Late(Ours):
    missed = (20,)
class Double(Ours):
    name = "uniform-progress"
"""


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run_bench.py").write_text(BENCH)
    (tmp_path / "anchors").mkdir()
    anchor = {"name": "theirs", "cost": [7.0, None, 7.0, 7.0]}
    (tmp_path / "anchors" / "S1_tune_theirs.json").write_text(json.dumps(anchor))
    (tmp_path / "made_up_policies.py").write_text(OURS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "made_up_policies", raising=False)
    return tmp_path


def told(traces: Path, *words: str, status: int = 0, suites: str = "S1") -> dict[str, Any]:
    out = traces / "out.json"
    arguments = ["--traces", str(traces), "--suites", suites, "--json", str(out), *words]
    assert main(arguments) == status
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def rows(found: dict[str, Any], suite: str = "S1") -> dict[str, Any]:
    return {row["policy"]: row for row in found[suite]["scores"]}


def test_the_gap_that_is_closed_is_of_the_ratios_and_not_of_dollars() -> None:
    on_demand = np.array([10.0, 1000.0])
    blocks = np.array([0, 1])
    bounds = Bounds(on_demand, on_demand * 0.8, on_demand * 0.4, blocks)
    found = score("ours", np.array([4.0, 800.0]), bounds)
    assert found.ratio == pytest.approx(0.6)
    assert found.omni == pytest.approx(1.5)
    assert found.closed == pytest.approx(0.5)


def test_the_interval_draws_whole_blocks() -> None:
    """Half of the cases close all, half nothing: as one block each, any share may be drawn; as
    blocks that are alike, none but the mean."""
    on_demand = np.full(40, 10.0)
    cost = np.where(np.arange(40) % 2, 4.0, 8.0)

    def interval(blocks: Any) -> Any:
        return score("x", cost, Bounds(on_demand, on_demand * 0.8, on_demand * 0.4, blocks)).ci90

    assert interval(np.arange(40) // 2) == (pytest.approx(0.5), pytest.approx(0.5))
    assert interval(np.arange(40) % 2) == (pytest.approx(0.0), pytest.approx(1.0))
    assert interval(np.zeros(40, dtype=np.intp)) is None


def test_without_a_gap_nothing_is_closed() -> None:
    same = np.array([5.0, 5.0])
    found = score("x", same, Bounds(same * 2, same, same, np.array([0, 1])))
    assert (found.closed, found.ci90) == (None, None)


def test_a_window_over_the_middle_is_of_neither_half() -> None:
    """Else a policy fitted on one half would be scored on what it has seen."""
    cases = [
        {"avail": [[1] * 40], "start": start, "deadline_s": 100.0, "gap": 10.0, "series": "zone"}
        for start in (0, 10, 11, 19, 20, 30)
    ]
    assert within(cases, "first") == [0, 1]
    assert within(cases, "second") == [4, 5]
    assert within(cases, "all") == [0, 1, 2, 3, 4, 5]


def test_windows_within_the_longest_deadline_are_one_block_of_their_series() -> None:
    def case(series: str, start: int, deadline_s: float) -> dict[str, Any]:
        return {"series": series, "start": start, "deadline_s": deadline_s, "gap": 10.0}

    cases = [case("a", 0, 50.0), case("a", 9, 100.0), case("a", 10, 50.0), case("b", 0, 50.0)]
    assert blocks_of(cases).tolist() == [0, 0, 1, 2]


def test_a_policy_beside_the_published_ones(traces: Path) -> None:
    found = told(traces, "--policy", "made_up_policies:Ours")
    assert (found["S1"]["cases"], found["S1"]["blocks"]) == (4, 4)
    assert found["S1"]["optimum_ratio"] == pytest.approx(0.4)
    ours = rows(found)["ours"]
    assert (ours["ratio"], ours["closed"]) == (pytest.approx(0.6), pytest.approx(0.5))
    assert (ours["missed"], ours["guarded"]) == (0, 1)
    assert rows(found)["uniform-progress"]["closed"] == pytest.approx(0.0)


def test_a_missed_deadline_is_counted_costs_twice_and_fails(traces: Path) -> None:
    late = rows(told(traces, "--policy", "made_up_policies:Late", status=1))["ours"]
    assert (late["missed"], late["guarded"]) == (1, 2)
    assert late["ratio"] == pytest.approx((3 * 0.6 + 2.0) / 4)
    theirs = rows(told(traces))["theirs [external]"]  # the same of others, whose code is not ours
    assert theirs["missed"] == 1
    assert theirs["ratio"] == pytest.approx((3 * 0.7 + 2.0) / 4)
    assert theirs["guarded"] is None


def test_others_costs_are_taken_for_the_same_cases(traces: Path) -> None:
    assert rows(told(traces, "--half", "second"))["theirs [external]"]["missed"] == 0
    assert rows(told(traces, "--half", "first"))["theirs [external]"]["missed"] == 1
    assert told(traces, "--every", "2")["S1"]["cases"] == 2


def test_drawn_cases_take_the_place_of_the_suite_s(traces: Path) -> None:
    """Whose optimum and others' costs are of other cases."""
    found = told(traces, "--draw", "6")
    assert (found["S1"]["cases"], found["S1"]["optimum_ratio"]) == (6, None)
    assert "pip install numba" in found["S1"]["no_optimum"]
    assert rows(found)["uniform-progress"]["ratio"] == pytest.approx(0.8)
    assert "theirs [external]" not in rows(found)


def test_work_is_lost_in_minutes_and_others_who_lost_none_are_left_out(traces: Path) -> None:
    found = rows(told(traces, "--ckpt-min", "10"))
    assert found["uniform-progress"]["mean_usd"] == pytest.approx(9.0)
    assert "theirs [external]" not in found


def test_the_mean_over_several_zones_wants_all_four(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(traces, "--policy", "made_up_policies:Ours", suites="M1,M2,M3")
    assert "mean closed" not in capsys.readouterr().out
    told(traces, "--policy", "made_up_policies:Ours", suites="S1,M1,M2,M3,M4")
    assert "mean closed over M1 to M4: ours 0.500\n" in capsys.readouterr().out


def test_the_same_arguments_give_the_same_bytes(traces: Path) -> None:
    told(traces, "--policy", "made_up_policies:Ours")
    once = (traces / "out.json").read_bytes()
    told(traces, "--policy", "made_up_policies:Ours")
    assert (traces / "out.json").read_bytes() == once


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "made_up_policies"], "--policy made_up_policies: "),
        (["--policy", "made_up_policies:None_"], "write it as MODULE:CLASS"),
        (["--policy", "made_up_policies:Double"], "give yours another `name`"),
        (["--traces", "nowhere"], "name the folder that holds run_bench.py"),
    ],
)
def test_what_cannot_be_run_is_said(
    traces: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["--traces", str(traces), "--suites", "S1", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suites", "S9"], "--suites: S9 is none of S1"),
        (["--every", "0"], "--every: 0 is below 1"),
        (["--draw", "-1"], "--draw: -1 is below 0"),
        (["--draw", "9", "--half", "first"], "--draw: is from all of the time"),
        (["--draw", "9", "--own", "mine.npz"], "--draw: is of DIR's suites"),
        (["--ckpt-min", "nan"], "--ckpt-min: nan is not a number of minutes"),
    ],
)
def test_bad_arguments_are_named(
    traces: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit):
        main(["--traces", str(traces), *words])
    assert said in capsys.readouterr().err
