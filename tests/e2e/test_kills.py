"""The pipeline from an installed wheel, with its processes killed at random moments.

Every run prints its seed; with `SPOTD_E2E_SEED=N` run K has the seed N + K. `soak.py` does each
twenty times, on a box of its own; here is every kind once, and jobs share a box, one after the
other, and so its price.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from spotd.demo.box import Box, running_box
from tests.e2e.rig import SCENARIO, Reference
from tests.e2e.runs import disturb, left_behind

# "box" comes first: its machines are all of one cloud, and a place that lost one rests for a while.
RUNS = {"box": 1, "daemon": 1, "agent": 1, "trainer": 1, "silent": 1, "reset": 1}
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
            # Two boxes, where there are several workers.
            group = "kills" if scenario in {"box", "daemon"} else "kills of others"
            marks = [*map(pytest.mark.req, shown), pytest.mark.xdist_group(group)]
            yield pytest.param(scenario, number, marks=marks, id=f"{scenario}-{number}")


def _seed(number: int) -> int:
    base = os.environ.get("SPOTD_E2E_SEED")
    return SystemRandom().randrange(10**6) if base is None else int(base) + number


class Shared:
    """The box of the runs; after one that went wrong, another."""

    def __init__(self, python: Path) -> None:
        self._python = python
        self._stack = ExitStack()
        self._box: Box | None = None

    def box(self) -> Box:
        if self._box is None:
            folder = tempfile.mkdtemp(prefix="spotd-e2e-")
            self._stack.callback(shutil.rmtree, folder)
            box = running_box(Path(folder), SCENARIO, python=self._python)
            self._box = self._stack.enter_context(box)
        return self._box

    def close(self) -> list[str]:
        """What is wrong when it has stopped."""
        machines = [row["instance_id"] for row in self._box.meter()] if self._box else []
        self._box = None
        self._stack.close()
        return left_behind(machines)


@pytest.fixture(scope="module")
def shared(python: Path) -> Iterator[Shared]:
    made = Shared(python)
    try:
        yield made
    finally:
        wrong = made.close()
    assert not wrong


@pytest.mark.e2e
@pytest.mark.parametrize(("scenario", "number"), list(_runs()))
def test_the_job_ends_as_if_nothing_had_happened(
    scenario: str, number: int, shared: Shared, reference: Reference
) -> None:
    seed = _seed(number)
    print(f"{scenario}: seed {seed}")
    outcome = disturb(shared.box(), scenario, seed, reference)
    if outcome.wrong:
        shared.close()
    assert not outcome.wrong, outcome.report()
