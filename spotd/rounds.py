"""What the daemon looks after beside jobs, each as a duty of its own: budgets, GPUs that idle, news
of the market, data that is brought ahead, and drills."""

from __future__ import annotations

from collections.abc import Callable

from spotd.act import ahead
from spotd.act.drilling import EVERY_S, Drilling
from spotd.act.effects import World
from spotd.config import Config
from spotd.duties import Duties
from spotd.observe import budgets, drills, idling, markets
from spotd.observe.carriage import record_job
from spotd.reconcile import market_now


def add_rounds(
    duties: Duties, config: Callable[[], Config], world: World, note: Callable[[str], None]
) -> ahead.StagingAhead:
    """`config()` is asked each time: it may be read anew. `note(url)` is told of a copy of data
    that is whole."""
    clock = world.clock
    kept = budgets.Budgets(
        *(lambda: config().budgets, clock, lambda: config().dry_run),
        *(world.places, lambda: config().datasets),
    )
    duties.add(budgets.EVERY_S, "budgets", kept.keep)
    duties.add(idling.EVERY_S, "idle", idling.Idling(lambda: config().idle, clock).look)
    news = markets.Markets(lambda: config().market_alerts, clock).look
    duties.add(markets.EVERY_S, "market", news)
    bringing = ahead.StagingAhead(
        *(lambda: market_now(world, config().timing), world.open_store, clock),
        *(lambda: config().file.staging.bytes_per_s, note),
        lambda store, job: record_job(
            store, job, world.places(), clock.now_us(), config().datasets
        ),
        world.contested,
    )
    duties.add(ahead.EVERY_S, "stage", bringing.look)
    drilling = Drilling(
        *(world.link, world.keys, world.providers),
        *(lambda _now_us: market_now(world, config().timing), clock),
        world.contested,
    )
    duties.add(EVERY_S, "drills", drilling.look)
    late = drills.OverdueDrills(lambda: config().drill_days, clock)
    duties.add(drills.EVERY_S, "overdue drills", late.look)
    return bringing
