"""`GET /metrics`: how everything stands, in Prometheus' text format.

A look into the database costs what it costs; it is not repeated for so long that scrapes take no
more than a fiftieth of a core, however many ask, and however often.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.metadata import version

import structlog
from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

from spotd.api.metrics.metric_table import BY_NAME, COUNTER, METRICS
from spotd.api.request.request import ApiContext
from spotd.domain.health import Utilization, use_of
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.phase import keeps, phase
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.history.recoveries import STAGES
from spotd.money.budget import standing
from spotd.money.focus import month_of
from spotd.store.budget_queries import carried, spendings
from spotd.store.interface import StoreError
from spotd.store.metric_records import RECOVERY_S, Histogram, MetricRecords, PoolRow

log = structlog.get_logger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FRESH_S = 5.0  # for so long at least a look serves all who ask
SHARE = 50.0  # times what it cost
BUDGETS_S = 60.0  # as often as the duty of budgets looks; it reads 40 days of the ledger
NOBODY, HERE, ELSEWHERE = "nobody", "this", "another"

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
Labels = tuple[str, ...]


class ExpositionPage:
    """The families of a scrape, in the order of the table. What has no sample is left out."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._spreads: dict[str, dict[Labels, Histogram]] = defaultdict(dict)

    def add(self, name: str, value: float, *labels: str) -> None:
        """To a gauge or a counter; what has the same labels adds up."""
        self._values[name][self._checked(name, labels)] += value

    def spread(self, name: str, spread: Histogram, *labels: str) -> None:
        """To a histogram."""
        key, mine = self._checked(name, labels), self._spreads[name]
        mine[key] = mine[key] + spread if key in mine else spread

    @staticmethod
    def _checked(name: str, labels: Labels) -> Labels:
        if len(labels) != len(BY_NAME[name].labels):
            raise ValueError(f"{name} is divided by {BY_NAME[name].labels}, not {labels}")
        return labels

    def families(self) -> Iterator[Family]:
        for metric in METRICS:
            name, values = metric.name, self._values.get(metric.name)
            if values is not None:
                kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
                family = kind(name, metric.text, labels=metric.labels)
                for labels, value in values.items():
                    family.add_metric(labels, value)
                yield family
            elif name in self._spreads:
                yield _histogram(name, metric.text, metric.labels, self._spreads[name])


