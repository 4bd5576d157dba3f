"""The total of a job's steps is one number, whoever named it."""

from __future__ import annotations

from spotd.domain.preferences import Preferences
from spotd.domain.states import NodeState
from spotd.domain.work_total import (
    differing_totals,
    least_total,
    named_total,
    total_steps,
    with_total,
)
from tests.spotd.planner.build import job, node, spec

IN_STEPS = job(spec=spec(preferences=Preferences(work_steps=1000)))
IN_HOURS = job(spec=spec(preferences=Preferences(work_s=3600.0)))


def test_the_newest_program_that_named_a_total_counts() -> None:
    nodes = [node(NodeState.GONE, total_steps=900), node(NodeState.RUNNING, generation=2)]
    assert named_total(nodes) == 900, "the new machine has not reported yet"
    assert named_total([*nodes, node(NodeState.RUNNING, generation=3, total_steps=800)]) == 800
    assert named_total([]) == 0


def test_a_program_that_may_train_again_has_named_no_total() -> None:
    nodes = [node(NodeState.GONE, total_steps=900)]
    assert (named_total(nodes), least_total(nodes)) == (900, 0)
    nodes.append(node(NodeState.RUNNING, generation=2, total_steps=-1800))
    assert (named_total(nodes), least_total(nodes)) == (0, 1800)
    assert not with_total(job(), named_total(nodes)).spec.preferences.measurable
    assert "says that it has 1,000 steps, its program says at least 1,800" in differing_totals(
        IN_STEPS, named_total(nodes), least_total(nodes)
    )
    assert differing_totals(IN_STEPS, 0, 1000) == ""


def test_the_file_counts_where_it_names_an_amount() -> None:
    assert total_steps(IN_STEPS, 720) == 1000
    assert total_steps(job(), 720) == 720
    assert with_total(IN_STEPS, 720) is IN_STEPS
    assert with_total(IN_HOURS, 720) is IN_HOURS, "a person promised a deadline by the hours"
    assert with_total(job(), 720).spec.preferences.work_steps == 720
    assert not with_total(job(), 0).spec.preferences.measurable


def test_a_contradiction_names_both_numbers_and_which_one_counts() -> None:
    text = differing_totals(IN_STEPS, 4000)
    assert "1,000 steps" in text
    assert "4,000" in text
    assert "the job file's number counts" in text
    for same in (differing_totals(IN_STEPS, 1000), differing_totals(job(), 720)):
        assert same == ""
