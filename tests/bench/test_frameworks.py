"""The bench of frameworks finds a resume that is not the undisturbed run's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from bench.frameworks.__main__ import play
from bench.frameworks.environments import BY_NAME, FRAMEWORKS
from bench.frameworks.machine import Runner, running
from bench.frameworks.options import draw_settings
from bench.frameworks.outcome import Book, Outcome, compare, rows, table
from bench.frameworks.preemptions import KINDS, LATE, SIGTERM, draw_preemptions

PLACES = [f"{place} {step} 1" for step in range(20) for place in ("step", "evaluation")]
EQUAL = Outcome("loop", "torch 2", "notice", 1, ("step 9 1, stop",))
COMPUTED = {"data": "computed", "steps": 14, "eval_steps": 3, "every": 3}


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    """The loop, with the torch of these tests."""
    with running(Runner(replace(BY_NAME["loop"], modules=()), Path(sys.executable))) as runner:
        yield runner


def test_a_loop_is_equal_and_a_planted_fault_is_found(tmp_path: Path, runner: Runner) -> None:
    book = Book(tmp_path / "equal.json")
    play(runner, "", 1, KINDS, book, **COMPUTED)
    assert [(one.equal, one.kind) for one in book.outcomes] == [(True, kind) for kind in KINDS]
    faulty = Book(None)
    play(runner, "", 1, ["notice"], faulty, **COMPUTED, forgotten=["optimizer"])
    [found] = faulty.outcomes
    assert {"optimizer", "weights", "losses"} <= set(found.differs), found
    assert found.whole == book.outcomes[0].whole
    again = Book(tmp_path / "equal.json")
    assert again.outcomes == book.outcomes
    assert again.has("loop", "none", 1)
    assert not again.has("loop", "none", 2)


def test_each_seed_draws_the_same_again() -> None:
    for framework in FRAMEWORKS:
        one, other = (draw_settings(framework.settings, 3) for _ in range(2))
        assert one == other
        assert one != draw_settings(framework.settings, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_machines_end_at_places_that_the_whole_run_came_to(kind: str) -> None:
    drawn = [
        draw_preemptions(Random(seed), kind, PLACES, every=4, directory=False) for seed in range(60)
    ]
    first = [ends[0] for ends in drawn]
    assert all(3 <= one.step < 19 and one.at in PLACES for one in first)
    assert {one.at.split()[0] for one in first} == {"step", "evaluation"}
    assert {len(ends) for ends in drawn} == {1, 2}
    assert all(ends[1].step > ends[0].step for ends in drawn if len(ends) > 1)
    if kind == "none":
        assert {one.notice for one in first} == {""}
    else:
        assert {LATE, SIGTERM} <= {one.notice for one in first}
        assert all(one.notice != LATE for one in first if one.at.startswith("step"))


def test_a_difference_is_named_with_its_place() -> None:
    whole = {"losses": [1.0, 2.0], "weights": "a", "rates": [0.1]}
    assert compare(whole, dict(whole)) == ((), "")
    differs, first = compare(whole, {"losses": [1.0, 2.5], "weights": "b", "rates": [0.1]})
    assert differs == ("losses", "weights")
    assert first.splitlines() == [
        "losses[1]: 2.0 undisturbed, 2.5 preempted",
        'weights: "a" undisturbed, "b" preempted',
    ]
    assert compare(whole, {**whole, "rates": [0.1, 0.2]})[0] == ("rates",)


def test_a_row_counts_what_is_not_equal_or_failed() -> None:
    runs = [
        EQUAL,
        replace(EQUAL, seed=2, differs=("weights",)),
        replace(EQUAL, seed=3, failed="it failed:\nexit code 1"),
        replace(EQUAL, kind="none"),
    ]
    first, second = rows(runs)
    assert (first["runs"], first["equal"], second["share"]) == (3, 1, 1.0)
    unequal = "seed 2: weights; seed 3: failed: it failed: exit code 1"
    assert list(table(runs))[2:] == [
        f"| loop | torch 2 | yes | 3 | 1 | 33% | {unequal} |",
        "| loop | torch 2 | no | 1 | 1 | 100% |  |",
    ]


def test_what_failed_is_tried_again(tmp_path: Path) -> None:
    book = Book(tmp_path / "runs.json")
    book.add(replace(EQUAL, failed="no room on the disk"))
    assert not book.has("loop", "notice", 1)
    book.add(EQUAL)
    assert Book(tmp_path / "runs.json").outcomes == [EQUAL]
