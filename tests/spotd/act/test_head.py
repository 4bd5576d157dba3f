"""HEAD against the record: which of the two is the older one."""

from __future__ import annotations

from dataclasses import replace

from spotd import wire
from spotd.act.effects import call
from spotd.domain.node import EffectKind
from spotd.domain.plan import Effect
from spotd.domain.states import NodeState
from spotd.domain.units import S
from tests.spotd.fake_world import Stage


def reading(stage: Stage) -> Effect:
    """The call, as it is armed now."""
    end_us = stage.clock.now_us() + 60 * S
    return Effect(EffectKind.READ_HEAD, stage.nodes("j1")[0], stage.job(), end_us)


def trained(stage: Stage) -> Stage:
    """A job of generation 1 trains."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    stage.run(lambda s: s.job().head)
    return stage


def test_a_head_that_is_ahead_of_the_record_tells_that_the_database_is_old(stage: Stage) -> None:
    """It was restored from a backup, however: what it does not know is not to be ended."""
    trained(stage)
    call(reading(stage), stage.world)()
    assert stage.store.deployment.quarantine() == ""
    key = wire.head_key("j1")
    data, version = stage.commits.get(key)
    stage.commits.put_if(key, replace(wire.parse_head(data), generation=7).to_bytes(), version)
    call(reading(stage), stage.world)()
    assert (
        "is of generation 7, and the record of the job ends at 1"
        in stage.store.deployment.quarantine()
    )


def test_a_head_that_moved_on_while_we_stood_still_tells_nothing(stage: Stage) -> None:
    """The call was armed for generation 1; meanwhile another daemon decided about the next."""
    armed = reading(trained(stage))
    stage.strike(stage.nodes("j1")[0])
    stage.run(lambda s: s.job().head.generation == 2)  # type: ignore[union-attr]
    call(armed, stage.world)()
    assert stage.store.deployment.quarantine() == ""
