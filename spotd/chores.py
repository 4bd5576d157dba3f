"""What the daemon looks after besides machines: budgets, idle GPUs, markets, drills."""

from __future__ import annotations

from collections.abc import Callable

from spotd.act.drilling import EVERY_S, Drilling
from spotd.act.effects import World
from spotd.config import Config
from spotd.duties import Duties
from spotd.model import Timing
from spotd.observe import budgets, drills, idling, markets
from spotd.reconcile import market_now


def add_chores(
    duties: Duties, world: World, config: Callable[[], Config], timing: Callable[[], Timing]
) -> None:
    """Each with its rhythm; before `duties` start. `config` and `timing` are those in force."""
    clock = world.clock
    kept = budgets.Budgets(lambda: config().budgets, clock, lambda: config().dry_run, world.places)
    duties.add(budgets.EVERY_S, "budgets", kept.keep)
    duties.add(idling.EVERY_S, "idle", idling.Idling(lambda: config().idle, clock).look)
    news = markets.Markets(lambda: config().market_alerts, clock).look
    duties.add(markets.EVERY_S, "market", news)
    drilling = Drilling(
        *(world.link, world.keys, world.providers),
        *(lambda _now_us: market_now(world, timing()), clock),
    )
    duties.add(EVERY_S, "drills", drilling.look)
    late = drills.OverdueDrills(lambda: config().drill_days, clock)
    duties.add(drills.EVERY_S, "overdue drills", late.look)
