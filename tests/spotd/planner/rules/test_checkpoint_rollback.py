"""A checkpoint from which training fails again and again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.events import Severity
from spotd.domain.fast_replace import changed
from spotd.domain.health import CRASHED, NAN, NAN_AFTER_RESUME, STEPPED_BACK, Diagnosis, Setbacks
from spotd.domain.job import HeadSnapshot
from spotd.domain.node import Node
from spotd.domain.plan import Plan
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.view import View
from spotd.planner.rules.checkpoint_rollback import EARLY_STEPS
from tests.spotd.planner.build import NOW, node, settle, spec, view

R = NodeState.RUNNING
OLD = "jobs/j0/g00000001/s000000000500-a/MANIFEST.json"
OLDER = "jobs/j0/g00000001/s000000000400-a/MANIFEST.json"
OWN = "jobs/j0/g00000002/s000000000500-a/MANIFEST.json"
FIRST = Setbacks(crashed_from=OLD)


def crashed(
    setbacks: Setbacks = FIRST, last_step: int = 505, manifest: str = OLD, **job: Any
) -> View:
    """The second attempt's program, which took over at step 500, has crashed."""
    left = node(
        R, generation=2, exit_code=1, exited_at_us=NOW, claimed_at_us=NOW, last_step=last_step
    )
    return from_step_500(left, setbacks, manifest, **job)


def from_step_500(left: Node, setbacks: Setbacks, manifest: str = OLD, **job: Any) -> View:
    head = HeadSnapshot(2, 500, manifest, released=False, final=False, seen_at_us=NOW)
    fields = {"head": head, "first_step_at_us": 1, "generation": 2, "failures": 1, **job}
    return replace(view(left, job=fields), setbacks=setbacks)


def told(plan: Plan, kind: str) -> list[Any]:
    return [event for event in plan.events if event.kind == kind]


def test_the_first_crash_is_noted_and_the_second_steps_back() -> None:
    _, plan = settle(crashed(Setbacks()))
    assert told(plan, CRASHED)[0].data["resumed"] == OLD
    assert not told(plan, STEPPED_BACK)
    after, plan = settle(crashed())
    (event,) = told(plan, STEPPED_BACK)
    assert (event.alert, event.severity) == (True, Severity.WARNING)
    assert event.node_id == "", "the job's own word"
    assert (event.data["manifest"], event.data["step"]) == (OLD, 500)
    assert event.text.startswith(
        "the program exited with code 1, again in the first steps from the checkpoint of step 500:"
    )
    assert any("suspect-500" in reason for reason in plan.reasons), "spotctl why says it"
    assert not after.job.end.stop_text


@pytest.mark.parametrize(
    "before",
    [
        crashed(last_step=500 + EARLY_STEPS + 1),  # it had taken it well
        crashed(Setbacks(), manifest=""),  # there is nothing
        crashed(Setbacks(OWN), manifest=OWN),  # it had saved since
        crashed(Setbacks(crashed_from=OLDER)),  # the crash before was of another
        crashed(spec=spec(checkpoint=replace(spec().checkpoint, engine="none"))),
        crashed(failures=3),  # the job ends as it did before
        crashed(Setbacks(OLD, OLD, 500)),  # stepped back from already: there was no other
        crashed(Setbacks(OLD, OLDER, 600)),  # and so is this the one before
        replace(crashed(), nodes=tuple(changed(n, claimed_at_us=0) for n in crashed().nodes)),
    ],
    ids=["late", "nothing", "saved", "another", "script", "budget", "again", "before", "no claim"],
)
def test_from_others_nothing_is_stepped_back(before: View) -> None:
    assert not told(settle(before)[1], STEPPED_BACK)


def test_the_last_of_the_first_steps() -> None:
    assert told(settle(crashed(last_step=500 + EARLY_STEPS))[1], STEPPED_BACK)


def test_from_a_later_one_it_may_be_once_more() -> None:
    later = crashed(Setbacks(OLD, OLDER, 400))
    assert told(settle(later)[1], STEPPED_BACK)


# --- losses that are not numbers since the resume


def lost(setbacks: Setbacks = Setbacks(), kind: str = NAN_AFTER_RESUME, **fields: Any) -> View:  # noqa: B008
    trains = node(R, generation=2, claimed_at_us=NOW, **{"last_step": 505, **fields})
    verdict = Diagnosis(kind, NOW, trains.id)
    return replace(from_step_500(trains, setbacks), verdicts=(verdict,))


def test_losses_that_are_gone_with_a_resume_step_back_at_once() -> None:
    after, plan = settle(lost())
    (back,), (crash,) = told(plan, STEPPED_BACK), told(plan, CRASHED)
    assert back.data["manifest"] == OLD
    why = "the losses have not been finite since the resume"
    assert back.text.startswith(f"{why} from the checkpoint of step 500:")
    assert crash.text.startswith(f"{why} on node g2")
    left = next(n for n in after.nodes if n.id == lost().nodes[0].id)
    assert left.departure.leave_reason is LeaveReason.FAILED
    assert after.job.backoff.failures == 2
    assert not after.job.end.stop_text


def test_and_when_the_one_before_is_no_better_the_job_stops_for_a_person() -> None:
    after, plan = settle(lost(Setbacks("", OLD, 600)))
    assert not told(plan, STEPPED_BACK)
    assert "from two checkpoints" in after.job.end.stop_text


@pytest.mark.parametrize("before", [lost(last_step=600), lost(kind=NAN)], ids=["late", "no resume"])
def test_others_go_on_or_stop_as_before(before: View) -> None:
    after, plan = settle(before)
    assert not told(plan, STEPPED_BACK)
    assert bool(after.job.end.stop_text) is (before.verdicts[0].kind == NAN)
