"""What a decision is told of the checkpoints of a job that says how much there is to do."""

from __future__ import annotations

from dataclasses import replace

from spotd.domain.preferences import GenerationSaves, Preferences
from spotd.domain.units import S
from spotd.store.interface import Store
from tests.spotd.store.build import NOW, commit, opening, placed, said, spec, submission, view

WORK = Preferences(work_steps=1000)


def committed(step: int, generation: int = 1, size: int = 5) -> tuple[str, dict[str, object]]:
    fields = {"step": step, "manifest": f"m-{generation}-{step}", "bytes": size, "trigger": "time"}
    return "checkpoint", {**fields, "released": False, "final": False, "stage_s": 1, "write_s": 2}


def test_first_and_last_of_each_generation(store: Store) -> None:
    placed(store, preferences=WORK)
    for number, step in enumerate((10, 30, 20)):
        at_us = NOW + (number + 1) * 60 * S
        store.journal.record([said(committed(step), first=number + 1, heard_at_us=at_us)])
    first = GenerationSaves(1, 10, 30, NOW + 60 * S, NOW + 180 * S, 5)
    assert view(store).saved == (first,)
    commit(store, view(store), opening("j1", 2))
    later = said(
        committed(40, 2, size=9), node_id="j1-g2-0", heard_at_us=NOW + 400 * S, generation=2
    )
    store.journal.record([later])
    assert view(store).saved == (first, GenerationSaves(2, 40, 40, NOW + 400 * S, NOW + 400 * S, 9))


def test_a_job_that_says_nothing_of_its_work_is_not_asked(store: Store) -> None:
    placed(store)
    store.journal.record([said(committed(10))])
    assert view(store).saved == ()


def test_the_preferences_of_a_job_are_kept(store: Store) -> None:
    preferences = replace(WORK, residency=("CH", "DE"), step_s=0.5)
    store.jobs.submit(submission(spec=spec(preferences=preferences)), NOW)
    assert view(store).job.spec.preferences == preferences


def progress(total: int, **more: object) -> tuple[str, dict[str, object]]:
    fields = {"from_step": 1, "to_step": 10, "losses": [], "tokens": 1, "busy_s": 1.0}
    return "progress", {**fields, "total_steps": total, **more}


def test_a_total_that_the_program_names_is_the_amount_of_work(store: Store) -> None:
    placed(store)
    store.journal.record([said(progress(1000), committed(10))])
    assert view(store).job.spec.preferences.work_steps == 1000
    assert [saves.last_step for saves in view(store).saved] == [10]
    commit(store, view(store), opening("j1", 2))
    store.journal.record([said(committed(20, 2), node_id="j1-g2-0", generation=2)])
    assert view(store).job.spec.preferences.work_steps == 1000, "the new attempt has named none yet"
    assert [saves.last_step for saves in view(store).saved] == [10, 20]
    store.journal.record([said(progress(800), first=2, node_id="j1-g2-0", generation=2)])
    assert view(store).job.spec.preferences.work_steps == 800


def test_the_amount_of_work_is_unknown_once_the_program_trains_again(store: Store) -> None:
    """So the deadline decides nothing by it: see spotd.spec.preferences."""
    placed(store)
    store.journal.record([said(progress(1000))])
    assert view(store).job.spec.preferences.measurable
    store.journal.record([said(progress(2000, at_least=True), first=2)])
    assert not view(store).job.spec.preferences.measurable
    commit(store, view(store), opening("j1", 2))
    store.journal.record([said(committed(20, 2), node_id="j1-g2-0", generation=2)])
    assert not view(store).job.spec.preferences.measurable, "nor by the total of the first training"
    [seen] = [node for node in view(store).nodes if node.generation == 1]
    assert seen.training.total_steps == -2000


def test_the_amount_in_the_file_counts_before_the_programs(store: Store) -> None:
    placed(store, preferences=WORK)
    store.journal.record([said(progress(4000))])
    assert view(store).job.spec.preferences == WORK
