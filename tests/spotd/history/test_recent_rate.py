"""The end of a job by its recent rate, with what it lost and waited for; unknown otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.domain.job import Desired
from spotd.domain.preferences import Preferences
from spotd.domain.states import Outcome
from spotd.domain.units import S
from spotd.history.recent_rate import (
    ENDED,
    MORE_MAY_FOLLOW,
    NO_GAIN,
    NO_RATE,
    NO_TOTAL,
    PAUSED,
    TOO_FAR,
    StepWindow,
    progress_of,
)
from tests.spotd.planner.build import NOW, job, spec

HOUR_AGO = NOW - 3600 * S
FILE = {"spec": spec(preferences=Preferences(work_steps=1000))}


def test_the_rate_is_of_steps_that_it_still_has_over_all_time_that_passed() -> None:
    # It had made 500 of 1,000 steps in the hour, and is back at 360: a tenth of a step a second.
    progress = progress_of(job(**FILE), 360, 0, StepWindow(0, HOUR_AGO, 2), NOW)
    assert (progress.total_steps, progress.share) == (1000, 0.36)
    assert progress.steps_per_s == pytest.approx(0.1)
    assert progress.eta_us == NOW + 6400 * S
    assert progress.unknown == ""


def test_the_total_of_the_file_counts_and_else_the_programs() -> None:
    window = StepWindow(0, HOUR_AGO, 2)
    progress = progress_of(job(**FILE), 360, 720, window, NOW)
    assert (progress.total_steps, progress.by_program) == (1000, False)
    progress = progress_of(job(), 360, 720, window, NOW)
    assert (progress.total_steps, progress.by_program) == (720, True)
    assert progress.eta_us == NOW + 3600 * S


def test_of_a_program_that_may_train_again_only_the_least_is_known() -> None:
    window = StepWindow(0, HOUR_AGO, 2)
    progress = progress_of(job(), 360, 0, window, NOW, least_total=720)
    assert (progress.total_steps, progress.share, progress.eta_us) == (0, None, 0)
    assert (progress.least_steps, progress.unknown) == (720, MORE_MAY_FOLLOW)
    assert "spotd.total_steps" in progress.advice
    progress = progress_of(job(**FILE), 360, 0, window, NOW, least_total=720)
    assert (progress.total_steps, progress.share, progress.least_steps) == (1000, 0.36, 0)


def test_a_program_that_runs_on_after_all_that_it_named_is_not_done() -> None:
    """After the first of five folds, for instance."""
    window = StepWindow(0, HOUR_AGO, 2)
    progress = progress_of(job(), 720, 720, window, NOW)
    assert (progress.share, progress.eta_us, progress.least_steps) == (None, 0, 720)
    assert progress.unknown == MORE_MAY_FOLLOW
    ended = progress_of(job(outcome=Outcome.SUCCEEDED), 720, 720, window, NOW)
    assert (ended.share, ended.unknown) == (1.0, ENDED)


def test_a_job_that_waits_for_another_person_is_told_what_helps() -> None:
    held = job(**FILE, desired=Desired.PAUSE, approval_asked_by="ada")
    progress = progress_of(held, 360, 0, StepWindow(0, HOUR_AGO, 2), NOW)
    assert progress.advice.startswith("spotctl budget approve ")


@pytest.mark.parametrize("total", [10**12, 2**53])
def test_an_end_that_no_calendar_has_is_unknown(total: int) -> None:
    progress = progress_of(job(), 360, total, StepWindow(0, HOUR_AGO, 2), NOW)
    assert (progress.eta_us, progress.unknown) == (0, TOO_FAR)


@pytest.mark.parametrize(
    ("fields", "step", "window", "reason"),
    [
        ({}, 360, StepWindow(0, HOUR_AGO, 2), NO_TOTAL),
        (FILE, 360, None, NO_RATE),
        (FILE, 1, StepWindow(0, HOUR_AGO, 1), NO_RATE),
        (FILE, 0, StepWindow(100, HOUR_AGO, 2), NO_GAIN),
        ({**FILE, "desired": Desired.PAUSE}, 360, StepWindow(0, HOUR_AGO, 2), PAUSED),
        ({**FILE, "outcome": Outcome.FAILED}, 360, StepWindow(0, HOUR_AGO, 2), ENDED),
    ],
)
def test_what_is_not_known_is_called_unknown(
    fields: dict[str, Any], step: int, window: StepWindow | None, reason: str
) -> None:
    progress = progress_of(job(**fields), step, 0, window, NOW)
    assert (progress.eta_us, progress.unknown) == (0, reason)
    assert progress.steps_per_s >= 0
