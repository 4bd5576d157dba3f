"""Files of `spotctl advisor trace` become cases as those of the suites, and are scored; DIR is a
small one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import policy_own
from policy import main
from policy_ours import region
from policy_own import Own, own
from policy_score import Bounds, score

from spotd.cli.trace_files import build_traces, write_traces

NOW_US = 2_900_000 * 3600 * 1_000_000
H_US = 3600 * 1_000_000
BENCH = """
import numpy as np

class Suites:
    DATA = "/nowhere"
    KEYS = ("work_s",)

    def load(self, part, name):
        f = np.load(f"{self.DATA}/{part}/{name}.npz")
        return dict(zones=[str(z) for z in f["zones"]], avail=f["avail"], gap=float(f["gap"]),
                    spot=f["spot"].astype(float), od=[float(x) for x in f["od"]], n=1)

    def starts(self, ticks, need, count):
        return sorted({round(i * (ticks - need) / (count - 1)) for i in range(count)})

    def egress_per_gb(self, a, b):
        return 0.02

    def egress_matrix(self, zones, gb):
        return [[0.0 if a == b else gb for b in zones] for a in zones]

S = Suites()

class Fixed:
    def __init__(self, name, cost):
        self.name, self.cost = name, cost

def od_only(case):
    return 10.0

def baselines(name):
    return [Fixed("on-demand", 10.0), Fixed("uniform-progress" if name == "S1" else "UP(S)", 8.0)]

def run(policy, cases, ckpt_s):
    return [(getattr(policy, "cost", 7.0), 0, {"safety_hits": 0}) for _ in cases]
