"""A run is the same wherever and however often it is played, and a failure tells how to see it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from tests.sim.__main__ import main
from tests.sim.batch import Sum, play, shrink
from tests.sim.planted_bugs import BUGS
from tests.sim.profiles import PROFILES
from tests.sim.run import Case, Result, run
from tests.sim.tiers import memory

SHORT = 1.0  # hours
PLANTED = {bug.name: bug for bug in BUGS}


def _result(case: Case) -> Result:
    [result] = play([case], 1)
    return result


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_nothing_is_violated(profile: str) -> None:
    """One seed of each kind; `make sim` plays many."""
    result = _result(Case(1, profile, hours=2.0))
    assert result.violation is None, result.tail


def test_a_machine_that_nobody_hears_is_given_up() -> None:
    """The simulator's rhythms are slower than the daemon's: where they do not fit together, nobody
    ever counts as silent, and no run would tell."""
    told: list[str] = []
    with memory() as open_store:
        run(Case(0, "parted", hours=4.0), open_store, told.append)
    lost = [line for line in told if " lost: " in line and "has been silent" in line]
    assert len(lost) >= 3


@pytest.mark.timeout(600)  # a server and its client take turns, and on a busy machine they wait
def test_a_run_is_the_same_on_every_store() -> None:
    """To the last event: what holds for the quick store holds for the real ones."""
    traces = {
        tier: _result(Case(7, "two", tier, SHORT)).trace
        for tier in ("memory", "sqlite", "postgresql")
    }
    assert len(set(traces.values())) == 1, traces


def test_a_run_is_the_same_in_every_process() -> None:
    """Also where sets and dictionaries of strings are in another order."""
    command = [sys.executable, "-m", "tests.sim", "--seeds", "2", "--hours", f"{SHORT}", "--json"]
    traces = []
    for seed in ("0", "777"):
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.append(json.loads(done.stdout)["trace"])
    assert traces[0] == traces[1]


def test_who_plays_here_collects_garbage_as_before_when_it_is_over() -> None:
    before = gc.get_threshold()
    during = [gc.get_threshold() for _ in play([Case(1, "calm", hours=0.01)], 1)]
    assert during != [before]
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_another_seed_is_another_run() -> None:
    assert _result(Case(1, hours=SHORT)).trace != _result(Case(2, hours=SHORT)).trace


def test_a_violation_says_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    bug = PLANTED["create then record"]
    with bug.planted():
        assert main(["--seeds", "1", "--processes", "1", "--hours", "2"]) == 1
        told = capsys.readouterr().err
        assert "X1 at " in told
        [replay] = [line.split("replay: ")[1] for line in told.splitlines() if "replay: " in line]
        assert main([*replay.split()[3:], "--processes", "1"]) == 1
    assert main([*replay.split()[3:], "--processes", "1"]) == 0, "without the bug"


def test_a_violation_of_a_sweep_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The one run of it, with its death at the one boundary."""
    case = Case(0, "calm", scenario="cancelled", die_at=3)
    command = case.command.split()[3:]
    with PLANTED["create then record"].planted():
        assert main(command) == 1
        told = capsys.readouterr().out
        assert "at boundary 3: X1 at " in told
        [replay] = [line.split("replay: ")[1] for line in told.splitlines() if "replay: " in line]
        assert replay == case.command
    assert main(command) == 0, "without the bug"
    assert "died at boundary 3 alone, 1 deaths, 0 violations" in capsys.readouterr().out
    assert main(["--sweep", "cancelled", "--die-at", "100000"]) == 1, "there is no such boundary"
    with pytest.raises(SystemExit):
        main(["--die-at", "3"])
    assert "--sweep" in capsys.readouterr().err


def test_a_trace_shows_what_happens_and_what_was_decided(
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = Case(1, "calm", hours=SHORT)
    command = case.command.split()[3:]
    assert main([*command, "--trace"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert any(line.endswith("box0/1 before commit_many") for line in told)
    assert any("j000000000 requested: requested " in line for line in told)
    moments = [float(line.split()[0]) for line in told[:-3] if line[0].isdigit()]
    assert moments == sorted(moments)
    with pytest.raises(SystemExit):
        main([*command, "--seeds", "2", "--trace"])
    assert "--seeds 1" in capsys.readouterr().err


def test_shrinking_leaves_what_is_needed() -> None:
    with PLANTED["no client token"].planted():
        whole = next(
            result
            for result in map(_result, (Case(seed, "unknown", hours=4.0) for seed in range(10)))
            if result.violation is not None
        )
        least = shrink(whole)
        assert least.violation is not None
        assert whole.violation is not None
        assert least.violation.invariant == whole.violation.invariant
        assert len(least.enabled) < len(whole.enabled) / 2
        for name in least.enabled:
            off = least.case.off | {name}
            again = _result(replace(least.case, off=off)).violation
            assert again is None or again.invariant != whole.violation.invariant


def test_a_fault_that_never_fires_makes_a_batch_vacuous() -> None:
    total = Sum()
    total.add(Result(Case(1), enabled=frozenset({"storm", "preempt"}), fired=Counter(preempt=3)))
    assert total.vacuous == ["storm"]
    total.add(Result(Case(2), enabled=frozenset({"storm"}), fired=Counter(storm=1)))
    assert total.vacuous == []


def test_in_a_small_batch_what_should_have_fired_often_is_missed() -> None:
    total = Sum()
    expected = {"storm": 3.0, "preempt": 2.0}
    total.add(Result(Case(1), enabled=frozenset(expected), expected=expected))
    assert total.amiss == []
    total.add(Result(Case(2), enabled=frozenset({"storm"}), expected={"storm": 2.5}))
    assert total.vacuous == ["preempt", "storm"]
    assert total.amiss == ["storm"]
    for seed in range(38):
        total.add(Result(Case(seed)))
    assert total.amiss == ["preempt", "storm"]
