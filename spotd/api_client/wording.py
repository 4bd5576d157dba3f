"""Text for API replies, shared by the command line and the dashboard."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from spotd.base.text import money, percent, seconds_since, span
from spotd.domain.events import with_cause
from spotd.wire import EXIT_DIVERGED, EXIT_HUNG, EXIT_UNFIT

Pairs = list[tuple[str, str]]
_EXIT_REASONS = {
    EXIT_HUNG: "which hung",
    EXIT_UNFIT: "machine is unfit",
    EXIT_DIVERGED: "which diverged",
}


def event_text(event: dict[str, Any]) -> str:
    """Return the text of an event of the API, with the cause of the failure that it is about."""
    return with_cause(event["text"], event["data"])


def outcome_text(job: dict[str, Any]) -> str:
    """Return why a job of a list ended, with the cause of its failure."""
    return with_cause(job["outcome_text"], job)


def failure_title(failure: dict[str, Any]) -> str:
    """Return the title above the last lines of what failed."""
    rank = f", rank {failure['rank']}" if failure["rank"] else ""
    code = failure["exit_code"]
    how = "" if code is None else f", {_EXIT_REASONS.get(code, f'exit {code}')}"
    return f"last output of generation {failure['generation']}{rank}{how}"


def eta_text(progress: dict[str, Any], now: datetime | None = None) -> str:
    """Return how long the rest of the steps takes at the recent rate; "-" for a job that ended."""
    if not progress["eta"]:
        return "-" if progress["unknown"] == "it has ended" else "unknown"
    return span(-(seconds_since(progress["eta"], now) or 0.0))


def progress_pairs(progress: dict[str, Any]) -> Pairs:
    """Return how far a job is, and when it ends at its recent rate, or why that is unknown."""
    total = progress["total_steps"]
    done = f"{percent(progress['share'])} of {total:,} steps" if total else ""
    if least := progress.get("at_least_steps"):
        done = f"of at least {least:,} steps"
    ends = ""
    if progress["eta"]:
        rate = f"{progress['steps_per_s']:.3g} steps/s of the last 24 h, losses included"
        ends = f"{eta_text(progress)}, at {rate}"
    elif progress["unknown"] != "it has ended":
        ends = f"unknown: {progress['unknown']}"
    differs = progress.get("total_differs") or ""
    return [("progress", done), ("", differs), ("ends in", ends), ("try", progress["try"])]


def completion_pairs(item: dict[str, Any]) -> Pairs:
    """Return the completion estimate of `spotctl cost JOB` as (label, text) pairs.

    They are the burn rate, the remaining steps, the finish and the final cost beside on demand.
    A job that has ended has only its cost of a useful hour.
    """
    estimate = item.get("outlook") or {}
    pairs = [("per useful hour", _per_useful_hour(item))]
    if not estimate or estimate["unknown"] == "it has ended":
        return pairs
    return [
        ("now", _burn_rate(estimate)),
        *pairs,
        ("steps", _steps(estimate)),
        ("finish", _finish_time(estimate)),
        ("try", estimate["try"]),
        ("at its end", _final_cost(estimate)),
        ("used up", _used_up(item, estimate)),
        ("... on top", _storage_and_egress(estimate)),
        ("... on demand", _on_demand(estimate)),
        *(("by" if not n else "", text) for n, text in enumerate(estimate["by"])),
    ]


def _per_useful_hour(item: dict[str, Any]) -> str:
    useful = item["useful_hours"]
    return f"{money(item['spend_usd'] / useful)} a machine-hour of steps" if useful else ""


def _burn_rate(estimate: dict[str, Any]) -> str:
    mean = money(estimate["mean_usd_per_hour"])
    return f"{money(estimate['usd_per_hour'])}/h; {mean}/h, 24 h mean"


def _steps(estimate: dict[str, Any]) -> str:
    if not estimate["measured_steps"]:
        return ""
    total = f" of {estimate['steps']:,}" if estimate["steps"] else ""
    remaining = f"; {estimate['steps_left']:,} left" if estimate["steps"] else ""
    pace = f"{estimate['step_s']:.3g} s each, by {estimate['measured_steps']:,} measured"
    return f"{estimate['step']:,}{total} ({estimate['saved_step']:,} saved){remaining}; {pace}"


def _finish_time(estimate: dict[str, Any]) -> str:
    if estimate["unknown"]:
        return f"not known: {estimate['unknown']}"
    hours = {name: span(value * 3600) for name, value in estimate["hours"].items()}
    when = estimate["finish"]["middle"][:16].replace("T", " ")
    share = f"{estimate['coverage'] * 100:.0f} %"
    return f"in {hours['middle']}, {when}Z; {share}: in {hours['low']} to {hours['high']}"


def _final_cost(estimate: dict[str, Any]) -> str:
    final = estimate["final_usd"]
    if final is None:
        return ""
    low, middle, high = (money(final[name]) for name in ("low", "middle", "high"))
    return f"{middle} of machines; {estimate['coverage'] * 100:.0f} %: {low} to {high}"


def _used_up(item: dict[str, Any], estimate: dict[str, Any]) -> str:
    """Return when the cost limit is used up, if the job may reach it."""
    final, cap = estimate["final_usd"], item["max_cost_usd"]
    if not (final and cap and estimate["used_up_at"]) or final["high"] <= cap:
        return ""
    when = estimate["used_up_at"][:16].replace("T", " ")
    return f"its max_cost_usd of {money(cap)} on {when}Z, at the present rate"


def _storage_and_egress(estimate: dict[str, Any]) -> str:
    extra = (estimate["storage_left_usd"] or 0) + (estimate["egress_left_usd"] or 0)
    return f"{money(extra)} of storage and egress until then" if extra else ""


def _on_demand(estimate: dict[str, Any]) -> str:
    on_demand = estimate["on_demand"]
    if on_demand is None:
        return ""
    best_usd = on_demand["best_final_usd"]
    best = f", {money(best_usd)} in the cheapest" if best_usd else ""
    saved = f"{percent(on_demand['saving'])} saved, {percent(on_demand['discount'])} off"
    return f"{money(on_demand['final_usd'])} in the same place{best}: {saved}"


def share_text(share: float) -> str:
    """Return a percentage that is never rounded up: 100 % means all."""
    return f"{math.floor(share * 10_000 + 1e-6) / 100:.2f} %"


def result_text(data: dict[str, Any]) -> str:
    """Return the measurements of an evaluation as text."""
    parts = []
    if data["cases"]:
        share = share_text(data["passed"] / data["cases"])
        parts.append(f"{data['passed']:,} of {data['cases']:,} cases passed ({share})")
    if data["tokens_per_s"]:
        parts.append(f"{data['tokens_per_s']:,.1f} tokens/s")
    if data["ttft_s"]:
        p95 = f" (p95 {data['ttft_p95_s']:.3f} s)" if data["ttft_p95_s"] else ""
        parts.append(f"first token after {data['ttft_s']:.3f} s{p95}")
    return ", ".join(parts)
