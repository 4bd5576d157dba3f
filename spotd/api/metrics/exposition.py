"""`GET /metrics`: the state of the deployment in Prometheus' text format.

Reading the database takes time. The page is reused for long enough that scrapes take at most a
fiftieth of one core, whatever the number and frequency of scrapes.
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
from spotd.api.request.context import ApiContext
from spotd.domain.health import Utilization, use_of
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.phase import keeps, phase
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.history.recoveries import STAGES
from spotd.money.budget import budget_status
from spotd.money.focus import month_of
from spotd.store.budget_queries import carried, spendings
from spotd.store.errors import StoreError
from spotd.store.metrics import RECOVERY_S, Histogram, MetricRecords, PoolRow

log = structlog.get_logger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FRESH_S = 5.0  # a page is reused for at least this time
SHARE = 50.0  # and for at least this many times the time that reading it took
BUDGETS_S = 60.0  # the period of the budget check; it reads 40 days of the ledger
NOBODY, HERE, ELSEWHERE = "nobody", "this", "another"

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
Labels = tuple[str, ...]


class ExpositionPage:
    """The metric families of one scrape, in the order of the table; empty families are left out."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[str, dict[Labels, Histogram]] = defaultdict(dict)

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add to a gauge or a counter; values with the same labels are summed."""
        self._values[name][self._checked(name, labels)] += value

    def add_histogram(self, name: str, add_histogram: Histogram, *labels: str) -> None:
        """Add to a histogram."""
        key, by_labels = self._checked(name, labels), self._histograms[name]
        by_labels[key] = by_labels[key] + add_histogram if key in by_labels else add_histogram

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
            elif name in self._histograms:
                yield _histogram(name, metric.text, metric.labels, self._histograms[name])


def _histogram(
    name: str, text: str, labels: Labels, spreads: Mapping[Labels, Histogram]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for label_values, add_histogram in spreads.items():
        buckets = [
            (floatToGoString(bound), float(number))  # type: ignore[no-untyped-call]
            for bound, number in zip(add_histogram.bounds, add_histogram.below, strict=True)
        ]
        family.add_metric(
            label_values, [*buckets, ("+Inf", float(add_histogram.count))], add_histogram.total
        )
    return family


class Metrics(Collector):
    """The metrics collector of a daemon. `text()` is thread-safe."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
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
            return generate_latest(self._registry) + generate_latest(
                self._context.daemon.process_metrics.registry
            )

    def invalidate(self) -> None:
        """Make the next scrape read the database, however recent the page is."""
        with self._lock:
            self._page = None

    def describe(self) -> list[Family]:
        """Return no families, so that registering collects nothing."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield the families of a recent enough page, and those of this daemon's present state."""
        clock = self._context.clock
        age_s = clock.monotonic_s() - self._read_at_s
        # A failed read does not tell how long the next one will take.
        max_age_s = FRESH_S if self._away else max(FRESH_S, SHARE * self._read_s)
        if self._page is None or age_s > max_age_s:
            started_s = clock.monotonic_s()
            self._page = self._read()
            self._read_at_s = clock.monotonic_s()
            self._read_s = self._read_at_s - started_s
            age_s = 0.0
        yield from self._page.families()
        yield from self._daemon_state(age_s).families()

    def _daemon_state(self, age_s: float) -> ExpositionPage:
        page, context = ExpositionPage(), self._context
        page.add("spotd_build_info", 1, version("spotd"))
        page.add("spotd_safe_mode", bool(context.daemon.safe_mode()))
        page.add("spotd_contested", bool(context.daemon.contested()))
        page.add("spotd_metrics_read_seconds", self._read_s)
        page.add("spotd_metrics_age_seconds", age_s)
        return page

    def _read(self) -> ExpositionPage:
        """Read the page from the database.

        If the database is unavailable, the page says only that: old values would look like new
        ones.
        """
        page, context, now_us = ExpositionPage(), self._context, self._context.clock.now_us()
        try:
            records = context.metric_records(now_us)
            jobs, nodes = context.store.jobs.rows(False), context.store.nodes.active()
            self._add_budgets(page, now_us)
            routes = context.store.alerts.routes()
        except StoreError as error:
            log.warning("no metrics of the record", error=str(error))
            page = ExpositionPage()
            page.add("spotd_store_up", 0)
            self._away = True
            return page
        self._away = False
        page.add("spotd_store_up", 1)
        _add_pools(page, records)
        _add_recoveries(page, records)
        _add_saves(page, records)
        _add_money(page, records)
        _add_jobs(page, records, jobs, nodes, now_us)
        lag_us = now_us - records.overdue_us if records.overdue_us else 0
        page.add("spotd_reconcile_lag_seconds", lag_us / S)
        for row in routes:
            page.add("spotd_alerts_waiting", row.waiting, row.route)
            oldest_us = now_us - row.since_us if row.since_us else 0
            page.add("spotd_alerts_oldest_seconds", oldest_us / S, row.route)
        self._add_clouds(page, records)
        return page

    def _add_clouds(self, page: ExpositionPage, records: MetricRecords) -> None:
        context, silent = self._context, self._context.clouds.silent_providers()
        for provider in (info.name for info in context.clouds.providers()):
            up = provider not in silent and not records.disabled.get(provider)
            page.add("spotd_provider_up", up, provider)
            if provider not in context.clouds.unlisted_providers():
                page.add("spotd_orphans", 0, provider)
                page.add("spotd_leftovers", 0, provider)
        for held in context.clouds.held():
            page.add("spotd_orphans", 1, held.provider)
        for left in context.clouds.held_leftovers():
            page.add("spotd_leftovers", 1, left.provider)
        names = {"": NOBODY, context.daemon.owner: HERE}
        for holder in (HERE, ELSEWHERE, NOBODY):
            page.add("spotd_duties", 0, holder)
        for holder, count in records.held.items():
            page.add("spotd_duties", count, names.get(holder, ELSEWHERE))

    def _add_budgets(self, page: ExpositionPage, now_us: int) -> None:
        """Raises StoreError."""
        budgets, store, now_s = self._context.settings.budgets(), self._context.store, now_us / S
        if budgets and now_s - self._budgets_at_s >= BUDGETS_S:
            month = month_of(now_us)
            rows, carried_costs = spendings(store, now_us), carried(store, month[0])
            statuses = [
                budget_status(budget, rows, month, now_us, carried_costs) for budget in budgets
            ]
            self._budgets = [
                (
                    status.budget.name,
                    status.budget.microusd / 1e6,
                    status.percent(status.spent_microusd) / 100,
                    status.percent(status.forecast.middle) / 100,
                )
                for status in statuses
            ]
            self._budgets_at_s = now_s
        for name, usd, used, forecast in self._budgets if budgets else ():
            page.add("spotd_budget_usd", usd, name)
            page.add("spotd_budget_used_ratio", used, name)
            page.add("spotd_budget_forecast_ratio", forecast, name)


