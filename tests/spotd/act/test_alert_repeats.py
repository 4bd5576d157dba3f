"""Alerts that say the same about the same job."""

from __future__ import annotations

import pytest

from spotd.act.alert_repeats import fold
from spotd.domain.events import Event, Severity
from spotd.store.alerts import AlertRow


def row(number: int, text: str, job_id: str = "j1") -> AlertRow:
    event = Event("crashed", text, severity=Severity.WARNING, alert=True)
    return AlertRow(
        id=number, route="r", at_us=1, job_id=job_id, job_name="", event=event, repeats=1, tries=0
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("it lost 12 steps at step 1,200", "it lost 9 steps at step 1,300", True),
        ("node g1 is gone", "node g2 is gone", True),
        ("exited with code 1; restart 2 of 3", "exited with code 1; restart 3 of 3", True),
        ("exited with code 1; restart 2 of 3", "exited with code 137; restart 3 of 3", False),
        ("has spent 50 % of its limit", "has spent 80 % of its limit", False),
        ("node g1 is gone", "node g1 is silent", False),
    ],
)
def test_what_says_the_same(one: str, other: str, *, same: bool) -> None:
    assert len(fold([row(1, one), row(2, other)])) == (1 if same else 2)


def test_two_jobs_and_the_box_are_not_folded() -> None:
    text = "node g1 is gone"
    assert len(fold([row(1, text), row(2, text, "j2"), row(3, text, ""), row(4, text, "")])) == 4
