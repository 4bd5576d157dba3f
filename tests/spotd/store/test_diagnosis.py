"""What nodes say of the health of training: verdicts, stacks, use, and what decisions see of it."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.base.log import redactor
from spotd.domain.events import Event
from spotd.domain.health import Diagnosis, Setbacks
from spotd.domain.plan import ChangeJob
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.store.diagnosis import MAX_STACK_CHARS
from spotd.store.interface import Store
from spotd.store.progress import COMPARED_S
from spotd.store.views import VERDICT_EVENTS
from tests.spotd.store.build import (
    NOW,
    commit,
    kinds,
    move,
    new_node,
    node,
    offer,
    opening,
    placed,
    plan,
    said,
    view,
)

AT = NOW + 60 * S
NODE = "j1-g1-0"

STACK = {"rank": 1, "pid": 7, "how": "faulthandler", "text": 'File "x.py", line 3 in waits'}
KEPT = {name: STACK[name] for name in ("rank", "how", "text")}


def test_the_stacks_of_a_program_that_hung_are_kept_with_it(store: Store) -> None:
    placed(store)
    secret = "s3cr3t-of-the-job"
    redactor.register(secret)
    dumps = [STACK, {**STACK, "rank": -1, "text": f"key = {secret}" + "x" * 9000}]
    data = {"what": "hung", "text": "no step", "again": True, "stacks": 2, "dumps": dumps}
    store.journal.record([said(("unwell", data))])
    row = store.events.last("j1", "hung")
    assert row is not None
    assert "the stacks of 2 of its processes were taken; it restarts here" in row.event.text
    first, second = row.event.data["stacks"]  # type: ignore[misc]
    assert first == KEPT
    assert secret not in second["text"]
    assert len(second["text"]) == MAX_STACK_CHARS
    assert row.event.data["again"] is True


@pytest.mark.parametrize(
    "data",
    [
        {"what": "hung", "text": "", "dumps": 7},
        {"what": "hung", "text": "", "dumps": [7]},
        {"what": "hung", "text": "", "dumps": [{"rank": "0", "text": ""}]},
        {"what": "hung", "text": "", "dumps": [{"rank": 0, "text": 5}]},
        {"what": "hung", "text": "", "dumps": [{"rank": 0, "text": "", "how": 5}]},
    ],
)
def test_stacks_that_are_none_become_a_warning(store: Store, data: dict[str, Any]) -> None:
    placed(store)
    store.journal.record([said(("unwell", data), ("ready", {}))])
    assert kinds(store)[-2:] == ["journal", "ready"]


@pytest.mark.parametrize(
    ("verdict", "about", "kept", "alert"),
    [
        ("straggler", {"rank": 1, "rank_s": 0.2}, {"rank": 1, "rank_s": 0.2}, True),
        ("nan", {"step": 9, "x" * 60: 1, "text": "no"}, {"step": 9, "x" * 40: 1}, True),
        ("nan_after_resume", {"manifest": "m-8"}, {"manifest": "m-8"}, True),
        ("loss_spike", {"loss": float("nan"), "before": 1e300}, {}, False),
        ("gpu_noted", {"xid": 13}, {"xid": 13}, False),
        ("peers", {"silent_s": 80.0}, {"silent_s": 80.0}, True),
        ("hung_here", {"stacks": [STACK]}, {"stacks": [KEPT]}, False),
    ],
)
def test_a_warning_that_says_which_is_a_verdict(
    store: Store, verdict: str, about: dict[str, Any], kept: dict[str, Any], alert: bool
) -> None:
    placed(store)
    data = {"text": "what was seen", "verdict": verdict, "about": about}
    store.journal.record([said(("warning", data))])
    row = store.events.last("j1", verdict)
    assert row is not None
    assert (row.event.text, row.event.data, row.event.alert) == ("what was seen", kept, alert)
    assert store.jobs.claim(AT + 60 * S, "d", 9, S) == ["j1"], "somebody decides about it"


@pytest.mark.parametrize("verdict", [None, "", "of a later version"])
def test_any_other_is_a_warning_as_before(store: Store, verdict: str | None) -> None:
    placed(store)
    data = {"text": "so"} if verdict is None else {"text": "so", "verdict": verdict, "about": 7}
    store.journal.record([said(("warning", data))])
    assert kinds(store)[-1] == "node_warning"


def test_how_well_a_machine_was_used_is_on_record_once_a_window(store: Store) -> None:
    placed(store)
    report = {"from_step": 1, "to_step": 1, "losses": [2.0]}
    usage = {"window_s": 300.0, "busy_s": 250.0, "data_s": 90.0, "save_s": 3.0, "gpu": 0.41}
    store.journal.record([said(("progress", report), ("progress", {**report, "usage": usage}))])
    (row,) = store.events.of_kinds("j1", ("usage",))
    assert row.event.text == (
        "300 s of training: GPUs busy 41%, waiting for data 30%, for checkpoints 1%"
    )
    assert row.event.data == {name: usage[name] for name in usage if name != "busy_s"}
    assert store.events.of_kinds("j1", ("usage",), row.at_us + 1) == []
    assert store.events.of_kinds("j1", ("progress", "none")) == []


@pytest.mark.parametrize("usage", [7, {}, {"window_s": "x"}, {"window_s": 1.0, "gpu": -1}])
def test_use_that_is_none_becomes_a_warning(store: Store, usage: object) -> None:
    placed(store)
    report = {"from_step": 1, "to_step": 1, "losses": [2.0], "usage": usage}
    store.journal.record([said(("progress", report))])
    assert kinds(store)[-1] == "journal"
    assert store.progress.rows("j1") == [], "nothing of the entry is taken over"


def straggles(store: Store, first: int, at_us: int) -> None:
    data = {"text": "rank 1", "verdict": "straggler"}
    store.journal.record([said(("warning", data), first=first, heard_at_us=at_us)])


def test_decisions_see_what_resumes_came_to(store: Store) -> None:
    placed(store)
    assert view(store).setbacks == Setbacks()
    back = {"manifest": "m-1", "step": 500}
    events = (
        Event("crashed", "", NODE, data={"resumed": "m-1"}),
        Event("stepped_back", "", data=back),
    )
    commit(store, view(store), plan(ChangeJob({"failures": 1}), events=events))
    assert view(store).setbacks == Setbacks("m-1", "m-1", 500)
    commit(store, view(store), plan(events=(Event("crashed", "", NODE, data={"tail": "x"}),)))
    forged = {"text": "", "verdict": "stepped_back", "about": {"manifest": "m-0", "step": 900}}
    store.journal.record([said(("warning", forged))])
    assert view(store).setbacks == Setbacks("", "m-1", 500), "not by a machine's word"


def test_lost_numbers_are_left_to_a_program_that_goes_back_by_itself(store: Store) -> None:
    placed(store)
    move(store, NODE, NodeState.BOOTING, chosen=True)
    move(store, NODE, NodeState.RUNNING)
    store.journal.record([said(("warning", {"text": "", "verdict": "nan_after_resume"}))])
    assert view(store).verdicts == (Diagnosis("nan_after_resume", AT, NODE),)
    store.journal.record([said(("rolled_back", {"step": 5, "from_step": 8}), first=2)])
    assert view(store).verdicts == ()


def test_decisions_see_the_newest_verdicts_of_a_job_that_trains(store: Store) -> None:
    placed(store)
    move(store, NODE, NodeState.BOOTING, chosen=True)
    straggles(store, 1, AT)
    assert view(store).verdicts == (), "it does not train"
    move(store, NODE, NodeState.RUNNING)
    straggles(store, 2, AT + S)
    store.journal.record([said(("warning", {"text": "", "verdict": "loss_spike"}), first=3)])
    assert view(store).verdicts == (
        Diagnosis("straggler", AT, NODE),
        Diagnosis("straggler", AT + S, NODE),
    )
    for number in range(VERDICT_EVENTS - 1):
        store.journal.record([said(("ready", {}), first=4 + number)])
    assert view(store).verdicts == (), "they are among the newest events no more"


def trains(store: Store, generation: int, begin_us: int, tokens: int, number: int) -> None:
    """A machine that reports every minute for twelve of them."""
    node_id = f"j1-g{generation}-0"
    move(store, node_id, NodeState.BOOTING, chosen=True)
    move(store, node_id, NodeState.RUNNING)
    for turn in range(number):
        step = {"from_step": turn, "to_step": turn, "losses": [1.0], "tokens": tokens}
        entry = ("progress", {**step, "busy_s": 10.0})
        at_us = begin_us + turn * 60 * S
        batch = said(
            entry, node_id=node_id, generation=generation, first=turn + 1, heard_at_us=at_us
        )
        store.journal.record([batch])


def replaced(store: Store, generation: int, **fields: Any) -> None:
    move(store, f"j1-g{generation - 1}-0", NodeState.TERMINATING)
    fresh = new_node("j1", generation, offer=offer(**fields))
    commit(store, view(store), opening("j1", generation, fresh))


def test_a_machine_is_compared_with_the_one_before_of_its_type(store: Store) -> None:
    placed(store)
    trains(store, 1, AT, 1000, 12)
    assert view(store, now_us=AT + 700 * S).typical_tokens_per_s == 0.0, "the first"
    replaced(store, 2, instance_type="other")
    trains(store, 2, AT + 800 * S, 500, 12)
    assert view(store, now_us=AT + 1600 * S).typical_tokens_per_s == 0.0, "of another type"
    replaced(store, 3)
    assert view(store, now_us=AT + 1700 * S).typical_tokens_per_s == 0.0, "it does not train"
    began_us = AT + 2000 * S
    trains(store, 3, began_us, 300, 1)
    assert node(store, "j1-g3-0").training.first_step_at_us == began_us
    later_us = began_us + int(COMPARED_S * S)
    assert view(store, now_us=later_us).typical_tokens_per_s == 100.0
    assert view(store, now_us=later_us + 1).typical_tokens_per_s == 0.0, "its own measure by now"


def test_what_was_reported_before_it_was_warm_is_no_measure(store: Store) -> None:
    placed(store)
    trains(store, 1, AT, 1000, 6)  # two of them after three minutes
    replaced(store, 2)
    trains(store, 2, AT + 800 * S, 500, 1)
    assert view(store, now_us=AT + 900 * S).typical_tokens_per_s == 0.0
