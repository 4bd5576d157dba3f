"""Whole plans, word for word: what changes, what is told to whom and how loud, and when to look
again. A plan that is another one shows here in full; SPOTD_WRITE_GOLDEN=1 takes it over."""

from __future__ import annotations

import os
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from providers.base import NoticeKind, Scope
from spotd.domain.fast_replace import changed
from spotd.domain.job import Desired
from spotd.domain.lost_work import HandOver, TrainedAttempt
from spotd.domain.market import Market, Refusal
from spotd.domain.node import EffectKind, Node
from spotd.domain.plan import AddNode, ChangeJob, ChangeNode, OpenAttempt, Plan
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.slow_detection import slow
from spotd.wire.parts import field_names, values_of
from tests.spotd.planner.build import (
    NOW,
    OFFERS,
    head,
    hello,
    market,
    node,
    notice,
    offer,
    settle,
    spec,
    view,
)
from tests.spotd.planner.core.test_slow_detection import SLOW

GOLDEN = Path(__file__).parent / "plans.txt"
L, B, R = NodeState.LAUNCHING, NodeState.BOOTING, NodeState.RUNNING
D, T, G = NodeState.DRAINING, NodeState.TERMINATING, NodeState.GONE
PREEMPTED, CANCELLED, FAILED = LeaveReason.PREEMPTED, LeaveReason.CANCELLED, LeaveReason.FAILED
LOCAL = offer("gcp-1a", 12.5, local=True)
GANG: dict[str, Any] = {"spec": spec(num_nodes=2)}
SCRIPTS: dict[str, Any] = {
    "spec": spec(num_nodes=2, checkpoint=replace(spec().checkpoint, engine="none"))
}
SCRIPT: dict[str, Any] = {"spec": spec(checkpoint=replace(spec().checkpoint, engine="none"))}
LONG: dict[str, Any] = {"first_step_at_us": NOW - 250 * S}
OFTEN = replace(spec().checkpoint, every_s=60.0)
CRASH: dict[str, Any] = {"exit_code": 1, "exited_at_us": NOW - 30 * S, "exit_tail": "no memory"}
DONE: dict[str, Any] = {"exit_code": 0, "exited_at_us": NOW - S}
SAVED: dict[str, Any] = {"exit_code": 75, "exited_at_us": NOW, "released_at_us": NOW - S}
REJECTED: dict[str, Any] = {"launch_error": "no such image", "launch_error_code": "RejectedError"}
ASKED = {"failed_part": "nothing"}
LEFT: dict[str, Any] = {"leave_reason": PREEMPTED, "left_at_us": NOW - 9 * S}
SILENT: dict[str, Any] = {"heard_at_us": NOW - 200 * S, "surveyed_at_us": NOW - S}
AGAIN = hello(
    chosen=True,
    generation=2,
    rank=0,
    started_at_us=NOW - 3 * S,
    claimed_at_us=NOW,
    first_step_at_us=NOW,
    last_step=101,
    resumed_step=100,
)
OLD = TrainedAttempt(
    generation=1,
    began_us=NOW - 3600 * S,
    ended_us=NOW - 50 * S,
    last_step=131,
    resumed_step=0,
    microusd_per_h=24_000_000,
)
OUT = tuple(Refusal(o.key, Scope.OFFER, "CapacityError", NOW - 10 * S) for o in OFFERS)


def told(*nodes: Any, market_: Market | None = None, **fields: Any) -> tuple[View, Market]:
    return view(*nodes, **fields), market_ or market()


def keep(seconds: float) -> dict[str, Any]:
    return {"spec": spec(keep_on_failure_s=seconds)}