def _pool(offer_key: str) -> Labels:
    """Return provider, region, zone and capacity type.

    Instance types would make too many label values.
    """
    provider, region, zone, _, capacity_type = offer_key.split("/")
    return provider, region, zone, capacity_type


def _yes_or_no(flag: bool) -> str:
    return "yes" if flag else "no"


def _add_pools(page: ExpositionPage, records: MetricRecords) -> None:
    for row in records.pools:
        pool = _pool(row.offer_key)
        provider_and_capacity = pool[0], pool[3]
        page.add_histogram("spotd_provision_seconds", row.provision, *provider_and_capacity)
        if row.outcome not in ("", "moved"):
            page.add("spotd_launch_requests_total", row.count, *pool, row.outcome)
        if row.outcome in ("launched", "moved"):
            page.add("spotd_node_seconds_total", row.seconds, *pool)
            _add_interruptions(page, row, pool)


def _add_interruptions(page: ExpositionPage, row: PoolRow, pool: Labels) -> None:
    """Add the interruption counts, zeros included.

    A counter that first appears with 1 never rose from 0, so Prometheus would miss the rise.
    """
    for kind in (LeaveReason.PREEMPTED.value, LeaveReason.LOST.value):
        for noticed in (True, False):
            matches = row.reason == kind and row.noticed is noticed
            count = row.count if matches else 0
            page.add("spotd_interruptions_total", count, *pool, kind, _yes_or_no(noticed))
    page.add_histogram("spotd_notice_seconds", row.notice, pool[0])
    page.add_histogram("spotd_notice_margin_seconds", row.margin, pool[0])


