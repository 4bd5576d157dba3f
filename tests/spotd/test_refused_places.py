"""What becomes of a job and its money where an adapter says that somebody got something wrong; what
adapters say of it is in tests/providers/*/test_bad_input.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from providers.base import (
    AuthError,
    InstanceState,
    NoQuotaError,
    ProviderError,
    RejectedError,
    Scope,
    UnpreparedError,
)
from spotd.domain.states import NodeState, Outcome
from spotd.domain.units import S
from spotd.planner.offers.cooldowns import BASE_S, OWN_IMAGE
from tests.providers.bad_input import MISTAKES
from tests.spotd.fake_world import TICK_S, Stage

# What the adapters make of each: tests/providers/*/test_bad_input.py.
WAITS: dict[str, Callable[[], ProviderError]] = {
    "wrong region": lambda: UnpreparedError("there is no region us-est-1"),
    "no subnet": lambda: UnpreparedError("us-east-1a has no subnet with our tag"),
    "expired credentials": lambda: AuthError("the token has expired"),
    "no quota": lambda: NoQuotaError("current limit of 0"),
    "image gone": lambda: UnpreparedError("us-east-1 has no image ami-0"),
}
FAILS = {"wrong type": lambda: RejectedError("there is no type p5.49xlarge")}
OFTEN = 50


def alone(stage: Stage) -> None:
    """AWS is the only cloud."""
    stage.clouds["gcp"].on_sale = []
    stage.start()


def spent(stage: Stage) -> int:
    view = stage.store.load_view("j1", stage.clock.now_us())
    assert view is not None
    return view.spent_microusd


def nothing_is_left(stage: Stage, node_cloud: str = "aws") -> None:
    assert not stage.clouds[node_cloud].machines
    assert {row.state for row in stage.store.ledger.segments("j1")} == {"void"}
    assert spent(stage) == 0


def test_all_mistakes_are_here() -> None:
    assert {*WAITS, *FAILS} == {*MISTAKES}


@pytest.mark.parametrize("what", WAITS)
def test_the_job_waits_and_runs_when_it_is_mended(stage: Stage, what: str) -> None:
    alone(stage)
    stage.clouds["aws"].fail("launch", *[WAITS[what]() for _ in range(OFTEN)])
    stage.submit()
    error = WAITS[what]()
    pause_s = BASE_S[type(error).__name__]
    stage.run(lambda s: s.nodes("j1", NodeState.GONE))
    until_us = stage.clock.now_us() + int(pause_s / 2 * S)
    stage.tick_s = 10.0
    stage.run(lambda s: s.clock.now_us() > until_us, limit_s=pause_s)
    assert stage.job().outcome is None
    assert stage.clouds["aws"].calls["launch"] == 1, "it is not asked again and again"
    nothing_is_left(stage)
    assert str(error) in stage.told()
    stage.clouds["aws"].before["launch"].clear()
    stage.store.market.record_provider(
        "aws", "", stage.clock.now_us()
    )  # as the next look at prices does
    stage.run(lambda s: s.nodes("j1", NodeState.BOOTING), limit_s=pause_s + 60)
    stage.tick_s = TICK_S
    stage.run(lambda s: s.over("j1"))
    assert stage.job().outcome is Outcome.SUCCEEDED
    last = stage.nodes("j1")[-1]
    (paid,) = [row for row in stage.store.ledger.segments("j1") if row.state != "void"]
    assert paid.node_id == last.id
    assert stage.alive() == []


@pytest.mark.parametrize("what", WAITS)
def test_elsewhere_the_job_goes_on_at_once(stage: Stage, what: str) -> None:
    stage.clouds["aws"].fail("launch", *[WAITS[what]() for _ in range(OFTEN)])
    stage.submit()
    stage.run(lambda s: s.over("j1"))
    assert stage.job().outcome is Outcome.SUCCEEDED
    assert [node.offer.provider for node in stage.nodes("j1")] == ["aws", "gcp"]
    assert not stage.clouds["aws"].machines
    assert stage.alive() == []


@pytest.mark.parametrize("what", FAILS)
@pytest.mark.parametrize("others", [False, True], ids=["alone", "with-another-cloud"])
def test_what_is_wrong_with_the_job_itself_fails_it(stage: Stage, what: str, others: bool) -> None:
    if not others:
        alone(stage)
    stage.clouds["aws"].fail("launch", FAILS[what]())
    stage.submit()
    stage.run(lambda s: s.over("j1"))
    assert stage.job().outcome is Outcome.FAILED
    assert "there is no type p5.49xlarge" in stage.job().end.outcome_text
    nothing_is_left(stage)
    assert stage.alive() == []


def test_an_image_that_one_job_names_is_not_the_regions_trouble(stage: Stage) -> None:
    """Its own job waits; the next one, with the provider's image, is not kept from the region."""
    alone(stage)
    stage.clouds["aws"].fail("launch", UnpreparedError("us-east-1 has no image ami-0"))
    stage.submit(image_id="ami-0")
    stage.run(lambda s: s.nodes("j1", NodeState.GONE))
    stage.submit("j2")
    stage.run(lambda s: s.nodes("j2", NodeState.BOOTING), limit_s=60)
    assert len(stage.nodes("j1")) == 1
    assert "us-east-1 has no image ami-0" in stage.told()
    assert BASE_S[OWN_IMAGE] == BASE_S["UnpreparedError"]


def test_an_image_that_is_told_of_late_is_not_the_regions_trouble_either(stage: Stage) -> None:
    """The create was accepted, and a listing says what became of it."""
    alone(stage)
    stage.submit(image_id="ami-0")
    stage.run(lambda s: s.alive())
    (machine,) = stage.clouds["aws"].machines.values()
    said = {"error": "us-east-1 has no image ami-0", "error_code": "UnpreparedError"}
    machine.instance = replace(machine.instance, state=InstanceState.FAILED, **said)
    machine.ended_at_us = stage.clock.now_us()
    stage.run(lambda s: s.nodes("j1", NodeState.GONE))
    (refusal,) = stage.store.market.load(stage.clock.now_us()).refusals
    assert (refusal.code, refusal.scope) == (OWN_IMAGE, Scope.REGION)
    stage.submit("j2")
    stage.run(lambda s: s.nodes("j2", NodeState.BOOTING), limit_s=60)
    assert len(stage.nodes("j1")) == 1


def test_a_container_comes_on_the_providers_own_image(stage: Stage) -> None:
    alone(stage)
    stage.clouds["aws"].fail("launch", UnpreparedError("us-east-1 has no image ami-0"))
    stage.submit(image_id="docker:r/x:1")
    stage.run(lambda s: s.nodes("j1", NodeState.GONE))
    stage.submit("j2")
    until_us = stage.clock.now_us() + 60 * S
    stage.run(lambda s: s.clock.now_us() > until_us, limit_s=120)
    assert stage.nodes("j2") == []
