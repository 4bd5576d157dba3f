"""The formula beside what others measured and published (bench/sizing.py prints the table)."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import sizing

from spotd.sizing import catalog
from spotd.sizing.memory import FITS, GIB, estimate
from spotd.sizing.run import Run
from spotd.sizing.sizes import LIMITS


@pytest.mark.req("RSZ-01")
def test_the_mean_error_is_at_most_12_percent_and_nothing_is_far_too_low() -> None:
    rows = sizing.compare()
    totals = sizing.summary(rows)
    assert totals["all"]["figures"] == 100
    assert totals["all"]["mean"] <= 0.12
    assert totals["torchtitan-2024-12"]["mean"] <= 0.04
    # Two runs of 5 and 10 GiB. Of the first its page says that 3.72 were reserved before the first
    # step; of the second, that 8.28 of the 10.24 were in use at most, which is within 3 %.
    low = [row for row in rows if (row.error or 0.0) < -0.20 and not row.held_out]
    answer_ai = [(row.label, round(row.error or 0.0, 2)) for row in low]
    assert answer_ai == [("QLoRA, 512 tokens", -0.28), ("LoRA, 512 tokens", -0.21)]
    held_out = totals.pop("ms-swift")
    assert (held_out["figures"], held_out["mean"] <= 0.13) == (45, True)
    for source, one in totals.items():
        assert one["mean"] <= 0.12, source


def test_users_are_told_of_its_errors() -> None:
    """Of all sources but the one with ragged batches, and of that one."""
    totals = sizing.summary(sizing.compare())
    least = {name: round(-100 * one["least"]) for name, one in totals.items()}
    assert f"memory is {100 * totals['all']['mean']:.0f} % from published" in LIMITS
    assert LIMITS.endswith(
        f"at most {least['all']} %, and {least['ms-swift']} % where batches are ragged"
    )


@pytest.mark.req("RSZ-01")
def test_nothing_that_ran_out_of_memory_fits() -> None:
    ooms = [row for row in sizing.compare() if row.measured_gib is None]
    assert len(ooms) == 12 + 3
    assert [row.label for row in ooms if row.verdict == FITS] == []


@pytest.mark.req("RSZ-01")
def test_what_an_h100_measured_is_met_in_each_of_three_readings() -> None:
    """34 runs of Hugging Face's classes; of `spotd-later` the formula was made before them, but for
    lora-8bit."""
    held = sizing.summary(sizing.compare(sizing.MEASURED))
    assert (held["spotd"]["figures"], held["spotd"]["mean"] <= 0.03) == (21, True)
    assert (held["spotd-later"]["figures"], held["spotd-later"]["mean"] <= 0.05) == (13, True)
    assert min(one["least"] for one in held.values()) >= -0.14
    rows = [row for row in json.loads(sizing.MEASURED.read_text())["measurements"] if row["gib"]]
    said = [estimate(catalog.find(row["model"]), Run(**row["run"])) for row in rows]
    in_use = [m.allocated / GIB / row["allocated"] - 1 for m, row in zip(said, rows, strict=True)]
    of_gpu = [m.total / GIB / row["used"] - 1 for m, row in zip(said, rows, strict=True)]
    assert mean(map(abs, in_use)) <= 0.06
    assert mean(map(abs, of_gpu)) <= 0.04


def test_it_ends_badly_where_the_formula_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = sizing.compare()
    assert sizing.main(["--json", str(tmp_path / "out" / "sizing.json")]) == 0
    written = json.loads((tmp_path / "out" / "sizing.json").read_text())
    assert written["totals"]["all"]["mean"] == pytest.approx(sizing.summary(rows)["all"]["mean"])
    assert len(written["rows"]) == len(rows)
    fits = [replace(row, verdict=FITS) for row in rows]
    monkeypatch.setattr(sizing, "compare", lambda: fits)
    assert sizing.main([]) == 1
    assert "ran out of memory, and fits by the formula" in capsys.readouterr().out
    wrong = [replace(row, formula_gib=row.formula_gib * 1.3) for row in rows]
    monkeypatch.setattr(sizing, "compare", lambda: wrong)
    assert sizing.main([]) == 1
