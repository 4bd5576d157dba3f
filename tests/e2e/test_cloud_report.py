"""The verdicts of `make demo-clouds` are honest, and its figures are those on record."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotd.demo.facts import final_losses, recoveries
from tests.e2e.cloud_report import Evidence
from tests.e2e.demo_clouds import main
from tests.spotd.demo.story import METER, NODES, preemption, progress

TRAINED, STEPS = NODES[:3], [progress(1, 1, 5), progress(2, 11, 24), progress(3, 21, 36)]
PREEMPTIONS = [preemption(1, "notice", 12), preemption(2, "notice", 31)]
LOSSES = final_losses([progress(1, first, 100.0 + first) for first in (1, 11, 21)])
RECOVERIES = recoveries(TRAINED, STEPS, PREEMPTIONS, METER)


def evidence(**fields: Any) -> Evidence:
    base = Evidence(
        nodes=TRAINED,
        progress=STEPS,
        reference=LOSSES,
        recoveries=RECOVERIES,
        weights_equal=True,
        zombie_commits=0,
        orphan_s=0.0,
        giving_back_s={"j1-g1": 0.25},
        left={"aws": [], "gcp": [], "azure": [], "namespaces": []},
        jumps={"azure": 3},
        cost={"spend_usd": 0.25, "on_demand_usd": 1.0, "on_demand_best_usd": 0.6, "list_usd": 1.1},
        wall_s=80.0,
    )
    return replace(base, **fields)


def test_a_good_run_passes_all_checks() -> None:
    assert [text for good, text in evidence().verdicts() if not good] == []
    assert evidence().proven()


BROKEN: dict[str, dict[str, Any]] = {
    "weights differ": {"weights_equal": False},
    "a loss differs in its last bit": {"reference": LOSSES | {7: LOSSES[7] * (1 + 2**-52)}},
    "a step is missing": {"reference": LOSSES | {31: 1.0}},
    "nothing was trained": {"progress": [], "reference": {}},
    "another order of clouds": {"nodes": [TRAINED[0], TRAINED[2], TRAINED[1]][:2]},
    "a machine was not replaced": {"recoveries": RECOVERIES[:1]},
    "steps were lost": {"recoveries": [replace(one, steps_lost=1) for one in RECOVERIES]},
    "an old machine committed": {"zombie_commits": 1},
    "a cloud still sells us one": {"left": {"gcp": ["spotd-j1"]}},
    "one still runs": {"left": {"namespaces": ["i-1"]}},
    "a machine was nobody's": {"orphan_s": 0.5},
    "one was kept too long": {"giving_back_s": {"j1-g1": 60.0}},
    "nobody went through the jump host": {"jumps": {"azure": 0}},
}


@pytest.mark.parametrize("fields", BROKEN.values(), ids=BROKEN.keys())
def test_what_went_wrong_is_not_proven(fields: dict[str, Any]) -> None:
    found = evidence(**fields)
    assert [good for good, _ in found.verdicts()].count(False) == 1
    assert not found.proven()


def test_the_figures_of_each_cloud(tmp_path: Path) -> None:
    evidence().write(tmp_path)
    told = json.loads((tmp_path / "report.json").read_text())
    found = {name: row["request_to_hello_s"] for name, row in told["clouds"].items()}
    assert found == {"aws": 1.0, "gcp": 1.0, "azure": 1.0}
    first = {name: row["notice_to_first_step_s"] for name, row in told["clouds"].items()}
    assert first == {"aws": None, "gcp": 12.0, "azure": 5.0}
    assert [row["failed_over_to"] for row in told["preemptions"]] == ["gcp", "azure"]
    assert (told["proven"], told["steps"]) == (True, 30)


def test_who_is_not_root_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "takes root" in said
    assert "sudo make demo-clouds" in said
    assert not (tmp_path / "out").exists()
