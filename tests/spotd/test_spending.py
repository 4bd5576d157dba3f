"""What a job may cost holds whatever happens to prices: over the stage, with its own timers."""

from __future__ import annotations

from spotd.domain.states import NodeState, Outcome
from spotd.domain.units import S
from tests.spotd.fake_world import TICK_S, Stage
from tests.spotd.store import build

R, D = NodeState.RUNNING, NodeState.DRAINING
USD_S = 3600  # an hourly price that makes a dollar a second


def test_max_cost_holds_when_the_price_rises(stage: Stage) -> None:
    stage.clouds["aws"].on_sale = [build.offer("aws-1a", USD_S)]
    stage.clouds["gcp"].on_sale = []
    stage.start()
    stage.goal = None
    stage.submit(max_cost_microusd=60_000_000)
    stage.run(lambda s: s.nodes("j1", R))
    (node,) = stage.nodes("j1")
    stage.clock.sleep(10.0)
    dear = build.offer("aws-1a", 4 * USD_S)
    raised_us = stage.clock.now_us()
    stage.store.market.record_offers("aws", [dear], raised_us)
    passes = stage.passes
    stage.run(lambda s: s.nodes("j1")[0].departure.drained_at_us)
    assert stage.passes <= passes + 2, "the news, and the timer that was set then"
    (node,) = stage.nodes("j1")
    spent = (raised_us - node.machine.launched_at_us) + 4 * (
        node.departure.drained_at_us - raised_us
    )
    tick = 4 * TICK_S * S
    assert 60 * S <= spent <= 60 * S + 2 * tick, "a dollar a second, then four"
    stage.run(lambda s: s.over("j1"))
    job = stage.job()
    assert (job.outcome, job.end.outcome_text) == (Outcome.FAILED, "max_cost_usd of $60.00 reached")
