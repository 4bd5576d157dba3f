"""A bake's decisions: what is called when, what is waited for, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import NoticeKind
from providers.images import check_name
from spotd.domain.events import Severity
from spotd.domain.fast_replace import changed
from spotd.domain.images import BakedImage, baked_of, image_for
from spotd.domain.job import Desired
from spotd.domain.node import EffectKind, Node, NoticeRecord
from spotd.domain.plan import Plan
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.image_build import (
    ASK_S,
    CLEAN_TRIES,
    HEAR_OUT_S,
    MAKING_S,
    SILENT_S,
    needs_setup,
    setup_digest,
    vendor_name,
)
from spotd.planner.core.next_effect import CALL_DEADLINE_S, need
from spotd.planner.planner import decide
from spotd.wire import EXIT_FINISHED, EXIT_RELEASED, Mount
from tests.spotd.planner.build import NOW, OFFERS, hello, job, market, offer, settle, spec, view

BAKE = spec(bake="torch", setup="pip install torch", run="")


def done(ago_s: float = 60.0, **fields: Any) -> Node:
    """The machine of a bake whose `setup` is done."""
    seen = {
        "chosen": True,
        "started_at_us": NOW - 900 * S,
        "started_claim": "now",
        "exit_code": EXIT_FINISHED,
        "exited_at_us": NOW - int(ago_s * S),
    }
    return hello(**{**seen, **fields})


def cleaned(**fields: Any) -> Node:
    return done(**{"cleaned_at_us": NOW - 30 * S, **fields})


def baking(*nodes: Node, **fields: Any) -> View:
    return view(*nodes, job={"spec": BAKE, "first_step_at_us": 0, **fields})


def needed(node: Node, now_us: int = NOW) -> EffectKind | None:
    return need(node, baking(node), market(), now_us)


def after(node: Node, **fields: Any) -> tuple[View, Plan]:
    return settle(baking(node, **fields), market())


def test_it_is_cleaned_when_all_that_it_said_was_heard() -> None:
    node = done(HEAR_OUT_S - 1)
    assert needed(node) is None
    assert needed(node, NOW + S) is EffectKind.IMAGE
    after_, plan = after(node)
    assert after_.nodes[0].call.effect is None
    assert plan.wake_at_us == NOW + S
    assert plan.reason == "setup is done on node g1 in aws/aws-1a: its disk is cleaned"


def test_a_call_has_as_long_as_a_disk_takes() -> None:
    [armed], _ = after(done())[0].nodes, None
    assert armed.call.effect is EffectKind.IMAGE
    assert armed.call.effect_due_at_us == NOW + int(CALL_DEADLINE_S[EffectKind.IMAGE] * S)
    assert CALL_DEADLINE_S[EffectKind.IMAGE] == 900


def test_its_cloud_is_asked_now_and_then_how_far_it_is() -> None:
    fresh = cleaned()
    assert needed(fresh) is EffectKind.IMAGE
    asked = changed(fresh, image_asked_at_us=NOW)
    assert needed(asked) is None
    assert needed(asked, NOW + int(ASK_S * S) - 1) is None
    assert needed(asked, NOW + int(ASK_S * S)) is EffectKind.IMAGE
    _, plan = after(asked)
    assert plan.wake_at_us == NOW + int(ASK_S * S)
    assert plan.reason == "setup is done on node g1 in aws/aws-1a: its image is created"


def test_a_call_in_flight_is_not_made_again() -> None:
    flying = done(
        effect=EffectKind.IMAGE, effect_armed_at_us=NOW - S, effect_due_at_us=NOW + 899 * S
    )
    plan = decide(baking(flying), market(started_at_us=1), NOW)
    assert plan.armed == frozenset()
    assert plan.wake_at_us == NOW + S, "and not looked at again and again meanwhile"


def test_a_machine_that_is_done_hides_none_that_does_not_come_up() -> None:
    late = hello(generation=2, hello_at_us=0, requested_at_us=NOW - 9000 * S)
    after_, _ = settle(baking(done(), late), market())
    assert [n.departure.leave_reason for n in after_.nodes[:2]] == [None, LeaveReason.BOOT_TIMEOUT]


def test_what_follows_the_cleaning_at_once_is_armed_once() -> None:
    """Not in the microsecond of the outcome of the one before, which would be its outcome too."""
    before = cleaned(cleaned_at_us=NOW, effect=EffectKind.IMAGE, effect_armed_at_us=NOW - S)
    same, plan = settle(baking(before), market(started_at_us=1))
    assert plan.armed == frozenset()
    assert plan.wake_at_us <= NOW + S
    armed, plan = settle(same, market(started_at_us=1), NOW + 1)
    assert plan.armed == {before.id}
    for late_us in (1, 2, 20 * S):
        assert decide(armed, market(started_at_us=1), NOW + late_us).armed == frozenset()


def test_a_call_that_has_its_outcome_is_not_waited_for() -> None:
    """Also where no time has passed between the two."""
    before = cleaned(
        effect=EffectKind.IMAGE, effect_armed_at_us=NOW - 20 * S, image_asked_at_us=NOW - 20 * S
    )
    _, plan = settle(baking(before), market(started_at_us=1))
    assert plan.armed == {before.id}


@pytest.mark.parametrize("field", ["imaged_at_us", "image_error"])
def test_nothing_more_is_needed_of_one_that_is_over(field: str) -> None:
    over = {"imaged_at_us": NOW, "image_error": "no"}[field]
    assert needed(cleaned(**{field: over})) is None


def test_neither_head_nor_silence_is_looked_at() -> None:
    """There is no checkpoint, and a machine that was cleaned says nothing any more."""
    quiet = cleaned(
        heard_at_us=NOW - 3600 * S, link_down_at_us=NOW - 3600 * S, image_asked_at_us=NOW
    )
    after_, plan = after(quiet)
    assert after_.nodes[0].state is NodeState.BOOTING
    assert plan.armed == frozenset()
    gone = replace(quiet, state=NodeState.GONE)
    assert need(gone, baking(gone), market(), NOW) is None


def test_a_setup_that_is_done_is_not_too_late() -> None:
    late = cleaned(started_at_us=NOW - 10 * 3600 * S, image_asked_at_us=NOW)
    assert after(late)[0].nodes[0].state is NodeState.BOOTING


def test_one_that_is_not_done_is() -> None:
    late = hello(chosen=True, started_at_us=NOW - 3601 * S, heard_at_us=NOW)
    after_, _ = after(late)
    assert after_.nodes[0].departure.leave_reason is LeaveReason.BOOT_TIMEOUT


def test_the_image_is_the_success_and_its_machine_goes_at_once() -> None:
    after_, plan = after(cleaned(imaged_at_us=NOW))
    assert after_.job.outcome is Outcome.SUCCEEDED
    assert after_.job.end.outcome_text == "image torch is available in aws/aws-1"
    [node] = after_.nodes
    assert (node.state, node.departure.leave_reason) == (NodeState.TERMINATING, LeaveReason.DONE)
    assert after_.job.end.finished_at_us == NOW
    [event] = [event for event in plan.events if event.kind == "succeeded"]
    assert event.text == "train: image torch is available in aws/aws-1"
    assert (event.alert, event.node_id) == (True, node.id)


def test_it_is_also_when_the_machine_is_no_more() -> None:
    gone = cleaned(imaged_at_us=NOW, gone_at_us=NOW)
    after_, _ = after(gone)
    assert after_.job.outcome is Outcome.SUCCEEDED


def test_a_cancel_that_comes_after_it_changes_nothing() -> None:
    after_, _ = after(cleaned(imaged_at_us=NOW), desired=Desired.CANCEL)
    assert after_.job.outcome is Outcome.SUCCEEDED


def test_what_the_cloud_says_ends_it() -> None:
    after_, plan = after(cleaned(image_error="aws makes no image: not authorized"))
    assert after_.job.end.stop_text == "bake failed: aws makes no image: not authorized"
    assert after_.job.outcome is Outcome.FAILED
    [node] = after_.nodes
    assert (node.state, node.departure.leave_reason) == (NodeState.TERMINATING, LeaveReason.FAILED)
    [event] = [event for event in plan.events if event.kind == "bake_failed"]
    assert event.text.endswith(": aws makes no image: not authorized")
    assert (event.severity, event.node_id) == (Severity.ERROR, node.id)
    assert node.departure.leave_text == "aws makes no image: not authorized"


def failing(node: Node, count: int) -> Node:
    return changed(
        node,
        effect=EffectKind.IMAGE,
        effect_armed_at_us=NOW - 2 * S,
        effect_failed_at_us=NOW - S,
        effect_failures=count,
        effect_error="SshAuthRefusedError",
    )


def test_a_cleaning_whose_outcome_is_not_known_is_tried_again_and_then_ends_the_bake() -> None:
    before, _ = after(failing(done(), CLEAN_TRIES - 1))
    assert before.job.end.stop_text == ""
    after_, _ = after(failing(done(), CLEAN_TRIES))
    assert after_.job.end.stop_text.startswith(
        "bake failed: it is not known whether its disk was cleaned, because a cleaned machine "
    )
    assert "(SshAuthRefusedError); bake it again" in after_.job.end.stop_text
    assert after_.nodes[0].state is NodeState.TERMINATING


def test_failures_of_another_call_do_not_count() -> None:
    other = changed(failing(done(), 99), effect=EffectKind.SURVEY)
    assert after(other)[0].job.end.stop_text == ""


@pytest.mark.parametrize(
    ("fields", "listening_s", "ends"),
    [
        ({"image_asked_at_us": NOW - int(SILENT_S * S)}, 9999, False),
        ({"image_asked_at_us": NOW - int(SILENT_S * S) - 1}, 9999, True),
        ({"cleaned_at_us": NOW - int(SILENT_S * S)}, 9999, False),
        ({"cleaned_at_us": NOW - int(SILENT_S * S) - 1}, 9999, True),
        ({"cleaned_at_us": NOW - int(SILENT_S * S) - 1}, 60, False),  # we were away
    ],
)
def test_a_cloud_that_does_not_answer_is_waited_for_a_while(
    fields: dict[str, int], listening_s: int, ends: bool
) -> None:
    node = failing(cleaned(**{"cleaned_at_us": NOW - 2000 * S, **fields}), 3)
    known = market(listening_since_us=NOW - listening_s * S)
    after_, _ = settle(baking(node), known)
    assert bool(after_.job.end.stop_text) is ends
    if ends:
        assert "aws did not report its progress: SshAuthRefusedError" in after_.job.end.stop_text


def test_one_that_takes_for_ever_is_given_up() -> None:
    asked = {"image_asked_at_us": NOW}
    long = cleaned(cleaned_at_us=NOW - int(MAKING_S * S), **asked)
    assert after(long)[0].job.end.stop_text == ""
    after_, _ = after(changed(long, cleaned_at_us=long.bake.cleaned_at_us - 1))
    assert after_.job.end.stop_text == "bake failed: the image was not available after 3 h"


def test_a_machine_that_is_taken_away_in_the_middle_is_replaced() -> None:
    taken = NoticeRecord("n1", NoticeKind.PREEMPT, NOW - S, NOW + 60 * S)
    after_, _ = after(cleaned(notices=(taken,)))
    old, new = after_.nodes
    assert (old.state, old.departure.leave_reason) == (NodeState.TERMINATING, LeaveReason.PREEMPTED)
    assert (new.state, new.generation) == (NodeState.LAUNCHING, 2)
    assert after_.job.end.stop_text == ""


def test_a_cancel_ends_the_machine_at_once() -> None:
    after_, _ = after(cleaned(), desired=Desired.CANCEL)
    assert after_.nodes[0].departure.leave_reason is LeaveReason.CANCELLED


def test_an_agent_that_stopped_by_itself_is_no_setup_that_is_done() -> None:
    after_, _ = after(done(exit_code=EXIT_RELEASED, failed_part="nothing"))
    assert after_.nodes[0].state is NodeState.TERMINATING
    assert [node.generation for node in after_.nodes] == [1, 2], "another machine is to do it"


# --- names, digests and which image


def test_every_machine_has_a_name_of_its_own_for_its_image() -> None:
    names = [vendor_name(BAKE, done(token=f"t-{number}")) for number in range(2)]
    assert names[0] != names[1]
    assert names[0].startswith("spotd-torch-")
    check_name(vendor_name(changed(BAKE, bake="a" * 40), done()))
    assert len(names[0]) == len("spotd-torch-") + 12


@pytest.mark.parametrize(
    "change",
    [
        {"setup": "pip install torch jax"},
        {"envs": {"A": "1"}},
        {"packages": (Mount("d1", ""),)},
        {"packages": (Mount("d1", "data"),)},
    ],
)
def test_setup_is_skipped_only_where_it_would_do_the_same(change: dict[str, Any]) -> None:
    base = spec(image_id="baked:torch", setup="pip install torch")
    node = hello(image_id="ami-1", image_setup=setup_digest(BAKE))
    assert not needs_setup(base, node)
    assert needs_setup(changed(base, **change), node)
    assert needs_setup(base, hello())
    assert needs_setup(changed(base, bake="torch-2"), node), "a bake is for its setup"
    one, other = ({"A": "1", "B": "2"}, {"B": "2", "A": "1"})
    assert setup_digest(changed(base, envs=one)) == setup_digest(changed(base, envs=other))
    assert len(setup_digest(BAKE)) == 32, "labels of Google Cloud have 63 characters"


IMAGES = (
    BakedImage("torch", "aws", "aws-1", "ami-old", "x", NOW - 9),
    BakedImage("torch", "aws", "aws-1", "ami-new", "x", NOW - 5),
    BakedImage("torch", "aws", "aws-2", "ami-2", "x", NOW),
    BakedImage("jax", "aws", "aws-1", "ami-jax", "x", NOW),
    BakedImage("torch", "gcp", "", "everywhere", "x", NOW),
)


@pytest.mark.parametrize(
    ("zone", "image"),
    [("aws-1a", "ami-new"), ("aws-2a", "ami-2"), ("gcp-7a", "everywhere"), ("azure-1a", None)],
)
def test_a_machine_starts_from_the_newest_of_its_region(zone: str, image: str | None) -> None:
    found = image_for("torch", offer(zone), IMAGES)
    assert (found.image_id if found else None) == image


def test_a_new_node_says_what_it_starts_from() -> None:
    wanted = job(spec=spec(image_id="baked:torch"))
    after_, plan = settle(View(wanted, (), ()), market(images=IMAGES))
    assert (after_.nodes[0].startup.image_id, after_.nodes[0].startup.image_setup) == (
        "ami-new",
        "x",
    )
    [event] = [event for event in plan.events if event.kind == "requested"]
    assert event.text.endswith(", from image torch")
    after_, plan = settle(View(wanted, (), ()), market(OFFERS[3:], images=IMAGES))
    assert after_.nodes[0].startup.image_id == ""
    [event] = [event for event in plan.events if event.kind == "requested"]
    assert event.text.endswith("; no image torch there: setup runs")


@pytest.mark.parametrize("image_id", ["", "ami-1", "docker:a/b"])
def test_other_images_are_no_baked_ones(image_id: str) -> None:
    assert baked_of(image_id) == ""
    after_, plan = settle(View(job(spec=spec(image_id=image_id)), (), ()), market(images=IMAGES))
    assert after_.nodes[0].startup.image_id == ""
    assert plan.events[-1].text == "requested aws/aws-1/aws-1a/8xh100/spot at $10.00/h"
