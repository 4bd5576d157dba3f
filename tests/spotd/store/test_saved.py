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


def test_what_a_job_wishes_is_kept(store: Store) -> None:
    preferences = replace(WORK, residency=("CH", "DE"), step_s=0.5)
    store.jobs.submit(submission(spec=spec(preferences=preferences)), NOW)
    assert view(store).job.spec.preferences == preferences
