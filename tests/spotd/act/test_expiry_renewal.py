"""The daemon moves expiries on, and tells when it cannot."""

from __future__ import annotations

import pytest

from providers.base import ThrottledError, UnknownOutcome
from spotd.act.expiry_renewal import renew_expiries
from spotd.domain.job import Desired
from spotd.domain.market import Timing
from spotd.domain.states import NodeState
from spotd.domain.units import S
from tests.spotd.fake_world import Stage

HOUR_S = 3600.0


@pytest.fixture
def trained(stage: Stage) -> Stage:
    """A job that trains on aws, a moment after it was asked for."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    return stage


def renew(stage: Stage, paged: set[str] | None = None) -> None:
    paged = set() if paged is None else paged
    renew_expiries(stage.store, stage.clouds["aws"], stage.clock, Timing(), paged)


def left_h(stage: Stage) -> float:
    """Hours until the cloud's own tag says that the machine may be ended."""
    [machine] = stage.clouds["aws"].alive.values()
    return (machine.instance.expires_at_us - stage.clock.now_us()) / S / 3600


def test_a_wanted_machine_is_renewed_every_hour(trained: Stage) -> None:
    renew(trained)
    assert trained.clouds["aws"].calls["renew"] == 0, "it was created with its whole time"
    trained.clock.sleep(HOUR_S)
    assert left_h(trained) < 23
    renew(trained)
    renew(trained)
    assert trained.clouds["aws"].calls["renew"] == 1
    assert left_h(trained) == pytest.approx(24, abs=0.001)
    [node] = trained.nodes("j1")
    assert node.lease.renewed_until_us // S == trained.machine(node).instance.expires_at_us // S


def test_a_machine_that_nobody_wants_any_more_is_not_renewed(trained: Stage) -> None:
    trained.clouds["aws"].fail("terminate", *[UnknownOutcome("502")] * 1000)
    trained.store.jobs.set_desired("j1", Desired.CANCEL, trained.clock.now_us())
    trained.run(lambda s: s.nodes("j1", NodeState.TERMINATING))
    trained.clock.sleep(20 * HOUR_S)
    renew(trained)
    assert left_h(trained) < 4


def test_a_renewal_that_fails_is_tried_again_and_told_once_at_half_of_the_time(
    trained: Stage,
) -> None:
    paged: set[str] = set()

    def told() -> list[str]:
        rows = trained.store.events.rows("j1")
        return [row.event.text for row in rows if row.event.kind == "not_renewed"]

    for _ in range(11):
        trained.clock.sleep(HOUR_S)
        trained.clouds["aws"].fail("renew", ThrottledError("slow down"))
        renew(trained, paged)
    assert told() == []
    for _ in range(3):
        trained.clock.sleep(HOUR_S)
        trained.clouds["aws"].fail("renew", ThrottledError("slow down"))
        renew(trained, paged)
    [text] = told()
    assert "slow down" in text
    assert "ends it in 1" in text
    renew(trained, paged)
    assert left_h(trained) == pytest.approx(24, abs=0.001)
    assert paged == set(), "the next time is another story"


def test_an_answer_that_was_lost_is_asked_for_again(trained: Stage) -> None:
    trained.clock.sleep(2 * HOUR_S)
    trained.clouds["aws"].fail("renew", UnknownOutcome("timed out"), answer=True)
    renew(trained)
    assert trained.nodes("j1")[0].lease.renewed_until_us == 0
    renew(trained)
    assert trained.nodes("j1")[0].lease.renewed_until_us > 0
