"""The soak's sum: no seed is lost but those in flight, and none counts twice."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sim.batch import Sum, play
from tests.sim.oracles import Violation
from tests.sim.run import Result
from tests.sim.soak import Total, case_of, main
from tests.sim.test_regressions import ALONE

HOURS = 0.5
LIMIT_S = 500.0
pytestmark = pytest.mark.timeout(600)  # processes that start, on a machine that may be busy


def _result(seed: int) -> Result:
    fired = Counter(storm=1)
    return Result(case_of(seed, 8.0), enabled=frozenset({"storm"}), fired=fired, took_s=0.5)


def test_ranges_of_seeds_add_up_over_calls(tmp_path: Path) -> None:
    path = tmp_path / "out" / "soak.json"
    for seed in (0, 2, 7):
        Total(path).add(_result(seed), "abc", 1.0)
    total = Total(path)
    assert list(total.missing(range(8))) == [1, 3, 4, 5, 6]
    total.add(_result(1), "def", 1.0)
    kept = json.loads(path.read_text())
    assert kept["done"] == [[0, 3], [7, 8]]
    assert (kept["seeds"], kept["simulated_hours"], kept["cpu_s"]) == (4, 32.0, 2.0)
    assert kept["commits"] == {"abc": 3, "def": 1}
    assert kept["fired"] == {"storm": 4}


def test_a_violation_is_kept_with_how_to_see_it_again(tmp_path: Path) -> None:
    total = Total(tmp_path / "soak.json")
    result = _result(4)
    result.violation = Violation("L1", 12.0, "an orphan")
    total.add(result, "abc", 1.0)
    [row] = Total(tmp_path / "soak.json").kept["violations"]
    assert (row["seed"], row["invariant"], row["commit"]) == (4, "L1", "abc")
    assert row["replay"] == result.case.command


def test_two_soaks_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "soak.json"
    with _running(path, seeds=9999):
        _wait_for_seeds(path, 1)
        with pytest.raises(SystemExit):
            main(["--out", str(path), "--seeds", "1"])


def test_a_killed_soak_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """kill -9 twice, each time with runs in flight: in the end it is the sum of the runs."""
    path = tmp_path / "soak.json"
    for enough in (1, 3):
        with _running(path, seeds=6) as soak:
            _wait_for_seeds(path, enough)
            players = _children(soak.pid)
        _wait_until_gone(players)
    main(["--out", str(path), "--seeds", "6", "--hours", f"{HOURS}"])
    kept = json.loads(path.read_text())
    whole = Sum()
    for result in play((case_of(seed, HOURS) for seed in range(6)), 1):
        whole.add(result)
    assert (kept["done"], kept["seeds"]) == ([[0, 6]], 6)
    assert kept["counts"] == {name: n for name, n in whole.counts.items() if n}
    assert kept["fired"] == dict(whole.fired)
    assert kept["simulated_hours"] == whole.hours


@contextmanager
def _running(path: Path, seeds: int) -> Iterator[subprocess.Popen[Any]]:
    """A soak of its own process, which gets a kill -9 in the end."""
    command = [sys.executable, "-m", "tests.sim.soak", "--out", str(path), "--hours", f"{HOURS}"]
    soak = subprocess.Popen([*command, "--seeds", f"{seeds}", "--processes", "2"])
    try:
        yield soak
    finally:
        soak.kill()
        soak.wait()


def _wait_for_seeds(path: Path, enough: int) -> None:
    _wait(lambda: path.exists() and json.loads(path.read_text())["seeds"] >= enough)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_until_gone(pids: list[int]) -> None:
    assert pids, "nobody played"
    _wait(lambda: not any(_lives(pid) for pid in pids))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait(ready: Any) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_the_page_says_what_the_soak_found() -> None:
    """Its figures are those of docs/soak.json; each violation has its row, and its regression."""
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "soak.md").read_text()
    kept = json.loads((docs / "soak.json").read_text())
    assert f"| {kept['seeds']:,}; {kept['simulated_hours']:,.0f} (" in page
    said = set(re.findall(r"\d[\d,]*", page))
    counts = {name: f"{count:,}" for name, count in {**kept["counts"], **kept["fired"]}.items()}
    assert {name for name, count in counts.items() if count not in said} <= {"crashes", "events"}
    rows = {int(seed) for seed in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert rows == {row["seed"] for row in kept["violations"]}
    assert rows <= {case.seed for case in ALONE}
