"""What was lost is not asked for at once, and comes back: over the stage, with its own timers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotd.domain.job import Desired
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.offers.cooldowns import BASE_S, BOOT_TIMEOUTS
from tests.spotd.fake_world import TICK_S, Stage
from tests.spotd.store import build

R, G = NodeState.RUNNING, NodeState.GONE


def warned(stage: Stage, node: Node) -> None:
    stage.warn(node, 20.0)


def struck(stage: Stage, node: Node) -> None:
    stage.strike(node)


def alone(stage: Stage) -> Node:
    """A job that trains on the only offer there is."""
    stage.clouds["gcp"].on_sale = []
    stage.start()
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", R))
    return stage.nodes("j1", R)[0]


def last_reason(stage: Stage) -> str:
    return [row.event.text for row in stage.store.events.rows("j1") if row.event.kind == "pass"][-1]


@pytest.mark.parametrize(
    ("end", "code"), [(warned, "Preempted"), (struck, "Lost")], ids=["notice", "death"]
)
def test_the_only_offer_is_asked_for_again_when_it_has_cooled(
    stage: Stage, end: Callable[[Stage, Node], None], code: str
) -> None:
    node = alone(stage)
    end(stage, node)
    stage.run(lambda s: not s.nodes("j1", R) and s.nodes("j1")[0].state is G)
    # Its timer alone is to wake it: nothing is observed from here on.
    stage.run(lambda s: "the only offer that fits is out" in last_reason(s))
    (gone,) = stage.nodes("j1")
    back_us = max(gone.departure.left_at_us, gone.machine.gone_at_us) + int(BASE_S[code] * S)
    assert f"s more after {code}" in last_reason(stage)
    assert stage.job().wakeup.wake_at_us == back_us
    passes = stage.passes
    stage.run(lambda s: len(s.nodes("j1")) == 2)
    again = stage.nodes("j1")[1]
    assert back_us <= again.requested_at_us <= back_us + TICK_S * S, "not before, and then at once"
    assert again.offer == gone.offer
    assert stage.passes == passes + 1
    stage.run(lambda s: s.nodes("j1", R))


def test_a_job_that_is_paused_and_resumed_waits_no_longer(stage: Stage) -> None:
    node = alone(stage)
    stage.strike(node)
    stage.run(lambda s: s.nodes("j1")[0].state is G)
    for desired in (Desired.PAUSE, Desired.RUN):
        stage.store.jobs.set_desired("j1", desired, stage.clock.now_us())
    stage.run(lambda s: [n for n in s.nodes("j1", R) if n.generation == 2])


def test_another_offer_has_its_turn_before_one_that_did_not_boot(stage: Stage) -> None:
    """Each is asked for once before the first is asked for again."""
    stage.clouds["gcp"].on_sale = [build.offer("gcp-1a", 12), build.offer("gcp-1b", 13)]
    stage.start()
    wait_s = 100.0
    stage.submit(boot_timeout_s=wait_s)
    for count in range(1, 7):
        stage.run(lambda s, n=count: len(s.nodes("j1")) == n, limit_s=10 * wait_s)
        stage.run(lambda s, n=count: s.nodes("j1")[n - 1].instance_id)
        stage.machine(stage.nodes("j1")[-1]).hung = True
    nodes = stage.nodes("j1")
    assert {n.departure.leave_reason for n in nodes[:-1]} == {LeaveReason.BOOT_TIMEOUT}
    zones = [n.offer.zone for n in nodes]
    assert zones == ["aws-1a", "gcp-1a", "gcp-1b"] * 2
    rounds = [
        b.requested_at_us - a.departure.left_at_us for a, b in zip(nodes, nodes[3:], strict=False)
    ]
    assert min(rounds) >= BOOT_TIMEOUTS * wait_s * S