STORIES: dict[str, tuple[View, Market]] = {
    # placed
    "first": told(),
    "two candidates": told(job={"spec": spec(candidates=2)}),
    "two candidates, one is coming": told(node(L), job={"spec": spec(candidates=2)}),
    "one candidate and no hedging": told(
        job={"spec": spec(candidates=2)}, market_=market(hedging=False)
    ),
    "gang": told(job=GANG),
    "again after a loss": told(node(G, chosen=True, **LEFT, gone_at_us=NOW - 5 * S)),
    "again after the one that trained, not its rival": told(
        node(G, chosen=True, **LEFT, gone_at_us=NOW - 5 * S),
        node(G, candidate=1, leave_reason=LeaveReason.HEDGE_LOST, left_at_us=NOW - S),
    ),
    "nothing fits": told(market_=market(offers=())),
    "the only one is out": told(market_=market(offers=OFFERS[:1], refusals=OUT[:1])),
    "all are out": told(market_=market(refusals=OUT)),
    "all clouds are out of use": told(
        market_=market(offers=OFFERS[:2], disabled={"aws": "the key has expired"})
    ),
    "too dear": told(job={"spec": spec(max_hourly_microusd=5_500_000)}),
    "a limit": told(market_=market(blocked="limits.max_nodes is 1 and 1 are in use")),
    "a pause after a crash": told(job={"place_after_us": NOW + 7 * S}),
    "waiting for a machine": told(node(L, effect=EffectKind.LAUNCH, effect_armed_at_us=NOW - S)),
    "waiting for head": told(
        node(G, chosen=True, **DONE, effect_error="no route", leave_reason=LeaveReason.DONE),
    ),
    # launched, booted, chosen, training
    "exists": told(node(L, instance_id="i-7", offer=LOCAL)),
    "refused": told(
        node(L, launch_error="none left", launch_error_code="CapacityError", gone_at_us=NOW)
    ),
    "rejected": told(node(L, **REJECTED, gone_at_us=NOW)),
    "rejected, perhaps made": told(node(L, **REJECTED)),
    "rejected, and nothing was made": told(
        node(
            T,
            **REJECTED,
            leave_reason=LeaveReason.CAPACITY,
            instance_id="",
            launched_at_us=0,
            gone_at_us=NOW,
        ),
        job={"generation": 1},
    ),
    "nothing came of it": told(node(L, launched_at_us=0, gone_at_us=NOW)),
    "hello": told(hello(offer=LOCAL), node(L, candidate=1, offer=OFFERS[1])),
    "hello of a rank": told(hello(rank=0), hello(rank=1), job=GANG),
    "getting ready": told(hello(chosen=True, started_at_us=NOW - S, started_claim="now")),
    "a second daemon's machines are being given back": told(
        node(T, leave_reason=LeaveReason.DONE, terminated_at_us=NOW - S), node(R, generation=2)
    ),
    "trains": told(
        hello(chosen=True, started_at_us=NOW - 3 * S, claimed_at_us=NOW, first_step_at_us=NOW)
    ),
    "trains again": told(AGAIN, hand_over=HandOver(OLD, NOW - 60 * S, reports_steps=True)),
    "trains again from the beginning": told(
        changed(AGAIN, resumed_step=0), hand_over=HandOver(OLD, 0, reports_steps=True)
    ),
    "a script trains again": told(
        AGAIN, hand_over=HandOver(OLD, NOW - 60 * S, reports_steps=False)
    ),
    "a script of which nothing was saved trains again": told(
        changed(AGAIN, resumed_step=0), hand_over=HandOver(OLD, 0, reports_steps=False)
    ),
    "trains again after its program failed": told(
        AGAIN, hand_over=HandOver(replace(OLD, failed=True), NOW - 60 * S, reports_steps=True)
    ),
    "trains for the first time on its second machine": told(AGAIN),
    "training": told(node(R)),
    "uploading its outputs": told(node(R, outputs_since_us=NOW - 5 * S)),
    "uploading its outputs after a pause": told(
        node(D, leave_reason=CANCELLED, drained_at_us=NOW - 5 * S, outputs_since_us=NOW - 4 * S),
        job={"desired": Desired.PAUSE},
    ),
    "training beside a machine that comes up": told(node(R), hello(generation=2, offer=OFFERS[1])),
    "slow": told(node(R), throughput=SLOW),
    "nothing saved for long": told(node(R, **LONG), job={"spec": spec(checkpoint=OFTEN)}),
    "saved long ago": told(
        node(R, **LONG),
        job={"spec": spec(checkpoint=OFTEN), "head": head(seen_at_us=NOW - 130 * S)},
    ),
    "saved long ago, and its user knows": told(
        node(R, **LONG),
        job={
            "spec": spec(checkpoint=OFTEN),
            "head": head(seen_at_us=NOW - 130 * S),
            "unsaved_told_us": NOW - 5 * S,
        },
    ),
    # taken away
    "noticed": told(node(R, notices=(notice(90.0),))),
    "noticed without a deadline": told(node(R, notices=(notice(deadline_us=None),))),
    "noticed twice": told(node(R, notices=(notice(90.0), notice(30.0, notice_id="n2")))),
    "a maintenance": told(node(R, notices=(notice(90.0, kind=NoticeKind.MAINTENANCE),))),
    "noticed before it trains": told(hello(notices=(notice(),))),
    "noticed in a gang": told(node(R, notices=(notice(),)), node(R, rank=1), job=GANG),
    "the notice has run out": told(
        node(D, **LEFT, leave_text="preempt notice", notices=(notice(-20.0),))
    ),
    "not released in time": told(
        node(
            D,
            **LEFT,
            told_release_at_us=NOW - 400 * S,
            drained_at_us=NOW - 500 * S,
            told_drain_at_us=NOW,
        )
    ),
    "not stopped in time": told(
        node(
            D,
            leave_reason=CANCELLED,
            leave_text="paused",
            left_at_us=NOW - 9 * S,
            drained_at_us=NOW - 400 * S,
            told_drain_at_us=NOW - 400 * S,
        )
    ),
    "withdrawn": told(
        node(
            D,
            **LEFT,
            leave_text="preempt notice",
            drained_at_us=NOW - S,
            notices=(notice(withdrawn=True),),
        ),
        hello(generation=2, offer=OFFERS[1]),
    ),
    "gone after its notice": told(node(R, notices=(notice(-1.0),), gone_at_us=NOW)),
    "gone without a notice": told(node(R, gone_at_us=NOW)),
    "gone before it trained": told(hello(gone_at_us=NOW)),
    "gone as it should": told(
        node(T, **LEFT, leave_text="preempt notice", gone_at_us=NOW), node(R, generation=2)
    ),
    "silent": told(node(R, heard_at_us=NOW - 40 * S, surveyed_at_us=NOW - S)),
    "silent for too long": told(
        node(R, **SILENT), job={"head": head(read_at_us=NOW - 40 * S, seen_at_us=NOW - 400 * S)}
    ),
    "silent while it drains": told(
        node(D, **LEFT, **SILENT, leave_text="preempt notice", notices=(notice(),)),
        job={"head": head(read_at_us=NOW - 40 * S, seen_at_us=NOW - 400 * S)},
    ),
    "silent and its cloud too": told(
        node(R, heard_at_us=NOW - 200 * S, surveyed_at_us=NOW - 300 * S)
    ),
    "silent and its store too": told(
        node(R, **SILENT), job={"head": head(read_at_us=NOW - 300 * S, seen_at_us=NOW - 400 * S)}
    ),
    "heard again": told(node(R, leave_text="silent, and its cloud does not answer")),
    "not up in time": told(node(B, host="h", requested_at_us=NOW - 900 * S, booted_at_us=0)),
    "not set up in time": told(
        hello(
            chosen=True, started_at_us=NOW - 7200 * S, requested_at_us=NOW - 8000 * S, offer=LOCAL
        )
    ),
    "not to be started": told(
        hello(
            chosen=True,
            hello_at_us=NOW - 7200 * S,
            effect_error="disk full",
            booted_at_us=NOW - 7200 * S,
        )
    ),
    # ended
    "crashed": told(node(R, **CRASH)),
    "crashed for the last time": told(node(R, **CRASH), job={"failures": 3}),
    "crashed at once": told(
        hello(chosen=True, started_at_us=NOW, **CRASH), job={"first_step_at_us": 0}
    ),
    "crashed with a listed code": told(
        node(R, **CRASH), job={"spec": spec(recover_on_exit_codes=(1,))}
    ),
    "crashed with a listed code, after others": told(
        node(R, **CRASH), job={"spec": spec(recover_on_exit_codes=(1,)), "failures": 3}
    ),
    "crashed and kept": told(node(R, **CRASH), job={**keep(600.0), "failures": 3}),
    "crashed in a gang": told(node(R, **CRASH), node(R, rank=1), job=GANG),
    "crashed in a gang that lost a rank": told(
        node(R, **CRASH),
        node(T, rank=1, leave_reason=LeaveReason.LOST, terminated_at_us=NOW),
        job=GANG,
    ),
    "crashed in a gang that fell silent": told(
        node(R, **CRASH), node(R, rank=1, heard_at_us=NOW - 20 * S), job=GANG
    ),
    "crashed in half a gang": told(node(R, **CRASH), job=GANG),
    "both crashed with a listed code": told(
        node(R, **CRASH),
        node(R, rank=1, **CRASH),
        job={"spec": spec(num_nodes=2, recover_on_exit_codes=(1,))},
    ),
    "setup failed": told(hello(chosen=True, started_at_us=NOW - S, setup_failed=True)),
    "setup failed and kept": told(
        hello(chosen=True, started_at_us=NOW - S, setup_failed=True), job=keep(60.0)
    ),
    "fenced": told(node(D, **LEFT, exit_code=76, exited_at_us=NOW, **ASKED)),
    "fenced while it trains": told(node(R, exit_code=76, exited_at_us=NOW, **ASKED)),
    "a rank that was to stop, when its mate is taken away": told(
        node(T, leave_reason=PREEMPTED, terminated_at_us=NOW),
        node(D, rank=1, leave_reason=CANCELLED, left_at_us=NOW - 5 * S, drained_at_us=NOW - 5 * S),
        job=GANG,
    ),
    "saved and released": told(
        node(D, **LEFT, **SAVED), job={"head": head(released=True, step=120)}
    ),
    "saved after a pause": told(
        node(D, leave_reason=CANCELLED, leave_text="paused", left_at_us=NOW - 5 * S, **SAVED),
        job={"desired": Desired.PAUSE},
    ),
    "a script stopped": told(node(D, **LEFT, exit_code=75, exited_at_us=NOW), job=SCRIPT),
    "a script released": told(node(D, **LEFT, **SAVED), job=SCRIPT),
    "exit 0, head not read": told(node(R, **DONE)),
    "exit 0, head never read": told(
        node(R, exit_code=0, exited_at_us=NOW - 700 * S, effect_error="denied")
    ),
    "exit 0, head never read, and no error": told(node(R, exit_code=0, exited_at_us=NOW - 600 * S)),
    "exit 0, head not final": told(node(R, **DONE), job={"head": head(read_at_us=NOW)}),
    "scripts ended": told(node(R, **DONE), node(R, rank=1, **DONE), job=SCRIPTS),
    "scripts ended, head cannot be told": told(
        node(R, exit_code=0, exited_at_us=NOW - 90 * S, effect_error="denied"),
        node(R, rank=1, exit_code=0, exited_at_us=NOW - 80 * S),
        job=SCRIPTS,
    ),
    "scripts ended, head not told for a minute": told(
        node(R, exit_code=0, exited_at_us=NOW - 90 * S),
        node(R, rank=1, exit_code=0, exited_at_us=NOW - 60 * S),
        job=SCRIPTS,
    ),
    "succeeded": told(node(R, **DONE), job={"head": head(final=True, step=500, read_at_us=NOW)}),
    "succeeded, all is gone": told(
        node(G, leave_reason=LeaveReason.DONE),
        job={"outcome": Outcome.SUCCEEDED, "outcome_text": "finished at step 500"},
    ),
    "failed, two are left, and a notice is withdrawn": told(
        node(R),
        node(D, **LEFT, generation=2, leave_text="preempt notice"),
        job={"outcome": Outcome.FAILED, "outcome_text": "no more"},
    ),
    "failed, one is kept": told(
        node(R, **CRASH, kept_until_us=NOW + 60 * S),
        job={"outcome": Outcome.FAILED, "outcome_text": "no more"},
    ),
    "failed, the kept one is not wanted": told(
        node(R, **CRASH, kept_until_us=NOW + 60 * S),
        job={"outcome": Outcome.FAILED, "outcome_text": "no more", "desired": Desired.CANCEL},
    ),
    # stopped
    "paused": told(node(R), job={"desired": Desired.PAUSE}),
    "paused while it boots": told(hello(), job={"desired": Desired.PAUSE}),
    "paused while it drains": told(
        node(
            D, **LEFT, leave_text="preempt notice", notices=(notice(),), drained_at_us=NOW - 9 * S
        ),
        job={"desired": Desired.PAUSE},
    ),
    "cancelled while it launches": told(
        node(L, effect=EffectKind.LAUNCH, effect_armed_at_us=NOW - S),
        job={"desired": Desired.CANCEL},
    ),
    "cancelled, still there": told(
        node(T, leave_reason=CANCELLED, terminated_at_us=NOW - S, surveyed_at_us=NOW - 3 * S),
        job={"desired": Desired.CANCEL},
    ),
    "cancelled, given back long ago": told(
        node(T, leave_reason=CANCELLED, terminated_at_us=NOW - 5 * S, surveyed_at_us=NOW - S),
        job={"desired": Desired.CANCEL},
    ),
    "cancelled": told(node(G, leave_reason=CANCELLED), job={"desired": Desired.CANCEL}),
    "too long": told(node(R), job={"spec": spec(max_duration_s=30.0)}),
    "not too long yet": told(node(R), job={"spec": spec(max_duration_s=3600.0)}),
    "too dear by now": told(
        node(R), job={"spec": spec(max_cost_microusd=25_500_000)}, spent_microusd=26_000_000
    ),
    "too dear since it was loaded": told(
        node(R),
        job={"spec": spec(max_cost_microusd=15_000_000)},
        spent_microusd=8_000_000,
        loaded_at_us=NOW - 3600 * S,
    ),
    "not too dear yet": told(
        node(R),
        job={"spec": spec(max_cost_microusd=15_000_000)},
        spent_microusd=5_000_000,
    ),
    "stopped, nothing is left": told(
        job={"stop_text": "max_duration of 30 s reached", "head": head(step=40), "generation": 1}
    ),
    "stopped before anything was saved": told(job={"stop_text": "setup failed", "generation": 1}),
}


