"""One pass of the reconciler: claim, load, decide, commit, perform, record.

`one_pass` and `one_effect` are generators that yield a named boundary before and after everything
that other processes can see. The daemon drains them on its threads. The simulator interleaves
several, and stops one at any boundary to see what a crash there leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from providers.catalogs.egress import first_tier_prices
from providers.catalogs.places import places
from providers.catalogs.storage import first_tier_storage
from spotd.act.effects import EffectContext, call, effects_of, not_configured
from spotd.domain.fast_replace import changed
from spotd.domain.market import (
    Geography,
    LaunchPermission,
    Market,
    StoreCatalog,
    Timing,
    Uptime,
)
from spotd.domain.plan import Effect, Plan
from spotd.domain.view import View
from spotd.planner.core.next_effect import last_start_us
from spotd.planner.planner import decide
from spotd.store.commit import CommitResult, CommitStatus

CLAIM_LEASE_S = 10.0  # a pass takes milliseconds; what a dead daemon had claimed is free then


@dataclass(frozen=True)
class Boundary:
    """A point in a pass: `when` is "before" or "after"; job ids are separated by commas."""

    when: str
    what: str
    job_id: str


Steps = Generator[Boundary, None, None]


def claim_due(world: EffectContext, owner: str, limit: int) -> list[str]:
    """Claim up to `limit` due jobs; the caller passes each to a pass."""
    lease_us = int(CLAIM_LEASE_S * 1e6)
    return world.store.jobs.claim(world.clock.now_us(), owner, limit, lease_us)


def market_now(world: EffectContext, timing: Timing) -> Market:
    """Return the market as stored, with the facts that only the configuration has."""
    now_us = world.clock.now_us()
    market = world.store.market.load(now_us)
    lost = {offer.provider for offer in market.offers}.difference(world.providers)
    # What nobody can reach is not rented.
    disabled = {
        **world.condition.unreached(),
        **market.launch.disabled,
        **{name: not_configured(name) for name in lost},
    }
    return changed(
        market,
        timing=timing,
        deployment=world.deployment,
        history=world.past(now_us),
        launch=LaunchPermission(safe_until_us=world.condition.safe_until(), disabled=disabled),
        stores=StoreCatalog(
            places=world.job_stores.places(),
            shards=world.job_stores.shards(),
            datasets=world.job_stores.datasets(),
            egress_microusd_per_gb=first_tier_prices(),
            storage_prices=first_tier_storage(),
        ),
        geography=Geography(countries=places().countries, operators=places().operators),
        uptime=Uptime(
            started_at_us=world.condition.started_at_us,
            listening_since_us=world.condition.listening_since(),
            answering_since_us=world.condition.answering_since(),
            reached_since_us=world.condition.reached_since(),
        ),
    )


def one_pass(
    world: EffectContext, timing: Timing, job_id: str, dispatch: Callable[[Effect], None]
) -> Steps:
    """Decide once about one claimed job. Calls that became due go to `dispatch`."""

    def poisoned(_job_id: str, error: Exception) -> None:
        raise error

    yield from joint_pass(world, timing, [job_id], dispatch, poisoned)


def joint_pass(
    world: EffectContext,
    timing: Timing,
    job_ids: Sequence[str],
    dispatch: Callable[[Effect], None],
    poisoned: Callable[[str, Exception], None],
) -> Steps:
    """Decide about several claimed jobs with one snapshot and one transaction.

    Each plan is accepted or refused by itself. A job whose decision raises goes to `poisoned`.
    """
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
    world: EffectContext, view: View, market: Market, obstacle: str, now_us: int
) -> tuple[Plan, CommitResult]:
    """Commit the plan with fewer launches after a limit refused it.

    First one candidate instead of several, then none. The rest of the plan is written in any case.
    """
    if view.job.spec.resources.candidates > 1:
        plan = decide(view, changed(market, hedging=False), now_us)
        result = world.store.commit(view, plan, now_us)
        if result.status is not CommitStatus.OVER_LIMIT:
            return plan, result
    plan = decide(view, changed(market, blocked=obstacle), now_us)
    return plan, world.store.commit(view, plan, now_us)


def one_effect(world: EffectContext, effect: Effect) -> Steps:
    """Perform one call and record its outcome.

    A call that waited too long for a thread is skipped: it would end after its deadline, when it
    already counts as lost and others act on that.
    """
    what = effect.kind.value
    now_us = world.clock.now_us()
    if now_us > last_start_us(effect.kind, effect.deadline_us):
        if now_us < effect.deadline_us:
            text = "waited too long for a free line"
            world.store.nodes.record_effect_failed(effect.node.id, effect.kind, text, now_us)
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
