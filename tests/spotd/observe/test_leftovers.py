"""What machines leave behind is discarded when its node is gone, and held when nobody knows it."""

from __future__ import annotations

import pytest

from providers.base import Leftover, LeftoverKind, ProviderError
from spotd.domain.events import Event
from spotd.domain.states import NodeState
from spotd.observe.leftovers import FRESH_S, LeftoverSweep
from spotd.planner.core.orphan_policy import GRACE_S, OrphanAction, leftovers_of
from spotd.store.errors import LostLeaseError
from tests.spotd.fake_world import Stage, ToyCloud


def left(stage: Stage, name: str = "vol-1", token: str = "", **tags: str) -> Leftover:
    """A disk in aws, with the tags of the machine that has that token."""
    marks = {"spotd-deployment": "d0", "spotd-token": token, "spotd-job": "j1", **tags}
    one = Leftover(name, LeftoverKind.DISK, marks, "aws-1", "aws-1a", stage.clock.now_us())
    stage.clouds["aws"].left.append(one)
    return one


def trained(stage: Stage) -> str:
    """A job that trains; the token of its machine."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    return stage.nodes("j1")[0].token


def finish(stage: Stage) -> None:
    stage.goal = 0
    stage.run(lambda s: s.over("j1"))


def look(stage: Stage, sweep: LeftoverSweep, after_s: float = 0.0) -> ToyCloud:
    stage.clock.sleep(after_s)
    sweep.run(stage.duty("leftovers:aws"))
    return stage.clouds["aws"]


def sweep_of(stage: Stage) -> LeftoverSweep:
    return LeftoverSweep(stage.clouds["aws"], stage.clock)


def told(stage: Stage, kind: str) -> list[Event]:
    return [row.event for row in stage.store.events.rows(None) if row.event.kind == kind]


def test_what_a_machine_that_is_gone_left_is_discarded_after_a_grace(stage: Stage) -> None:
    token, sweep = trained(stage), sweep_of(stage)
    left(stage, token=token)
    for _ in range(3):
        assert look(stage, sweep, GRACE_S).left, "its machine lives: it may hang on it again"
    finish(stage)
    fresh = sweep_of(stage)
    assert look(stage, fresh).left
    assert look(stage, fresh, GRACE_S - 1).left
    assert look(stage, fresh, 1).left == []
    (event,) = told(stage, "leftovers")
    assert "disk vol-1" in event.text


def test_what_a_storm_left_is_discarded_whole(stage: Stage) -> None:
    token, sweep = trained(stage), sweep_of(stage)
    for number in range(20):
        left(stage, f"vol-{number}", token=token)
    finish(stage)
    look(stage, sweep)
    assert look(stage, sweep, GRACE_S).left == []


@pytest.mark.parametrize(
    ("tags", "why"),
    [
        ({"spotd-job": "jnobody"}, "job jnobody is not on record"),
        ({"spotd-deployment": "d9"}, "its tag says that it belongs to d9"),
    ],
)
def test_what_the_record_never_asked_for_is_held_and_told_once(
    stage: Stage, tags: dict[str, str], why: str
) -> None:
    left(stage, **tags)
    sweep = sweep_of(stage)
    for _ in range(3):
        assert look(stage, sweep, GRACE_S).left
    (event,) = told(stage, "leftovers_held")
    assert event.alert
    assert why in event.text


def test_what_a_person_releases_goes(stage: Stage) -> None:
    left(stage, token="t-unknown")
    foreign = left(stage, "vol-2", **{"spotd-deployment": "d9"})
    sweep = sweep_of(stage)
    look(stage, sweep, GRACE_S)
    stage.store.orphans.release("aws", stage.clock.now_us())
    assert len(look(stage, sweep, GRACE_S).left) == 2, "that was said of machines"
    stage.store.orphans.release(leftovers_of("aws"), stage.clock.now_us())
    assert look(stage, sweep, GRACE_S).left == [foreign]


def test_what_is_held_can_be_seen_as_long_as_it_is_known(stage: Stage) -> None:
    token, sweep = trained(stage), sweep_of(stage)
    finish(stage)
    assert sweep.held() is None, "nobody has looked yet"
    left(stage, "vol-1", **{"spotd-job": "jnobody"})
    left(stage, "vol-2", token=token)
    foreign = left(stage, "vol-3", **{"spotd-deployment": "d9"})
    look(stage, sweep)
    first_us = stage.clock.now_us()
    look(stage, sweep, FRESH_S)
    held = sweep.held()
    assert held is not None
    assert [(one.leftover.leftover_id, one.fate, one.since_us) for one in held] == [
        ("vol-1", OrphanAction.HOLD, first_us),
        ("vol-3", OrphanAction.FOREIGN, first_us),
    ]
    stage.clouds["aws"].left = [foreign]
    look(stage, sweep)
    assert [one.leftover for one in sweep.held() or ()] == [foreign]
    stage.clock.sleep(FRESH_S + 1)
    assert sweep.held() is None, "another box may look now"


def test_in_quarantine_nothing_is_discarded(stage: Stage) -> None:
    token, sweep = trained(stage), sweep_of(stage)
    finish(stage)
    left(stage, token=token)
    stage.store.deployment.set_quarantine("restored", stage.clock.now_us())
    look(stage, sweep)
    assert look(stage, sweep, GRACE_S).left


def test_one_that_cannot_be_deleted_keeps_no_other_waiting(stage: Stage) -> None:
    token, sweep = trained(stage), sweep_of(stage)
    finish(stage)
    for name in ("vol-1", "vol-2"):
        left(stage, name, token=token)
    look(stage, sweep)
    stage.clouds["aws"].fail("discard", ProviderError("in use"))
    assert [one.leftover_id for one in look(stage, sweep, GRACE_S).left] == ["vol-1"]
    assert look(stage, sweep).left == []


def test_who_lost_the_duty_discards_nothing(stage: Stage) -> None:
    token, sweep = trained(stage), sweep_of(stage)
    finish(stage)
    left(stage, token=token)
    look(stage, sweep)
    stage.clock.sleep(GRACE_S)
    ours = stage.duty("leftovers:aws")
    stage.clock.sleep(30.0)
    assert stage.store.leases.take("leftovers:aws", "other", stage.clock.now_us, 20_000_000)
    with pytest.raises(LostLeaseError):
        sweep.run(ours)
    assert stage.clouds["aws"].left
