"""The pipeline from an installed wheel, with its processes killed at random moments.

Every run prints its seed; with `SPOTD_E2E_SEED=N` run K has the seed N + K. `soak.py` does the same
more often.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from tests.e2e.rig import Reference
from tests.e2e.runs import perform

RUNS = {"daemon": 5, "agent": 5, "trainer": 5, "box": 1, "silent": 1, "reset": 1}
SHOWS = {
    "daemon": ("RPV-09", "RPV-10", "RPV-16"),
    "trainer": ("CKP-16", "CKP-17"),
    "box": ("PRE-05",),
    "silent": ("PRE-10",),
    "reset": ("PRE-10",),
}


def _runs() -> Iterator[Any]:
    """The first run of a scenario stands for the others where requirements are counted."""
    for scenario, count in RUNS.items():
        for number in range(1, count + 1):
            shown = SHOWS.get(scenario, ()) if number == 1 else ()
            marks = [pytest.mark.req(ident) for ident in shown]
            yield pytest.param(scenario, number, marks=marks, id=f"{scenario}-{number}")


def _seed(number: int) -> int:
    base = os.environ.get("SPOTD_E2E_SEED")
    return SystemRandom().randrange(10**6) if base is None else int(base) + number


@pytest.mark.e2e
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("scenario", "number"), list(_runs()))
def test_the_job_ends_as_if_nothing_had_happened(
    scenario: str, number: int, python: Path, reference: Reference, folder: Path
) -> None:
    seed = _seed(number)
    print(f"{scenario}: seed {seed}")
    outcome = perform(scenario, seed, python, reference, folder)
    assert not outcome.wrong, outcome.report()
