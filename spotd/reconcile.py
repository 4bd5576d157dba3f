"""One pass: claim, load, decide, commit, perform, record. The circle of the architecture page.

`one_pass` and `one_effect` are generators that yield a named boundary before and after everything
that others can see. The daemon drains them on its threads; a simulator interleaves several, and
stops one for good at any boundary to see what a crash there leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from spotd.act.effects import World, call, effects_of
from spotd.decide.needs import last_start_us
from spotd.decide.rules import decide
from spotd.model import Market, Timing
from spotd.plan import Effect
from spotd.store.base import CommitStatus

CLAIM_LEASE_S = 10.0  # a pass takes milliseconds; what a dead daemon had claimed is free then


@dataclass(frozen=True)
class Boundary:
    """Where a pass stands: `when` is "before" or "after"."""

    when: str
    what: str
    job_id: str


Steps = Generator[Boundary, None, None]


def claim_due(world: World, owner: str, limit: int) -> list[str]:
    """Take up to `limit` due jobs; each is to be given to `one_pass`."""
    lease_us = int(CLAIM_LEASE_S * 1e6)
    return world.store.claim(world.clock.now_us(), owner, limit, lease_us)


def market_now(world: World, timing: Timing) -> Market:
    """The market as stored, with what only the configuration knows."""
    market = world.store.load_market(world.clock.now_us())
    lag_s = {name: provider.visibility_s for name, provider in world.providers.items()}
    return replace(
        market,
        timing=timing,
        visibility_s=lag_s,
        deployment=world.deployment,
        started_at_us=world.started_at_us,
    )


def one_pass(
    world: World, timing: Timing, job_id: str, dispatch: Callable[[Effect], None]
) -> Steps:
    """Decide once about one claimed job. Calls that became due go to `dispatch`."""
    now_us = world.clock.now_us()
    view = world.store.load_view(job_id, now_us)
    if view is None:
        return
    market = market_now(world, timing)
    plan = decide(view, market, now_us)
    yield Boundary("before", "commit", job_id)
    result = world.store.commit(view, plan, now_us)
    if result.status is CommitStatus.OVER_LIMIT:
        plan = decide(view, replace(market, blocked=result.text), now_us)
        result = world.store.commit(view, plan, now_us)
    yield Boundary("after", "commit", job_id)
    if result.status is not CommitStatus.DONE or result.view is None:
        return  # somebody decided first: the job is still due
    for effect in effects_of(result.view, now_us):
        dispatch(effect)


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