def _add_recoveries(page: ExpositionPage, records: MetricRecords) -> None:
    rows = records.recoveries
    for number, stage in enumerate(STAGES):
        add_histogram = Histogram.of((row.parts_s[number] for row in rows), RECOVERY_S)
        page.add_histogram("spotd_recovery_seconds", add_histogram, stage)
    total = Histogram.of((sum(row.parts_s) for row in rows), RECOVERY_S)
    page.add_histogram("spotd_recovery_seconds", total, "total")
    for row in rows:
        page.add("spotd_steps_replayed_total", row.replayed, row.provider, _yes_or_no(row.noticed))


def _add_saves(page: ExpositionPage, records: MetricRecords) -> None:
    for row in records.saves:
        page.add("spotd_checkpoints_total", row.count, row.trigger)
        page.add("spotd_checkpoint_bytes_total", row.bytes, row.trigger)
        page.add_histogram("spotd_checkpoint_write_seconds", row.write, row.trigger)
        page.add_histogram("spotd_checkpoint_stall_seconds", row.stall, row.trigger)


def _add_money(page: ExpositionPage, records: MetricRecords) -> None:
    for spent in records.spent:
        basis = "invoiced" if spent.invoiced else "provisional"
        project = records.projects.get(spent.job_id, "")
        page.add("spotd_spent_usd", spent.microusd / 1e6, project, spent.kind, basis)
    for rate in records.rates:
        provider, _, _, capacity_type = _pool(rate.offer_key)
        project = records.projects.get(rate.job_id, "")
        usd = rate.microusd_per_h / 1e6
        page.add("spotd_burn_usd_per_hour", usd, project, provider, capacity_type)


def _add_jobs(
    page: ExpositionPage, records: MetricRecords, jobs: list[Job], nodes: list[Node], now_us: int
) -> None:
    nodes_by_job: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        nodes_by_job[node.job_id].append(node)
        offer = node.offer
        pool = offer.provider, offer.region, offer.zone, offer.capacity_type.value
        page.add("spotd_nodes", 1, *pool, node.state.value)
    for outcome in Outcome:
        page.add("spotd_jobs_finished_total", records.finished.get(outcome.value, 0), outcome.value)
    cost: dict[str, int] = defaultdict(int)
    for spent in records.spent:
        cost[spent.job_id] += spent.microusd
    for job in jobs:
        labels = job.name, job.spec.queue.project
        page.add("spotd_jobs", 1, phase(job, nodes_by_job[job.id]), labels[1])
        page.add("spotd_job_cost_usd", cost[job.id] / 1e6, *labels)
        steps = [
            n.training.last_step for n in nodes_by_job[job.id] if n.generation == job.generation
        ]
        page.add("spotd_job_step", max([job.head.step if job.head else 0, *steps]), *labels)
        training = [
            n
            for n in nodes_by_job[job.id]
            if n.state is NodeState.RUNNING and n.training.first_step_at_us
        ]
        if training and keeps(job.spec.checkpoint):
            started_us = max(n.training.first_step_at_us for n in training)
            last_us = max(records.saved_at_us.get(job.id, 0), started_us)
            page.add("spotd_job_unsaved_seconds", max(0, now_us - last_us) / S, *labels)
        use = use_of(list(records.usage.get(job.id, ())))
        if use is not None:
            _add_use(page, use, training, labels)


def _add_use(
    page: ExpositionPage, use: Utilization, training: list[Node], labels: tuple[str, str]
) -> None:
    if use.gpu is not None:
        page.add("spotd_job_gpu_busy_ratio", use.gpu, *labels)
        price = sum(node.offer.price_microusd_per_h for node in training) / 1e6
        page.add("spotd_job_idle_usd_per_hour", (1 - use.gpu) * price, *labels)
    for wait, share in (("data", use.data), ("save", use.save)):
        if share is not None:
            page.add("spotd_job_wait_ratio", share, *labels, wait)