"""
ORACLE = "def omniscient(work_s, start, egress):\n    return 4.0\n"
POOLS = (
    ("aws", "aws/us-east-1/us-east-1a/p5.48xlarge", 20.0),
    ("aws", "aws/us-east-1/us-east-1b/p5.48xlarge", 30.0),
    ("aws", "aws/us-west-2/us-west-2a/p5.48xlarge", 21.0),
    ("gcp", "gcp/us-central1/us-central1-a/a3-highgpu-8g", 25.0),
    ("azure", "azure/eastus/eastus-any/ND96", 28.0),
)


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run_bench.py").write_text(BENCH)
    for name in ("spotbench", "spotbench.oracle"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.fixture
def bench() -> Any:
    namespace: dict[str, Any] = {}
    exec(BENCH, namespace)
    return SimpleNamespace(**namespace)


def exported(folder: Path, hours: int = 100, zones: int = 5) -> Path:
    """As the command writes it: each zone held for the first and the last ten hours, and nobody
    looked between."""
    first, last = [NOW_US, NOW_US + 10 * H_US], [NOW_US + (hours - 10) * H_US]
    items = [
        {
            "pool": pool,
            "cloud": cloud,
            "accelerator": "H100",
            "accelerator_count": 8,
            "held_us": [first, [*last, NOW_US + hours * H_US]],
            "missed_us": [],
            "spot_microusd_per_h": [[NOW_US, int(usd * 1e6)]],
            "on_demand_microusd_per_h": [[NOW_US, 55_000_000]],
        }
        for cloud, pool, usd in POOLS[:zones]
    ]
    data = {"items": items, "since_us": NOW_US, "until_us": NOW_US + hours * H_US}
    write_traces(build_traces(data, 3600, 0), folder)
    return folder / "h100_8.npz"


def cases(bench: Any, file: Path, unseen: Any = "down", work_h: float = 40.0) -> Own:
    return own(bench, file, work_h, unseen)


def test_jobs_are_those_of_the_suites_of_several_zones(bench: Any, tmp_path: Path) -> None:
    found = cases(bench, exported(tmp_path))
    assert found.like == "M1"
    assert {case["deadline_s"] / case["work_s"] for case in found.cases} == {1.1, 1.25, 1.5, 2.0}
    assert {case["work_s"] for case in found.cases} == {40 * 3600}
    starts = sorted({case["start"] for case in found.cases})
    assert (starts[0], starts[-1], len(starts)) == (0, 20, 10), "over all its length"
    assert all(len(case["avail"][0]) == 100 for case in found.cases)
    prices = {case["series"]: [row[0] for row in case["spot"]] for case in found.cases}
    assert prices == {"all5": [28.0, 25.0, 20.0, 30.0, 21.0], "cheapest3": [25.0, 20.0, 21.0]}


def test_one_zone_is_a_suite_of_one_zone(bench: Any, tmp_path: Path) -> None:
    found = cases(bench, exported(tmp_path, zones=1))
    assert (found.like, {case["series"] for case in found.cases}) == ("S1", {"all1"})


def test_what_nobody_saw_is_not_to_be_had_unless_that_is_asked(bench: Any, tmp_path: Path) -> None:
    file = exported(tmp_path)
    down, hold = cases(bench, file), cases(bench, file, "hold")
    assert sum(down.cases[0]["avail"][0]) == 11 + 10
    assert sum(hold.cases[0]["avail"][0]) == 100
    assert "21 % of its ticks were seen, and the rest is not to be had" in down.about
    assert "and the rest is what was seen last" in hold.about


def test_regions_and_the_way_of_a_checkpoint_are_read_from_the_pools(
    bench: Any, tmp_path: Path
) -> None:
    case = cases(bench, exported(tmp_path)).cases[0]
    found = [region(zone) for zone in case["zones"]]
    assert [one.partition("/")[2] for one in found] == [
        "eastus",
        "us-central1",
        "us-east-1",
        "us-east-1",
        "us-west-2",
    ]
    assert found[1] == "gcp/us-central1"
    azure, google, east_a, east_b, west = range(5)
    usd = case["egress"]
    assert (usd[east_a][east_a], usd[east_a][east_b]) == (0.0, 0.0)
    assert usd[east_a][west] == pytest.approx(2.0), "100 GB by DIR's list"
    assert usd[east_a][google] == pytest.approx(9.0), "out of AWS, by ours"
    assert usd[google][east_a] == pytest.approx(12.0)
    assert usd[azure][google] == pytest.approx(8.75)


def test_a_history_that_is_too_short_says_how_long_it_must_be(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported(traces, hours=50)
    words = ["--traces", str(traces), "--own", str(file)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert (
        "holds 50.0 h; a job of 40 h with the longest deadline, 2 times that, needs 80.0 h" in said
    )
    assert "or --work-h 25" in said
    assert main([*words, "--work-h", "25"]) == 0


def test_it_is_scored_beside_the_published_ones_and_the_optimum(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (traces / "spotbench").mkdir()
    (traces / "spotbench" / "__init__.py").touch()
    (traces / "spotbench" / "oracle.py").write_text(ORACLE)
    monkeypatch.syspath_prepend(str(traces))
    file, out = exported(traces), traces / "out.json"
    assert main(["--traces", str(traces), "--own", str(file), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert list(found) == [str(file)]
    rows = {row["policy"]: row for row in found[str(file)]["scores"]}
    assert list(rows) == ["on-demand", "UP(S)", "spotd"]
    assert found[str(file)]["optimum_ratio"] == pytest.approx(0.4)
    assert rows["spotd"]["closed"] == pytest.approx(0.25)
    assert "h100_8: 80 cases, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("oracle", "most", "said"),
    [
        ("import nothing_of_that_name\n", 2e11, "no optimum: No module named 'nothing_of_that_"),
        (ORACLE, 1e3, "no optimum: would take too long; a longer --gap of `spotctl advisor trace`"),
    ],
)
def test_without_an_optimum_the_rest_is_told(
    traces: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    oracle: str,
    most: float,
    said: str,
) -> None:
    (traces / "spotbench").mkdir()
    (traces / "spotbench" / "__init__.py").touch()
    (traces / "spotbench" / "oracle.py").write_text(oracle)
    monkeypatch.syspath_prepend(str(traces))
    monkeypatch.setattr(policy_own, "MOST_STEPS", most)
    assert main(["--traces", str(traces), "--own", str(exported(traces))]) == 0
    told = capsys.readouterr().out
    assert said in told
    (line,) = (line for line in told.splitlines() if line.startswith("  spotd"))
    assert line.split() == ["spotd", "0.7000", "-", "-", "-", "0", "0"]


def test_a_score_without_an_optimum_has_its_ratio() -> None:
    ten = np.full(4, 10.0)
    found = score("x", ten * 0.6, Bounds(ten, ten * 0.8, None, np.arange(4)))
    assert found.ratio == pytest.approx(0.6)
    assert (found.omni, found.closed, found.ci90) == (None, None, None)


def test_what_is_no_trace_is_said(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (traces / "text.npz").write_text("no archive")
    np.savez(traces / "other.npz", zones=np.array(["a"]))
    np.save(traces / "one.npy", np.zeros(3))
    for name, said in (
        ("none.npz", "none.npz: No such file or directory"),
        ("text.npz", "is no .npz; name a file of `spotctl advisor trace`"),
        ("one.npy", "is no .npz; name a file of `spotctl advisor trace`"),
        ("other.npz", "lacks avail, spot, od, gap, n_requested"),
    ):
        assert main(["--traces", str(traces), "--own", str(traces / name)]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--traces", str(traces), "--own", "x.npz", "--work-h", "0"])
    assert "--work-h: 0.0 is not a number of hours" in capsys.readouterr().err
