"""The Grafana board, as the classic JSON that Grafana 9 to 13 load.

The first row has the five figures that the guides name; each says its unit and its threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_GREEN, _ORANGE, _RED, _BLUE = "green", "orange", "red", "blue"
_PER_DAY = "3600 * 24"
DAYS = "7d"  # what rates of interruptions are of: one a day is rare

Steps = tuple[tuple[str, float | None], ...]


@dataclass(frozen=True)
class Panel:
    """One picture. `targets`: legend -> expression. `steps`: colours from which value on."""

    title: str
    text: str
    unit: str
    targets: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    steps: Steps = ((_BLUE, None),)
    width: int = 8


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]
    height: int = 7


def _quantile(share: str, name: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (increase({name}_bucket[$__range])))"


_INTERRUPTED = (
    f"100 * {_PER_DAY} * sum(increase(spotd_interruptions_total[{DAYS}])) "
    f"/ (sum(increase(spotd_node_seconds_total[{DAYS}])) > 0)"
)
_HAZARD = (
    f"3600 * sum by (provider, zone) (increase(spotd_interruptions_total[{DAYS}])) "
    f"/ sum by (provider, zone) (increase(spotd_node_seconds_total[{DAYS}]))"
)
_FAILED = (
    'sum by (provider, verb, outcome) (increase(spotd_provider_calls_total{outcome!="ok"}[10m]))'
)
FIVE = Row(
    "The five",
    (
        Panel(
            "GPU utilisation",
            "Busy share of the GPUs' time, mean of jobs, last 15 min. Aim: above 70 %.",
            "percentunit",
            (("", "avg(spotd_job_gpu_busy_ratio)"),),
            "stat",
            ((_RED, None), (_ORANGE, 0.5), (_GREEN, 0.7)),
        ),
        Panel(
            "Longest without a checkpoint",
            "Of the jobs that train, since the last one: what a loss without notice would cost. "
            "Aim: below 30 min.",
            "s",
            (("", "max(spotd_job_unsaved_seconds)"),),
            "stat",
            ((_GREEN, None), (_ORANGE, 1800), (_RED, 7200)),
        ),
        Panel(
            "Interruptions per 100 machine-days",
            f"Preempted and lost machines per 100 days that machines ran, last {DAYS}: percent of "
            "machines a day. Aim: below 5. (Guides say 5 % without a unit, a month, or a day.)",
            "none",
            (("", _INTERRUPTED),),
            "stat",
            ((_GREEN, None), (_RED, 5)),
        ),
        Panel(
            "Cost per experiment",
            "Dollars that each unfinished job has cost so far; provisional until billed. "
            "Orange from 1,000: set your own.",
            "currencyUSD",
            (("{{job_name}}", "topk(10, spotd_job_cost_usd)"),),
            "bargauge",
            ((_BLUE, None), (_ORANGE, 1000)),
        ),
        Panel(
            "Burn rate",
            "Dollars an hour of the machines that are paid for now. Red from 500: set your own.",
            "currencyUSD",
            (("", "sum(spotd_burn_usd_per_hour) or vector(0)"),),
            "stat",
            ((_BLUE, None), (_RED, 500)),
        ),
    ),
    6,
)
ROWS = (
    FIVE,
    Row(
        "Jobs and machines",
        (
            Panel(
                "Jobs",
                "Unfinished, by phase.",
                "none",
                (("{{phase}}", "sum by (phase) (spotd_jobs)"),),
            ),
            Panel(
                "Machines",
                "Not gone, by cloud and state.",
                "none",
                (("{{provider}} {{state}}", "sum by (provider, state) (spotd_nodes)"),),
            ),
            Panel(
                "GPU utilisation by job",
                "Busy share, last 15 min. Below 70 % spotd says why: spotctl why JOB.",
                "percentunit",
                (("{{job_name}}", "spotd_job_gpu_busy_ratio"),),
                steps=((_RED, None), (_GREEN, 0.7)),
            ),
            Panel(
                "Waits",
                "Share of training's time that waited for data, or for saves.",
                "percentunit",
                (("{{job_name}} {{wait}}", "spotd_job_wait_ratio"),),
            ),
            Panel(
                "Requests for machines",
                "Within an hour, by what came of them.",
                "none",
                (
                    (
                        "{{provider}} {{outcome}}",
                        "sum by (provider, outcome) (increase(spotd_launch_requests_total[1h]))",
                    ),
                ),
            ),
            Panel(
                "Time to a machine",
                "From the request to the agent's first word. Guides promise 2 to 8 min.",
                "s",
                (
                    ("median", _quantile("0.5", "spotd_provision_seconds")),
                    ("nine of ten", _quantile("0.9", "spotd_provision_seconds")),
                ),
                steps=((_GREEN, None), (_RED, 480)),
            ),
        ),
    ),
    Row(
        "Interruptions and recovery",
        (
            Panel(
                "Interruptions",
                f"Per machine-hour, by zone, last {DAYS}.",
                "none",
                (
                    (
                        "{{provider}} {{zone}}",
                        _HAZARD,
                    ),
                ),
            ),
            Panel(
                "Recovery",
                "Median by part, from the end of training to the next step.",
                "s",
                (("{{stage}}", _quantile("0.5", "spotd_recovery_seconds", "stage")),),
            ),
            Panel(
                "Margin at notices",
                "Left to the deadline when work was saved; one of ten had less. Below 0: late.",
                "s",
                (("{{provider}}", _quantile("0.1", "spotd_notice_margin_seconds", "provider")),),
                steps=((_RED, None), (_GREEN, 0)),
            ),
            Panel(
                "Steps trained again",
                "Within a day.",
                "none",
                (
                    (
                        "{{provider}}, notice: {{notice}}",
                        "sum by (provider, notice) (increase(spotd_steps_replayed_total[1d]))",
                    ),
                ),
            ),
            Panel(
                "Checkpoints",
                "Within an hour, by what asked for them.",
                "none",
                (("{{trigger}}", "sum by (trigger) (increase(spotd_checkpoints_total[1h]))"),),
            ),
            Panel(
                "Checkpoint write time",
                "Nine of ten were durable within.",
                "s",
                (("{{trigger}}", _quantile("0.9", "spotd_checkpoint_write_seconds", "trigger")),),
            ),
        ),
    ),
    Row(
        "Money",
        (
            Panel(
                "Burn rate by project",
                "Dollars an hour now.",
                "currencyUSD",
                (("{{project}}", "sum by (project) (spotd_burn_usd_per_hour)"),),
            ),
            Panel(
                "Spent",
                "All on record, by project; provisional as far as no bill was compared.",
                "currencyUSD",
                (("{{project}} {{basis}}", "sum by (project, basis) (spotd_spent_usd)"),),
            ),
            Panel(
                "Budgets",
                "The share that is spent this month.",
                "percentunit",
                (("{{budget}}", "spotd_budget_used_ratio"),),
                steps=((_GREEN, None), (_ORANGE, 0.8), (_RED, 1)),
            ),
            Panel(
                "Paid for idle GPUs",
                "Dollars an hour: (1 - busy) times the price.",
                "currencyUSD",
                (("{{job_name}}", "spotd_job_idle_usd_per_hour"),),
            ),
        ),
    ),
    Row(
        "The daemon",
        (
            Panel(
                "Decisions are late",
                "The most overdue. The loop hangs from 30 s on.",
                "s",
                (("", "max(spotd_reconcile_lag_seconds)"),),
                steps=((_GREEN, None), (_RED, 30)),
            ),
            Panel(
                "Clouds",
                "1 answers, 0 does not, or refuses our credentials.",
                "none",
                (("{{provider}}", "spotd_provider_up"),),
                steps=((_RED, None), (_GREEN, 1)),
            ),
            Panel(
                "Calls that failed",
                "Within ten minutes, by kind.",
                "none",
                (
                    (
                        "{{provider}} {{verb}} {{outcome}}",
                        _FAILED,
                    ),
                ),
            ),
            Panel(
                "Machines that no job wants",
                "With our tag, and not ended.",
                "none",
                (("{{provider}}", "spotd_orphans"),),
                steps=((_GREEN, None), (_RED, 1)),
            ),
            Panel(
                "Alerts that wait",
                "Not delivered yet.",
                "none",
                (("{{route}}", "spotd_alerts_waiting"),),
                steps=((_GREEN, None), (_RED, 20)),
            ),
        ),
    ),
)


def board() -> dict[str, Any]:
    """The board; its data source is asked for when it is imported."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": False,
             "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []}
        )  # fmt: skip
        y, x = y + 1, 0
        # The five are in one row, the last of them with what is left of its 24 columns.
        width = 24 // len(row.panels) if row is FIVE else 8
        for panel in row.panels:
            if x + width > 24:
                y, x = y + row.height, 0
            place = {"x": x, "y": y, "w": width, "h": row.height}
            panels.append(_panel(panel, len(panels) + 1, place))
            x += width
        y += row.height
    return {
        "__inputs": [
            {"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource",
             "pluginId": "prometheus", "pluginName": "Prometheus"}
        ],
        "uid": "spotd",
        "title": "spotd",
        "description": "Training jobs on spot machines",
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-24h", "to": "now"},
        "tags": ["spotd"],
        "panels": panels,
    }  # fmt: skip


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps = [{"color": color, "value": value} for color, value in panel.steps]
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.kind == "timeseries" and len(steps) > 1:
        defaults["custom"] = {"thresholdsStyle": {"mode": "line"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}}
        if panel.kind != "timeseries"
        else {},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": source,
                "expr": expr,
                "legendFormat": legend or "__auto",
                "instant": panel.kind != "timeseries",
                "range": panel.kind == "timeseries",
            }
            for at, (legend, expr) in enumerate(panel.targets)
        ],
    }
