"""What evaluations measured is on record once, whoever hands it in."""

from __future__ import annotations

from dataclasses import replace

from spotd.domain.evaluation import Evaluation
from spotd.domain.units import S
from spotd.store.evaluations import EvaluationRow
from spotd.store.interface import Store
from tests.spotd.store.build import NOW, placed, said, submit

TOLD = Evaluation("helpdesk", 3, 1, 810.5, 0.25, 0.5, ("c2", "c3"))
NODE = "j1-g1-0"


def test_the_same_again_changes_nothing(store: Store) -> None:
    submit(store)
    submit(store, "j2")
    first = EvaluationRow("j1", NOW, "ada", TOLD)
    assert store.evaluations.record(first)
    assert not store.evaluations.record(EvaluationRow("j1", NOW + S, "bob", TOLD))
    assert store.evaluations.rows("j1") == [first]
    other = EvaluationRow("j2", NOW + S, "ada", TOLD)
    assert store.evaluations.record(other), "another job's is its own"
    later = EvaluationRow("j1", NOW + 2 * S, "ada", replace(TOLD, passed=2, failed=("c3",)))
    assert store.evaluations.record(later)
    assert store.evaluations.rows("j1") == [first, later]
    assert store.evaluations.rows() == [first, other, later]


def test_what_is_measured_again_after_something_else_is_the_last_again(store: Store) -> None:
    """As when a file that turned out wrong is put right with the one from before."""
    submit(store)
    other = replace(TOLD, passed=2, failed=("c3",))
    elsewhere = replace(TOLD, suite="speed")
    for number, told in enumerate((TOLD, elsewhere, other)):
        assert store.evaluations.record(EvaluationRow("j1", NOW + number * S, "ada", told))
    assert not store.evaluations.record(EvaluationRow("j1", NOW + 9 * S, "bob", TOLD))
    assert not store.evaluations.record(EvaluationRow("j1", NOW + 9 * S, "bob", elsewhere))
    last = EvaluationRow("j1", NOW + 9 * S, "bob", TOLD)
    assert [row.evaluation for row in store.evaluations.rows("j1")] == [elsewhere, other, TOLD]
    assert store.evaluations.rows("j1")[-1] == last


def test_a_machine_hands_it_in_and_its_next_one_again(store: Store) -> None:
    placed(store)
    data = {"suite": "helpdesk", "cases": 3, "passed": 1, "failed": ["c2", "c3"]}
    data |= {"tokens_per_s": 810.5, "ttft_s": 0.25, "ttft_p95_s": 0.5}
    store.journal.record([said(("results", data), ("results", data))])
    store.journal.record([said(("results", data), first=3, heard_at_us=NOW + 90 * S)])
    [row] = store.evaluations.rows("j1")
    assert (row.source, row.evaluation, row.at_us) == (NODE, TOLD, NOW + 60 * S)


def test_secrets_in_names_are_hidden(store: Store) -> None:
    placed(store)
    token = "hf_" + "a" * 34
    failed = {"suite": "a", "cases": 1, "passed": 0, "failed": [f"with {token}"]}
    store.journal.record([said(("results", failed))])
    [row] = store.evaluations.rows()
    assert token not in row.evaluation.failed[0]
