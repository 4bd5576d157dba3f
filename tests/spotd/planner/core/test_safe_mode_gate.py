"""In safe mode nothing is made and nothing begun; what is paid for is observed, saved and ended."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.domain.job import Desired
from spotd.domain.market import Market
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from tests.spotd.planner.build import NOW, OFFERS, hello, market, node, notice, settle, view

SAFE = market(safe_until_us=NOW + 600 * S)
ENDED = market(safe_until_us=NOW)


def armed(before: View, market_: Market) -> list[EffectKind | None]:
    after, plan = settle(before, market_)
    return [found.call.effect for found in after.nodes if found.id in plan.armed]


def test_a_job_waits_and_says_why() -> None:
    after, plan = settle(view(), SAFE)
    assert not after.nodes
    assert plan.reasons == (
        "spotd is in safe mode: nothing is launched; see `spotctl safe-mode status`",
    )
    assert plan.wake_at_us == NOW + 15 * S, "another daemon may place it"
    after, _ = settle(view(), ENDED)
    assert after.nodes


@pytest.mark.parametrize(
    ("begun", "kind"),
    [
        (node(NodeState.LAUNCHING), EffectKind.LAUNCH),
        (node(NodeState.BOOTING, host="127.0.0.1"), EffectKind.BOOT),
        (hello(chosen=True), EffectKind.START),
    ],
)
def test_what_would_begin_something_waits(begun: Node, kind: EffectKind) -> None:
    assert armed(view(begun), ENDED) == [kind]
    assert armed(view(begun), SAFE) == []
    _, plan = settle(view(begun), SAFE)
    assert plan.wake_at_us == NOW + 15 * S
    assert f"spotd is in safe mode: {kind.value} has to wait" in plan.reasons


def test_what_waits_keeps_no_other_from_being_ended() -> None:
    begun = node(NodeState.LAUNCHING, generation=2, offer=OFFERS[1])
    left = node(NodeState.TERMINATING, leave_reason=LeaveReason.LOST)
    assert armed(view(begun, left), SAFE) == [EffectKind.TERMINATE]


@pytest.mark.parametrize(
    ("left", "job", "kind"),
    [
        (node(NodeState.TERMINATING), {}, EffectKind.TERMINATE),
        (node(NodeState.TERMINATING, instance_id=""), {}, EffectKind.RESOLVE),
        (node(NodeState.RUNNING), {"desired": Desired.CANCEL}, EffectKind.DRAIN),
        (node(NodeState.RUNNING), {"save_wanted_at_us": NOW}, EffectKind.SAVE),
        (node(NodeState.RUNNING, heard_at_us=NOW - 60 * S), {}, EffectKind.SURVEY),
        (
            node(
                NodeState.RUNNING,
                heard_at_us=NOW - 60 * S,
                surveyed_at_us=NOW - S,
                cloud_state="running",
            ),
            {},
            EffectKind.BOOT,  # where it ran before
        ),
        (
            hello(chosen=True, started_at_us=NOW - S, started_claim="after_release"),
            {},
            EffectKind.START,  # who it waits for at the gate has gone
        ),
    ],
)
def test_what_observes_saves_or_ends_goes_on(
    left: Node, job: dict[str, Any], kind: EffectKind
) -> None:
    assert armed(view(left, job=job), SAFE) == [kind]


def test_a_machine_that_is_taken_away_is_not_replaced() -> None:
    after, _ = settle(view(node(NodeState.RUNNING, notices=(notice(),))), SAFE)
    assert [found.state for found in after.nodes] == [NodeState.DRAINING]