def _histogram(
    name: str, text: str, labels: Labels, spreads: Mapping[Labels, Histogram]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for mine, spread in spreads.items():
        below = [
            (floatToGoString(bound), float(number))  # type: ignore[no-untyped-call]
            for bound, number in zip(spread.bounds, spread.below, strict=True)
        ]
        family.add_metric(mine, [*below, ("+Inf", float(spread.count))], spread.total)
    return family


class Metrics(Collector):
    """Made once a daemon; `text()` may be asked on any thread."""

    def __init__(self, backing: ApiContext) -> None:
        self._backing = backing
        self._lock = threading.Lock()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._page: ExpositionPage | None = None
        self._read_at_s = 0.0
        self._read_s = 0.0
        self._away = False
        self._budgets: list[tuple[str, float, float, float]] = []
        self._budgets_at_s = 0.0

    def text(self) -> bytes:
        """The whole exposition."""
        with self._lock:
            return generate_latest(self._registry) + generate_latest(self._backing.meters.registry)

    def forget(self) -> None:
        """The next scrape looks anew, however little time has passed."""
        with self._lock:
            self._page = None

    def describe(self) -> list[Family]:
        """Nothing is collected to register."""
        return []

    def collect(self) -> Iterator[Family]:
        """Of a look that is fresh enough, with how this daemon stands at this moment."""
        clock = self._backing.clock
        age_s = clock.monotonic_s() - self._read_at_s
        # A database that is away says nothing of what the next look will cost.
        patience_s = FRESH_S if self._away else max(FRESH_S, SHARE * self._read_s)
        if self._page is None or age_s > patience_s:
            began_s = clock.monotonic_s()
            self._page = self._look()
            self._read_at_s = clock.monotonic_s()
            self._read_s = self._read_at_s - began_s
            age_s = 0.0
        yield from self._page.families()
        yield from self._now(age_s).families()

    def _now(self, age_s: float) -> ExpositionPage:
        page, backing = ExpositionPage(), self._backing
        page.add("spotd_build_info", 1, version("spotd"))
        page.add("spotd_safe_mode", bool(backing.safe_mode()))
        page.add("spotd_contested", bool(backing.contested()))
        page.add("spotd_metrics_read_seconds", self._read_s)
        page.add("spotd_metrics_age_seconds", age_s)
        return page

    def _look(self) -> ExpositionPage:
        """Without the database, that it is away; old figures would pass for new ones."""
        page, backing, now_us = ExpositionPage(), self._backing, self._backing.clock.now_us()
        try:
            found = backing.tally(now_us)
            jobs, nodes = backing.store.jobs(False), backing.store.active_nodes()
            self._add_budgets(page, now_us)
            routes = backing.store.route_rows()
        except StoreError as error:
            log.warning("no metrics of the record", error=str(error))
            page = ExpositionPage()
            page.add("spotd_store_up", 0)
            self._away = True
            return page
        self._away = False
        page.add("spotd_store_up", 1)
        _add_pools(page, found)
        _add_recoveries(page, found)
        _add_saves(page, found)
        _add_money(page, found)
        _add_jobs(page, found, jobs, nodes, now_us)
        lag_us = now_us - found.overdue_us if found.overdue_us else 0
        page.add("spotd_reconcile_lag_seconds", lag_us / S)
        for row in routes:
            page.add("spotd_alerts_waiting", row.waiting, row.route)
            oldest_us = now_us - row.since_us if row.since_us else 0
            page.add("spotd_alerts_oldest_seconds", oldest_us / S, row.route)
        self._add_clouds(page, found)
        return page

    def _add_clouds(self, page: ExpositionPage, found: MetricRecords) -> None:
        backing, silent = self._backing, self._backing.silent()
        for provider in (one.name for one in backing.providers_info()):
            up = provider not in silent and not found.disabled.get(provider)
            page.add("spotd_provider_up", up, provider)
            if provider not in backing.unswept():
                page.add("spotd_orphans", 0, provider)
                page.add("spotd_leftovers", 0, provider)
        for held in backing.held():
            page.add("spotd_orphans", 1, held.provider)
        for left in backing.held_leftovers():
            page.add("spotd_leftovers", 1, left.provider)
        names = {"": NOBODY, backing.owner: HERE}
        for holder in (HERE, ELSEWHERE, NOBODY):
            page.add("spotd_duties", 0, holder)
        for holder, count in found.held.items():
            page.add("spotd_duties", count, names.get(holder, ELSEWHERE))

    def _add_budgets(self, page: ExpositionPage, now_us: int) -> None:
        """Raises StoreError."""
        budgets, store, now_s = self._backing.budgets(), self._backing.store, now_us / S
        if budgets and now_s - self._budgets_at_s >= BUDGETS_S:
            month = month_of(now_us)
            rows, extra = spendings(store, now_us), carried(store, month[0])
            stand = [standing(one, rows, month, now_us, extra) for one in budgets]
            self._budgets = [
                (
                    one.budget.name,
                    one.budget.microusd / 1e6,
                    one.percent(one.spent_microusd) / 100,
                    one.percent(one.forecast.middle) / 100,
                )
                for one in stand
            ]
            self._budgets_at_s = now_s
        for name, usd, used, forecast in self._budgets if budgets else ():
            page.add("spotd_budget_usd", usd, name)
            page.add("spotd_budget_used_ratio", used, name)
            page.add("spotd_budget_forecast_ratio", forecast, name)


def _pool(offer_key: str) -> Labels:
    """Provider, region, zone and capacity type: types of machines would be too many."""
    provider, region, zone, _, capacity_type = offer_key.split("/")
    return provider, region, zone, capacity_type


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _add_pools(page: ExpositionPage, found: MetricRecords) -> None:
    for row in found.pools:
        pool = _pool(row.offer_key)
        few = pool[0], pool[3]
        page.spread("spotd_provision_seconds", row.provision, *few)
        if row.outcome not in ("", "moved"):
            page.add("spotd_launch_requests_total", row.count, *pool, row.outcome)
        if row.outcome in ("launched", "moved"):
            page.add("spotd_node_seconds_total", row.seconds, *pool)
            _add_interruptions(page, row, pool)


def _add_interruptions(page: ExpositionPage, row: PoolRow, pool: Labels) -> None:
    """With those that did not happen: what appears with 1 never rose from 0."""
    for kind in (LeaveReason.PREEMPTED.value, LeaveReason.LOST.value):
        for told in (True, False):
            hit = row.reason == kind and row.told is told
            count = row.count if hit else 0
            page.add("spotd_interruptions_total", count, *pool, kind, _yes(told))
    page.spread("spotd_notice_seconds", row.notice, pool[0])
    page.spread("spotd_notice_margin_seconds", row.margin, pool[0])


def _add_recoveries(page: ExpositionPage, found: MetricRecords) -> None:
    rows = found.recoveries
    for number, stage in enumerate(STAGES):
        spread = Histogram.of((row.parts_s[number] for row in rows), RECOVERY_S)
        page.spread("spotd_recovery_seconds", spread, stage)
    total = Histogram.of((sum(row.parts_s) for row in rows), RECOVERY_S)
    page.spread("spotd_recovery_seconds", total, "total")
    for row in rows:
        page.add("spotd_steps_replayed_total", row.replayed, row.provider, _yes(row.told))


def _add_saves(page: ExpositionPage, found: MetricRecords) -> None:
    for row in found.saves:
        page.add("spotd_checkpoints_total", row.count, row.trigger)
        page.add("spotd_checkpoint_bytes_total", row.bytes, row.trigger)
        page.spread("spotd_checkpoint_write_seconds", row.write, row.trigger)
        page.spread("spotd_checkpoint_stall_seconds", row.stall, row.trigger)


def _add_money(page: ExpositionPage, found: MetricRecords) -> None:
    for spent in found.spent:
        basis = "invoiced" if spent.invoiced else "provisional"
        project = found.projects.get(spent.job_id, "")
        page.add("spotd_spent_usd", spent.microusd / 1e6, project, spent.kind, basis)
    for rate in found.rates:
        provider, _, _, capacity_type = _pool(rate.offer_key)
        project = found.projects.get(rate.job_id, "")
        usd = rate.microusd_per_h / 1e6
        page.add("spotd_burn_usd_per_hour", usd, project, provider, capacity_type)


def _add_jobs(
    page: ExpositionPage, found: MetricRecords, jobs: list[Job], nodes: list[Node], now_us: int
) -> None:
    mine: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        mine[node.job_id].append(node)
        offer = node.offer
        pool = offer.provider, offer.region, offer.zone, offer.capacity_type.value
        page.add("spotd_nodes", 1, *pool, node.state.value)
    for outcome in Outcome:
        page.add("spotd_jobs_finished_total", found.finished.get(outcome.value, 0), outcome.value)
    cost: dict[str, int] = defaultdict(int)
    for spent in found.spent:
        cost[spent.job_id] += spent.microusd
    for job in jobs:
        who = job.name, job.spec.project
        page.add("spotd_jobs", 1, phase(job, mine[job.id]), who[1])
        page.add("spotd_job_cost_usd", cost[job.id] / 1e6, *who)
        steps = [n.last_step for n in mine[job.id] if n.generation == job.generation]
        page.add("spotd_job_step", max([job.head.step if job.head else 0, *steps]), *who)
        training = [n for n in mine[job.id] if n.state is NodeState.RUNNING and n.first_step_at_us]
        if training and keeps(job.spec.checkpoint):
            began_us = max(n.first_step_at_us for n in training)
            last_us = max(found.saved_at_us.get(job.id, 0), began_us)
            page.add("spotd_job_unsaved_seconds", max(0, now_us - last_us) / S, *who)
        use = use_of(list(found.usage.get(job.id, ())))
        if use is not None:
            _add_use(page, use, training, who)


def _add_use(
    page: ExpositionPage, use: Utilization, training: list[Node], who: tuple[str, str]
) -> None:
    if use.gpu is not None:
        page.add("spotd_job_gpu_busy_ratio", use.gpu, *who)
        price = sum(node.offer.price_microusd_per_h for node in training) / 1e6
        page.add("spotd_job_idle_usd_per_hour", (1 - use.gpu) * price, *who)
    for wait, share in (("data", use.data), ("save", use.save)):
        if share is not None:
            page.add("spotd_job_wait_ratio", share, *who, wait)
