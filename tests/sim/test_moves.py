"""Who moves for a better price loses nothing by it: no step that was paid for is trained again."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.domain.states import LeaveReason
from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.sim.fault_schedule import Weather
from tests.sim.oracles import Oracles
from tests.sim.run import Case, run
from tests.sim.tiers import TIERS
from tests.sim.world import SimWorld

PRICES = (15_000_000, 20_000_000, 25_000_000, 45_000_000)
CAP = 30_000_000
EVERY_S = 1800.0


def test_a_move_loses_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices jump over the cap of every job, again and again, and nothing else goes wrong. A new
    machine takes longer to come up than an old one may take to save."""
    codes: list[int | None] = []
    submit, judge_end = SimWorld.submit, Oracles.judge_end

    def capped(world: SimWorld, *words: Any, **fields: Any) -> str:
        fields |= {"max_hourly_microusd": CAP, "max_cost_microusd": 0}
        return submit(world, *words, **fields)

    def jump(weather: Weather) -> None:
        if weather._faults.calm:
            return
        for cloud in weather._world.clouds.values():
            random = weather._faults.stream(f"market/{cloud.name}")
            for zone in cloud.zones.values():
                cloud.reprice(zone, random.choice(PRICES))
                zone.room = 6
        weather._kernel.after(EVERY_S, weather._walk)

    def look(oracles: Oracles) -> None:
        store = oracles._world.store
        nodes = [node for job in store.jobs.rows() for node in store.nodes.of_job(job.id)]
        codes.extend(
            n.training.exit_code for n in nodes if n.departure.leave_reason is LeaveReason.OUTBID
        )
        judge_end(oracles)

    monkeypatch.setattr(SimWorld, "submit", capped)
    monkeypatch.setattr(Weather, "_walk", jump)
    monkeypatch.setattr(Oracles, "judge_end", look)
    with TIERS["memory"]() as open_store:
        results = [run(Case(seed, "calm", hours=4.0), open_store) for seed in (1, 2, 3)]
    assert not [result.violation for result in results if result.violation]
    assert codes.count(EXIT_RELEASED) >= 3
    assert set(codes) <= {EXIT_RELEASED, EXIT_FINISHED}, "nobody was cut off by their successor"
    assert sum(result.counts["steps_lost"] for result in results) == 0
