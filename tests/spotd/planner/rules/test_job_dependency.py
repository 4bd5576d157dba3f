"""A job that comes after another: no machine before that one has succeeded."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.domain.events import Severity
from spotd.domain.job import Desired
from spotd.domain.node_history import Prerequisite
from spotd.domain.plan import AddNode
from spotd.domain.states import NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from tests.spotd.planner.build import NOW, kinds, node, settle, spec, view

AFTER = "jfirst"


def follower(before: Prerequisite | None, **fields: Any) -> View:
    """A job of an hour ago that has had no machine."""
    wanted = {"spec": spec(after=AFTER, **fields.pop("spec", {})), "created_at_us": NOW - 3600 * S}
    return view(job=wanted | fields, before=before)


def ended(outcome: Outcome, ago_s: float = 10) -> Prerequisite:
    return Prerequisite("search", outcome, "told", NOW - int(ago_s * S))


def test_it_waits_for_the_one_before() -> None:
    after, plan = settle(follower(Prerequisite("search")))
    assert after.nodes == ()
    assert after.job.outcome is None
    assert plan.reason == "waits until search has succeeded"
    assert plan.wake_at_us == NOW + 30 * S
    assert after.job.queue.waiting_since_us == 0, "for no machine: nobody needs to be told"


def test_it_begins_when_that_one_has_succeeded() -> None:
    after, plan = settle(follower(ended(Outcome.SUCCEEDED)))
    assert any(isinstance(change, AddNode) for change in plan.changes)
    assert after.job.outcome is None


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (ended(Outcome.FAILED), "the job before it, search, failed"),
        (ended(Outcome.CANCELLED), "the job before it, search, was cancelled"),
        (None, "the job before it (jfirst) is no longer on record"),
    ],
)
def test_it_never_begins_where_that_one_has_not(before: Prerequisite | None, told: str) -> None:
    after, plan = settle(follower(before))
    assert (after.job.outcome, after.job.end.outcome_text) == (Outcome.FAILED, told)
    assert after.job.end.finished_at_us == NOW
    assert after.nodes == ()
    (event,) = (event for event in plan.events if event.kind == "failed")
    assert event.text == f"train did not start: {told}"
    assert (event.severity, event.alert) == (Severity.ERROR, True)
    assert not settle(after)[1].changes, "once"


def test_a_job_that_has_begun_goes_on_whatever_becomes_of_the_record() -> None:
    after, _ = settle(follower(None, generation=3, first_step_at_us=NOW - 50 * S))
    assert after.job.outcome is None
    assert len(after.nodes) == 1


@pytest.mark.parametrize(
    "before", [Prerequisite("search"), ended(Outcome.FAILED), ended(Outcome.CANCELLED), None]
)
def test_cancelled_while_it_waits(before: Prerequisite | None) -> None:
    """Whatever became of the one before: its user asked for it, and is not woken."""
    after, plan = settle(follower(before, desired=Desired.CANCEL))
    assert after.job.outcome is Outcome.CANCELLED
    assert after.nodes == ()
    assert not any(event.severity is Severity.ERROR for event in plan.events)


def test_its_longest_time_begins_when_it_may() -> None:
    limit = {"spec": {"max_duration_s": 1800.0}}
    assert settle(follower(Prerequisite("search"), **limit))[0].job.end.stop_text == ""
    for ago_s, stops in ((1700, False), (1801, True)):
        after, plan = settle(follower(ended(Outcome.SUCCEEDED, ago_s), **limit))
        assert bool(after.job.end.stop_text) is stops
        assert ("requested" in kinds(plan)) is not stops


def test_so_does_that_of_one_that_trains() -> None:
    limited = {"spec": spec(after=AFTER, max_duration_s=1800.0), "created_at_us": NOW - 3600 * S}
    for ago_s, stops in ((1700, False), (1801, True)):
        before = ended(Outcome.SUCCEEDED, ago_s)
        after, _ = settle(view(node(NodeState.RUNNING), job=limited, before=before))
        assert bool(after.job.end.stop_text) is stops


def test_a_job_that_comes_after_none_is_placed_at_once() -> None:
    after, _ = settle(view())
    assert len(after.nodes) == 1
