"""What came of a create: no machine is left over, and none is free of charge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.base import (
    AuthError,
    CapacityError,
    InstanceState,
    ProviderError,
    QuotaError,
    RejectedError,
    UnknownOutcome,
)
from spotd.daemon.reconcile import claim_due, drain, market_now, one_effect, one_pass
from spotd.domain.job import Desired
from spotd.domain.node import Node
from spotd.domain.plan import Effect
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.planner.planner import decide
from tests.spotd.fake_world import Stage

REFUSALS = [AuthError("expired"), QuotaError("8 of 8 used"), CapacityError("none left")]


def _first_on_aws(stage: Stage) -> Node:
    return next(n for n in stage.nodes("j1") if n.offer.provider == "aws")


def _segments(stage: Stage, node: Node) -> list[str]:
    return [row.state for row in stage.store.ledger.segments("j1") if row.node_id == node.id]


def _over(stage: Stage) -> bool:
    return stage.over("j1")


@pytest.mark.parametrize("died", [False, True], ids=["the-reply-was-lost", "the-daemon-died"])
@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_refused_retry_does_not_unmake_the_machine_of_the_first_call(
    stage: Stage, error: ProviderError, died: bool
) -> None:
    """A cloud may look at credentials and quota before it looks at the token."""
    stage.goal = None
    if died:
        stage.kill_at = 3  # after the call, before its record
    else:
        stage.clouds["aws"].fail("launch", UnknownOutcome("cut off"), answer=True)
    stage.submit()
    stage.run(lambda s: s.alive())
    assert died is (len(stage.boundaries) == 4)
    stage.clouds["aws"].fail("launch", error)
    stage.clouds["aws"].fail("list", *[AuthError("expired")] * 3)
    stage.run(lambda s: _first_on_aws(s).state is not NodeState.LAUNCHING)
    assert _segments(stage, _first_on_aws(stage)) == ["unknown"], "until we know, it counts"
    stage.run(lambda s: _first_on_aws(s).state is NodeState.GONE)
    node = _first_on_aws(stage)
    assert (node.instance_id, node.departure.leave_reason) == ("i-aws-1", LeaveReason.CAPACITY)
    assert _segments(stage, node) == ["closed"]
    stage.goal = 0
    stage.run(_over)
    assert stage.alive() == []
    used = stage.nodes("j1")[1]
    assert (used.offer.provider, used.departure.leave_reason) == ("gcp", LeaveReason.DONE)
    assert stage.creates(node) == 1


def test_a_refused_retry_of_which_nothing_came_costs_nothing(stage: Stage) -> None:
    stage.clouds["aws"].fail("launch", UnknownOutcome("cut off"), CapacityError("none left"))
    stage.submit()
    stage.run(_over)
    node = _first_on_aws(stage)
    assert (stage.creates(node), _segments(stage, node)) == (0, ["void"])
    assert node.departure.leave_reason is LeaveReason.CAPACITY
    assert stage.job().outcome is Outcome.SUCCEEDED


def test_a_retry_that_is_rejected_fails_the_job_when_no_machine_came_of_it(stage: Stage) -> None:
    stage.clouds["gcp"].on_sale = []
    stage.start()
    stage.clouds["aws"].fail("launch", UnknownOutcome("cut off"), RejectedError("no such image"))
    stage.submit()
    stage.run(_over)
    assert stage.job().outcome is Outcome.FAILED
    assert "no such image" in stage.job().end.outcome_text


def test_a_create_that_was_accepted_and_failed_is_one_refusal_in_the_vendors_words(
    stage: Stage,
) -> None:
    stage.submit()
    stage.run(lambda s: s.alive())
    (machine,) = stage.clouds["aws"].machines.values()
    said = {"error": "no capacity after all", "error_code": "CapacityError"}
    machine.instance = replace(machine.instance, state=InstanceState.FAILED, **said)
    machine.ended_at_us = stage.clock.now_us()  # listed for an hour more
    stage.run(lambda s: _first_on_aws(s).state is NodeState.GONE)
    node = _first_on_aws(stage)
    assert (node.departure.leave_reason, node.departure.leave_text) == (
        LeaveReason.CAPACITY,
        said["error"],
    )
    (refusal,) = stage.store.market.load(stage.clock.now_us()).refusals
    assert refusal.code == "CapacityError"


def test_a_machine_that_its_cloud_does_not_show_yet_is_ended_when_it_does(stage: Stage) -> None:
    """Until then a terminate is "unknown id, so success", and its absence proves nothing."""
    stage.clouds["aws"].visibility_s = 45.0
    stage.submit()
    stage.run(lambda s: _first_on_aws(s).instance_id if s.nodes("j1") else None)
    stage.store.jobs.set_desired("j1", Desired.CANCEL, stage.clock.now_us())
    stage.run(_over)
    assert stage.alive() == []
    assert _segments(stage, _first_on_aws(stage)) == ["closed"]


# --- a cloud that the configuration lost


def _lose_aws(stage: Stage) -> None:
    """A daemon without [providers.aws], at a store that knows its offers and machines."""
    rest = {name: cloud for name, cloud in stage.clouds.items() if name != "aws"}
    stage.world = replace(stage.world, providers=rest)
    stage.clouds["aws"].fail("list", *[UnknownOutcome("nobody asks")] * 1000)


def _arm(stage: Stage) -> list[Effect]:
    """Decide about what is due; the calls are the caller's to make, or not."""
    found: list[Effect] = []
    for job_id in claim_due(stage.world, "me", 16):
        drain(one_pass(stage.world, stage.timing, job_id, found.append))
    return found


def test_offers_of_a_cloud_that_is_not_configured_are_not_asked_for(stage: Stage) -> None:
    _lose_aws(stage)
    stage.submit()
    stage.run(_over)
    (node,) = stage.nodes("j1")
    assert node.offer.provider == "gcp", "the other one is cheaper, and still known"


def test_why_says_that_a_cloud_is_not_configured(stage: Stage) -> None:
    _lose_aws(stage)
    stage.store.market.record_offers("gcp", [], stage.clock.now_us())
    stage.submit()
    stage.turn()
    assert stage.nodes("j1") == []
    view = stage.store.load_view("j1", stage.clock.now_us())
    assert view is not None
    market = market_now(stage.world, stage.timing)
    (why,) = decide(view, market, stage.clock.now_us()).reasons
    assert "add [providers.aws] again" in why


def test_a_create_that_was_never_sent_is_void(stage: Stage) -> None:
    stage.submit()
    (launch,) = _arm(stage)
    _lose_aws(stage)
    drain(one_effect(stage.world, launch))
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING), limit_s=30.0)
    node = _first_on_aws(stage)
    assert node.state is NodeState.GONE
    assert "add [providers.aws] again" in node.departure.leave_text
    assert _segments(stage, node) == ["void"]


def test_a_create_that_may_have_been_sent_holds_up_nobody(stage: Stage) -> None:
    """Its daemon died with the call armed. The job goes on at once elsewhere, what came of the
    call is asked when the cloud is configured again, and nothing counts from then on."""
    stage.submit()
    assert _arm(stage)
    stage.restart()
    _lose_aws(stage)
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING), limit_s=30.0)
    node = _first_on_aws(stage)
    assert node.state is NodeState.TERMINATING
    assert _segments(stage, node) == ["unknown"]
    stage.restart()
    stage.clouds["aws"].before.clear()
    stage.run(lambda s: _first_on_aws(s).state is NodeState.GONE)
    assert _segments(stage, node) == ["void"]
