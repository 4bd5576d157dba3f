"""One pass: claim, load, decide, commit, perform, record. The circle of the architecture page.

`one_pass` and `one_effect` are generators that yield a named boundary before and after everything
that others can see. The daemon drains them on its threads; a simulator interleaves several, and
stops one for good at any boundary to see what a crash there leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from providers.egress import first_prices
from providers.places import places
from providers.storage import first_storage
from spotd.act.effects import World, call, effects_of, not_configured
from spotd.changed import changed
from spotd.decide.needs import last_start_us
from spotd.decide.rules import decide
from spotd.model import Market, Timing, View
from spotd.plan import Effect, Plan
from spotd.store.base import CommitResult, CommitStatus

CLAIM_LEASE_S = 10.0  # a pass takes milliseconds; what a dead daemon had claimed is free then


@dataclass(frozen=True)
class Boundary:
    """Where a pass stands: `when` is "before" or "after"; several jobs are named with commas."""

    when: str
    what: str
    job_id: str


Steps = Generator[Boundary, None, None]


def claim_due(world: World, owner: str, limit: int) -> list[str]:
    """Take up to `limit` due jobs; each is to be given to a pass."""
    lease_us = int(CLAIM_LEASE_S * 1e6)
    return world.store.claim(world.clock.now_us(), owner, limit, lease_us)


def market_now(world: World, timing: Timing) -> Market:
    """The market as stored, with what only the configuration knows."""
    now_us = world.clock.now_us()
    market = world.store.load_market(now_us)
    lost = {offer.provider for offer in market.offers}.difference(world.providers)
    return changed(
        market,
        # What nobody can reach is not rented.
        disabled={
            **world.unreached(),
            **market.disabled,
            **{name: not_configured(name) for name in lost},
        },
        timing=timing,
        deployment=world.deployment,
        started_at_us=world.started_at_us,
        listening_since_us=world.listening_since(),
        answering_since_us=world.answering_since(),
        reached_since_us=world.reached_since(),
        safe_until_us=world.safe_until(),
        places=world.places(),
        shards=world.shards(),
        datasets=world.datasets(),
        leaving=first_prices(),
        storing=first_storage(),
        countries=places().countries,
        operators=places().operators,
        past=world.past(now_us),
    )


def one_pass(
    world: World, timing: Timing, job_id: str, dispatch: Callable[[Effect], None]
) -> Steps:
    """Decide once about one claimed job. Calls that became due go to `dispatch`."""

    def poisoned(_job_id: str, error: Exception) -> None:
        raise error

    yield from joint_pass(world, timing, [job_id], dispatch, poisoned)


def joint_pass(
    world: World,
    timing: Timing,
    job_ids: Sequence[str],
    dispatch: Callable[[Effect], None],
    poisoned: Callable[[str, Exception], None],
) -> Steps:
    """Decide once about each of some claimed jobs: one snapshot, one transaction. Each plan is
    accepted or not by itself; a job that nothing can be decided about goes to `poisoned`."""
    now_us = world.clock.now_us()
    views = world.store.load_views(job_ids, now_us)
    market = market_now(world, timing)
    plans: list[tuple[View, Plan]] = []
    for view in (views[job_id] for job_id in job_ids if job_id in views):
        try:
            plans.append((view, decide(view, market, now_us)))
        except Exception as error:  # noqa: BLE001 - a bug that one job meets stops no other
            poisoned(view.job.id, error)
    if not plans:
        return
    names = ",".join(view.job.id for view, _ in plans)
    yield Boundary("before", "commit", names)
    results = world.store.commit_many(plans, now_us)
    for at, (view, _) in enumerate(plans):
        if results[at].status is CommitStatus.OVER_LIMIT:
            plan, results[at] = _ask_for_less(world, view, market, results[at].text, now_us)
            plans[at] = (view, plan)
    yield Boundary("after", "commit", names)
    for (_, plan), result in zip(plans, results, strict=True):
        if result.status is not CommitStatus.DONE or result.view is None:
            continue  # somebody decided first: the job is still due
        for effect in effects_of(result.view, plan.armed, now_us):
            dispatch(effect)


def _ask_for_less(
    world: World, view: View, market: Market, obstacle: str, now_us: int
) -> tuple[Plan, CommitResult]:
    """A limit is in the way: one candidate instead of several, and where there is no room for that
    one either, none; the rest of the plan is written in any case."""
    if view.job.spec.candidates > 1:
        plan = decide(view, changed(market, hedging=False), now_us)
        result = world.store.commit(view, plan, now_us)
        if result.status is not CommitStatus.OVER_LIMIT:
            return plan, result
    plan = decide(view, changed(market, blocked=obstacle), now_us)
    return plan, world.store.commit(view, plan, now_us)


def one_effect(world: World, effect: Effect) -> Steps:
    """Make one call and record its outcome. One that waited too long for its turn is not made: it
    would end after its deadline, when it counts as lost and others act on that."""
    what = effect.kind.value
    now_us = world.clock.now_us()
    if now_us > last_start_us(effect.kind, effect.deadline_us):
        if now_us < effect.deadline_us:
            text = "waited too long for a free line"
            world.store.record_effect_failed(effect.node.id, effect.kind, text, now_us)
        return
    yield Boundary("before", what, effect.job.id)
    record = call(effect, world)
    yield Boundary("before", f"record {what}", effect.job.id)
    record()
    yield Boundary("after", f"record {what}", effect.job.id)


def drain(steps: Steps) -> None:
    """Run a pass to its end, as the daemon does."""
    for _ in steps:
        pass
