"""Every metric: its name, kind, labels and help text.

`docs/metrics.md` has the same table. Names and units follow Prometheus' conventions: base units,
and `_total` for values that only rise. `since` says how far a metric goes back: "record" is the
database's record, which survives restarts; "process" starts again with each process.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotd.base import process_metrics

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
_POOL = ("provider", "region", "zone", "capacity_type")
_JOB = ("job_name", "project")  # Prometheus uses the label `job` for the scrape target


@dataclass(frozen=True)
class Metric:
    """One metric of the table."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    since: str = "record"


def _own(name: str, kind: str, *labels: str) -> Metric:
    return Metric(name, kind, labels, process_metrics.HELP[name], "process")


METRICS = (
    # --- jobs
    Metric("spotd_jobs", GAUGE, ("phase", "project"), "Unfinished jobs."),
    Metric("spotd_jobs_finished_total", COUNTER, ("outcome",), "Jobs that have ended."),
    Metric("spotd_job_step", GAUGE, _JOB, "The last step that an unfinished job reported."),
    Metric(
        "spotd_job_cost_usd",
        GAUGE,
        _JOB,
        "What an unfinished job has cost, machines and carriage; provisional until billed.",
    ),
    Metric(
        "spotd_job_unsaved_seconds",
        GAUGE,
        _JOB,
        "Of a job that trains: since its last checkpoint, or since it began where that is later.",
    ),
    Metric(
        "spotd_job_gpu_busy_ratio",
        GAUGE,
        _JOB,
        "The share of their time that a job's GPUs were busy, over the last 15 min, as reported.",
    ),
    Metric(
        "spotd_job_wait_ratio",
        GAUGE,
        (*_JOB, "wait"),
        "The share of training's time that waited for data, or for saves, over the last 15 min.",
    ),
    Metric(
        "spotd_job_idle_usd_per_hour",
        GAUGE,
        _JOB,
        "What a job pays now for GPUs while they do nothing: (1 - busy) times the price.",
    ),
    # --- machines
    Metric("spotd_nodes", GAUGE, (*_POOL, "state"), "Machines that are not gone."),
    Metric(
        "spotd_node_seconds_total",
        COUNTER,
        _POOL,
        "Time that machines have lived, up to when they were last seen.",
    ),
    Metric(
        "spotd_interruptions_total",
        COUNTER,
        (*_POOL, "kind", "notice"),
        "Machines taken by their cloud (preempted) or lost, once they end; notice: told before.",
    ),
    Metric(
        "spotd_launch_requests_total",
        COUNTER,
        (*_POOL, "outcome"),
        "Requests for machines: launched, the kind of refusal, or none where nothing came of it.",
    ),
    Metric(
        "spotd_provision_seconds",
        HISTOGRAM,
        ("provider", "capacity_type"),
        "From the request for a machine to the first word of its agent; those that came up alone.",
    ),
    Metric(
        "spotd_orphans", GAUGE, ("provider",), "Machines with our tag that no job wants, not ended."
    ),
    Metric(
        "spotd_leftovers",
        GAUGE,
        ("provider",),
        "Disks and the like that machines left behind, not discarded.",
    ),
    # --- recovery
    Metric(
        "spotd_recovery_seconds",
        HISTOGRAM,
        ("stage",),
        "From the end of training on a machine taken away to the next step: detect, capacity, "
        "boot, restore, and total, their sum.",
    ),
    Metric(
        "spotd_steps_replayed_total",
        COUNTER,
        ("provider", "notice"),
        "Steps trained again after interruptions: after the checkpoint that was resumed from.",
    ),
    Metric(
        "spotd_notice_seconds",
        HISTOGRAM,
        ("provider",),
        "From a notice to its deadline, of machines that were taken away then.",
    ),
    Metric(
        "spotd_notice_margin_seconds",
        HISTOGRAM,
        ("provider",),
        "What was left to the deadline when work was saved and given back, of machines that came "
        "to that; below 0 it was late.",
    ),
    # --- checkpoints
    Metric("spotd_checkpoints_total", COUNTER, ("trigger",), "Checkpoints committed."),
    Metric("spotd_checkpoint_bytes_total", COUNTER, ("trigger",), "Bytes of those."),
    Metric(
        "spotd_checkpoint_write_seconds",
        HISTOGRAM,
        ("trigger",),
        "How long a checkpoint took to be durable, where it was measured.",
    ),
    Metric(
        "spotd_checkpoint_stall_seconds",
        HISTOGRAM,
        ("trigger",),
        "How long training stood still for a checkpoint, where it was measured.",
    ),
    # --- money
    Metric(
        "spotd_burn_usd_per_hour",
        GAUGE,
        ("project", "provider", "capacity_type"),
        "What the machines that are paid for now cost an hour, by their price.",
    ),
    Metric(
        "spotd_spent_usd",
        GAUGE,
        ("project", "kind", "basis"),
        "Spent by all jobs on record; kind carriage: checkpoints and data, beside machines; "
        "basis provisional: by price and time, invoiced: as billed.",
    ),
    Metric("spotd_budget_usd", GAUGE, ("budget",), "What may be spent in this month (UTC)."),
    Metric(
        "spotd_budget_used_ratio",
        GAUGE,
        ("budget",),
        "The share of a budget that is spent this month; provisional until billed.",
    ),
    Metric(
        "spotd_budget_forecast_ratio",
        GAUGE,
        ("budget",),
        "The share of a budget that will be spent by the month's end at the present rate.",
    ),
    # --- the daemon
    Metric("spotd_build_info", GAUGE, ("version",), "1, of the daemon that answers.", "process"),
    Metric("spotd_store_up", GAUGE, (), "Whether the database answered; 0: the rest is missing."),
    Metric(
        "spotd_reconcile_lag_seconds",
        GAUGE,
        (),
        "How late the most overdue decision about a job is.",
    ),
    _own(process_metrics.ROUND, HISTOGRAM),
    _own(process_metrics.CALLS, COUNTER, "provider", "verb", "outcome"),
    _own(process_metrics.CALL, HISTOGRAM, "provider", "verb"),
    Metric(
        "spotd_provider_up",
        GAUGE,
        ("provider",),
        "0 where a cloud does not answer this daemon, or refuses its credentials.",
    ),
    Metric(
        "spotd_safe_mode",
        GAUGE,
        (),
        "1 while this daemon only observes and ends machines, after crashes.",
        "process",
    ),
    Metric(
        "spotd_contested",
        GAUGE,
        (),
        "1 while this daemon stands still because another may own the deployment.",
        "process",
    ),
    Metric(
        "spotd_duties",
        GAUGE,
        ("holder",),
        "Shared duties by who has the lease: this daemon, another, or nobody.",
    ),
    Metric("spotd_alerts_waiting", GAUGE, ("route",), "Alerts that are not delivered yet."),
    Metric("spotd_alerts_oldest_seconds", GAUGE, ("route",), "How long the oldest of those waits."),
    Metric(
        "spotd_metrics_read_seconds",
        GAUGE,
        (),
        "How long the last look into the database for these metrics took.",
        "process",
    ),
    Metric("spotd_metrics_age_seconds", GAUGE, (), "How old these figures are.", "process"),
)
BY_NAME = {metric.name: metric for metric in METRICS}
