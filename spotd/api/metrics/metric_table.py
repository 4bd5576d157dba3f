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
        "Cost of an unfinished job so far, storage and transfers included; provisional until "
        "billed.",
    ),
    Metric(
        "spotd_job_unsaved_seconds",
        GAUGE,
        _JOB,
        "For a job that trains: seconds since its last checkpoint or its start, whichever is "
        "later.",
    ),
    Metric(
        "spotd_job_gpu_busy_ratio",
        GAUGE,
        _JOB,
        "Share of time that a job's GPUs were busy in the last 15 min, as the machines report it.",
    ),
    Metric(
        "spotd_job_wait_ratio",
        GAUGE,
        (*_JOB, "wait"),
        "Share of training time that was spent waiting for data or for saves in the last 15 min.",
    ),
    Metric(
        "spotd_job_idle_usd_per_hour",
        GAUGE,
        _JOB,
        "What a job pays now for idle GPU time: (1 - busy ratio) times the hourly price.",
    ),
    # --- machines
    Metric("spotd_nodes", GAUGE, (*_POOL, "state"), "Machines that exist now."),
    Metric(
        "spotd_node_seconds_total",
        COUNTER,
        _POOL,
        "Lifetime of machines; one that still runs counts up to its last observation.",
    ),
    Metric(
        "spotd_interruptions_total",
        COUNTER,
        (*_POOL, "kind", "notice"),
        "Machines that their cloud preempted or that were lost, counted when they end; notice: "
        "whether a notice came first.",
    ),
    Metric(
        "spotd_launch_requests_total",
        COUNTER,
        (*_POOL, "outcome"),
        "Requests for machines by outcome: launched, the kind of refusal, or none.",
    ),
    Metric(
        "spotd_provision_seconds",
        HISTOGRAM,
        ("provider", "capacity_type"),
        "Time from the request for a machine to the first message of its agent; machines that "
        "never came up do not count.",
    ),
    Metric(
        "spotd_orphans",
        GAUGE,
        ("provider",),
        "Machines with spotd's tag that belong to no job and have not ended.",
    ),
    Metric(
        "spotd_leftovers",
        GAUGE,
        ("provider",),
        "Disks, addresses and other resources that ended machines left behind.",
    ),
    # --- recovery
    Metric(
        "spotd_recovery_seconds",
        HISTOGRAM,
        ("stage",),
        "Time from the last step on a machine that is taken away to the next step, by stage: "
        "detect, capacity, boot, restore; total is their sum.",
    ),
    Metric(
        "spotd_steps_replayed_total",
        COUNTER,
        ("provider", "notice"),
        "Steps that were trained a second time because an interruption came after the last "
        "checkpoint.",
    ),
    Metric(
        "spotd_notice_seconds",
        HISTOGRAM,
        ("provider",),
        "Time from a preemption notice to its deadline, for machines that were then taken away.",
    ),
    Metric(
        "spotd_notice_margin_seconds",
        HISTOGRAM,
        ("provider",),
        "Time left before the deadline of a notice when the last save was released; negative "
        "if it was late.",
    ),
    # --- checkpoints
    Metric("spotd_checkpoints_total", COUNTER, ("trigger",), "Committed checkpoints."),
    Metric(
        "spotd_checkpoint_bytes_total", COUNTER, ("trigger",), "Bytes of committed checkpoints."
    ),
    Metric(
        "spotd_checkpoint_write_seconds",
        HISTOGRAM,
        ("trigger",),
        "Time from the start of a checkpoint until it is durable, where it was measured.",
    ),
    Metric(
        "spotd_checkpoint_stall_seconds",
        HISTOGRAM,
        ("trigger",),
        "Time that training stood still for a checkpoint, where it was measured.",
    ),
    # --- money
    Metric(
        "spotd_burn_usd_per_hour",
        GAUGE,
        ("project", "provider", "capacity_type"),
        "Hourly price of all machines that are paid for now.",
    ),
    Metric(
        "spotd_spent_usd",
        GAUGE,
        ("project", "kind", "basis"),
        "Cost of all jobs on record. kind: machines, or carriage (storage and transfers); "
        "basis: provisional (price times time) or invoiced.",
    ),
    Metric(
        "spotd_budget_usd", GAUGE, ("budget",), "Amount of a budget for the current month (UTC)."
    ),
    Metric(
        "spotd_budget_used_ratio",
        GAUGE,
        ("budget",),
        "Share of a budget that is spent this month; provisional until billed.",
    ),
    Metric(
        "spotd_budget_forecast_ratio",
        GAUGE,
        ("budget",),
        "Share of a budget that will be spent at the end of the month at the present rate.",
    ),
    # --- the daemon
    Metric(
        "spotd_build_info",
        GAUGE,
        ("version",),
        "Always 1; the label is the daemon's version.",
        "process",
    ),
    Metric(
        "spotd_store_up",
        GAUGE,
        (),
        "1 if the database answers; at 0 all metrics of the record are missing.",
    ),
    Metric(
        "spotd_reconcile_lag_seconds",
        GAUGE,
        (),
        "Delay of the most overdue decision about a job.",
    ),
    _own(process_metrics.ROUND, HISTOGRAM),
    _own(process_metrics.CALLS, COUNTER, "provider", "verb", "outcome"),
    _own(process_metrics.CALL, HISTOGRAM, "provider", "verb"),
    Metric(
        "spotd_provider_up",
        GAUGE,
        ("provider",),
        "1 if a cloud answers this daemon and accepts its credentials, otherwise 0.",
    ),
    Metric(
        "spotd_safe_mode",
        GAUGE,
        (),
        "1 while this daemon is in safe mode after repeated crashes and launches nothing.",
        "process",
    ),
    Metric(
        "spotd_contested",
        GAUGE,
        (),
        "1 while this daemon makes no changes because another may own the deployment.",
        "process",
    ),
    Metric(
        "spotd_duties",
        GAUGE,
        ("holder",),
        "Periodic tasks by the holder of their lease: this daemon, another, or nobody.",
    ),
    Metric("spotd_alerts_waiting", GAUGE, ("route",), "Alerts that are not delivered yet."),
    Metric(
        "spotd_alerts_oldest_seconds",
        GAUGE,
        ("route",),
        "Age of the oldest alert that is not delivered yet.",
    ),
    Metric(
        "spotd_metrics_read_seconds",
        GAUGE,
        (),
        "Duration of the last database read for these metrics.",
        "process",
    ),
    Metric("spotd_metrics_age_seconds", GAUGE, (), "Age of these values.", "process"),
)
BY_NAME = {metric.name: metric for metric in METRICS}
