"""Calls and what is recorded of them, on the stage's toy clouds and machines."""

from __future__ import annotations

from spotd import wire
from spotd.model import Outcome
from spotd.states import NodeState
from tests.spotd.stage import Stage


def test_a_program_that_exits_0_and_never_claimed_head_is_no_success(stage: Stage) -> None:
    """It does not use the engine that its job names: there is no HEAD, and never will be."""
    stage.submit()
    stage.run(lambda s: s.nodes("j1") and s.nodes("j1")[0].hello_at_us)
    machine = stage.machine(stage.nodes("j1")[0])
    machine.exited = wire.EXIT_FINISHED  # from here on it does nothing of itself
    machine.say(wire.EXITED, code=wire.EXIT_FINISHED)
    stage.run(lambda s: s.nodes("j1", NodeState.GONE), limit_s=60.0)
    assert stage.job().outcome is Outcome.FAILED
    assert "without a final checkpoint" in stage.job().outcome_text
