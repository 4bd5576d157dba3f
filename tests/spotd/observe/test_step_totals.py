"""A job file and a program that name different totals: said once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotd.domain.events import Severity
from spotd.observe.step_totals import DIFFERS, StepTotals
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def named(rig: Rig, text: str, total: int, attempts: int = 1) -> str:
    job_id = rig.submit(text=text, ago_s=2000)
    for _ in range(attempts):
        node = rig.launch(job_id, SPOT, ago_s=1800)
        rig.say(node, 30, "progress", from_step=1, to_step=20, losses=[], tokens=1, busy_s=1.0,
                first_at_us=rig.ago(900), last_at_us=rig.ago(30), total_steps=total)  # fmt: skip
        StepTotals(rig.clock).check(rig.store)
    return job_id


IN_FILE = JOB_FILE.replace("spotd:\n", "spotd:\n  total_steps: 3000\n")


def test_a_contradiction_is_one_warning_for_the_job(rig: Rig) -> None:
    job_id = named(rig, IN_FILE, 4000)
    for _ in range(3):
        StepTotals(rig.clock).check(rig.store)
    (row,) = rig.store.events.of_kinds(job_id, [DIFFERS])
    assert (row.event.severity, row.event.alert) == (Severity.WARNING, True)
    assert "3,000 steps" in row.event.text
    assert "4,000" in row.event.text


@pytest.mark.parametrize(("text", "total"), [(IN_FILE, 3000), (JOB_FILE, 4000), (IN_FILE, 0)])
def test_nothing_is_said_where_there_is_one_number(rig: Rig, text: str, total: int) -> None:
    job_id = named(rig, text, total)
    assert rig.store.events.of_kinds(job_id, [DIFFERS]) == []