def shown(plan: Plan) -> str:
    """One line a thing; times count from now."""
    lines = [f"reason: {plan.reason}", *(f"also: {text}" for text in plan.reasons[1:])]
    lines.append(f"wake: {_value('wake_at_us', plan.wake_at_us)}")
    for change in plan.changes:
        match change:
            case ChangeJob(fields):
                lines.append(f"job: {_fields(fields)}")
            case ChangeNode(node_id, fields):
                lines.append(f"{node_id}: {_fields(fields)}")
            case OpenAttempt(attempt):
                lines.append(f"attempt: {_fields(vars(attempt))}")
            case AddNode(added):
                values = values_of(added, field_names(Node))
                named = {name: value for name, value in values.items() if value}
                named["offer"] = added.offer.key
                lines.append(f"new: {_fields(named)}")
    for event in plan.events:
        loud = f"{event.severity.value}{', alert' if event.alert else ''}"
        lines.append(f"event {event.kind} ({loud}) of {event.node_id or event.key}: {event.text}")
        lines += [f"  key {event.key}", *([f"  {_fields(event.data)}"] if event.data else [])]
    return "\n".join(lines)


def _fields(fields: Any) -> str:
    return ", ".join(f"{name}={_value(name, value)}" for name, value in fields.items())


def _value(name: str, value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if name.endswith("_us") and type(value) is int and value:
        return f"now{(value - NOW) / S:+.6f}".rstrip("0").rstrip(".")
    return repr(value)


def test_the_slow_story_is_slow() -> None:
    assert slow(SLOW, spec().monitoring.health, NOW)


def _pages() -> dict[str, str]:
    parts = GOLDEN.read_text().split("## ")[1:]
    return {name: text.rstrip("\n") for name, _, text in (part.partition("\n") for part in parts)}


def test_each_page_has_its_story() -> None:
    if os.environ.get("SPOTD_WRITE_GOLDEN"):
        pages = (f"## {name}\n{shown(settle(*story)[1])}\n" for name, story in STORIES.items())
        GOLDEN.write_text("\n\n".join(page.rstrip() for page in pages) + "\n")
    assert list(_pages()) == list(STORIES)


@pytest.mark.parametrize("name", STORIES)
def test_the_whole_plan(name: str) -> None:
    _, plan = settle(*STORIES[name])
    assert shown(plan) == _pages()[name]
