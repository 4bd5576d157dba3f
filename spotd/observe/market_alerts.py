"""Alert on price and capacity changes: the periodic task "market"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from providers.base import OfferRequest
from spotd.base.clock import Clock
from spotd.domain.job import Desired, Job
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.history.market_episodes import (
    KINDS,
    EpisodeThresholds,
    Points,
    WaitingJobs,
    WatchedOffer,
    capacity_events,
    label,
    open_episodes,
    price_events,
)
from spotd.store.interface import Store

REMEMBERED_S = 90 * 86_400.0  # an episode that is older begins anew: events are pruned about then


class Markets:
    """Detects market episodes. `terms()` are those of the configuration.

    State is only in the recorded events, so that the next holder continues where this one stopped.
    """

    def __init__(self, terms: Callable[[], EpisodeThresholds], clock: Clock) -> None:
        self._terms = terms
        self._clock = clock

    def look(self, store: Store) -> None:
        """Alert on episodes that began or ended.

        `store` is fenced: a holder that was overtaken sends no alert. Raises StoreError.
        """
        terms, now_us = self._terms(), self._clock.now_us()
        if not (terms.prices or terms.capacity):
            return
        rows = store.events.of_deployment(KINDS, now_us - int(REMEMBERED_S * S))
        episodes = open_episodes(row.event for row in rows)
        jobs = [job for job in store.jobs.rows(finished=False) if job.desired is Desired.RUN]
        nodes = [node for node in store.nodes.active() if node.state is not NodeState.TERMINATING]
        if not (jobs or episodes):
            return
        if terms.prices:
            concerns = concerned(jobs, nodes, store.market.load(now_us))
            keys = [concern.offer.key for concern in concerns]
            points: dict[str, list[tuple[int, int]]] = {}
            for point in store.market.price_history(keys, now_us - int(terms.window_s * S)):
                price = (point.at_us, point.price_microusd_per_h)
                points.setdefault(point.offer_key, []).append(price)
            by_offer: dict[str, Points] = dict(points)
            for event in price_events(concerns, by_offer, episodes, terms, now_us):
                store.events.add("", event, now_us)
        if terms.capacity:
            served = got(jobs, nodes)
            for event in capacity_events(wanted(jobs), served, episodes, terms, now_us):
                store.events.add("", event, now_us)


def concerned(jobs: Iterable[Job], nodes: Iterable[Node], market: Market) -> list[WatchedOffer]:
    """The offers on sale that jobs run on, or wait for, in the order of the market."""
    names = {job.id: job for job in jobs}
    runs: dict[str, dict[str, int]] = {}
    for node in nodes:
        if node.job_id in names:
            job = names[node.job_id]
            runs.setdefault(node.offer.key, {})[job.name] = job.spec.limits.max_hourly_microusd
    waiting: dict[tuple[OfferRequest, ...], dict[str, int]] = {}
    for job in names.values():
        if job.queue.waiting_since_us:
            asked = waiting.setdefault(job.spec.resources.alternatives, {})
            asked[job.name] = job.spec.limits.max_hourly_microusd
    affected = []
    for offer in market.offers:
        waits: dict[str, int] = {}
        for alternatives, asked in waiting.items():
            if any(want.admits(offer) for want in alternatives):
                waits |= asked
        if waits or offer.key in runs:
            affected.append(WatchedOffer(offer, runs.get(offer.key, {}), waits))
    return affected


def wanted(jobs: Iterable[Job]) -> list[WaitingJobs]:
    """Return the kinds of machines that jobs wait for, each with those jobs."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        if job.queue.waiting_since_us:
            groups.setdefault(label(job.spec.resources.alternatives), []).append(job)
    return [
        WaitingJobs(
            name, tuple(job.name for job in group), min(job.queue.waiting_since_us for job in group)
        )
        for name, group in sorted(groups.items())
    ]


def got(jobs: Iterable[Job], nodes: Sequence[Node]) -> dict[str, tuple[str, int]]:
    """Return, for each wanted machine, the last one that was obtained, and when."""
    names = {job.id: label(job.spec.resources.alternatives) for job in jobs}
    result: dict[str, tuple[str, int]] = {}
    for node in nodes:
        name = names.get(node.job_id)
        if name and node.machine.launched_at_us > result.get(name, ("", 0))[1]:
            result[name] = (node.offer.key, node.machine.launched_at_us)
    return result
