"""Words for what the API answers, shared by the command line and the dashboard."""

from __future__ import annotations

import math
from typing import Any

from spotd.base.text import money, percent, span

Pairs = list[tuple[str, str]]


def outlook_pairs(item: dict[str, Any]) -> Pairs:
    """Of `spotctl cost JOB`: the burn rate, what is left, when it is done, and what it has cost
    then, beside on demand. Nothing of a job that has ended but what a useful hour cost."""
    found = item.get("outlook") or {}
    pairs = [("per useful hour", _useful(item))]
    if not found or found["unknown"] == "it has ended":
        return pairs
    return [
        ("now", _now(found)),
        *pairs,
        ("steps", _steps(found)),
        ("finish", _finish(found)),
        ("try", found["try"]),
        ("at its end", _final(found)),
        ("used up", _used_up(item, found)),
        ("... on top", _on_top(found)),
        ("... on demand", _on_demand(found)),
        *(("by" if not n else "", text) for n, text in enumerate(found["by"])),
    ]


def _useful(item: dict[str, Any]) -> str:
    useful = item["useful_hours"]
    return f"{money(item['spend_usd'] / useful)} a machine-hour of steps" if useful else ""


def _now(found: dict[str, Any]) -> str:
    return f"{money(found['usd_per_hour'])}/h; {money(found['mean_usd_per_hour'])}/h, 24 h mean"


def _steps(found: dict[str, Any]) -> str:
    if not found["measured_steps"]:
        return ""
    whole = f" of {found['steps']:,}" if found["steps"] else ""
    left = f"; {found['steps_left']:,} left" if found["steps"] else ""
    pace = f"{found['step_s']:.3g} s each, by {found['measured_steps']:,} measured"
    return f"{found['step']:,}{whole} ({found['saved_step']:,} saved){left}; {pace}"


def _finish(found: dict[str, Any]) -> str:
    if found["unknown"]:
        return f"not known: {found['unknown']}"
    hours = {name: span(value * 3600) for name, value in found["hours"].items()}
    when = found["finish"]["middle"][:16].replace("T", " ")
    share = f"{found['coverage'] * 100:.0f} %"
    return f"in {hours['middle']}, {when} UTC; {share}: in {hours['low']} to {hours['high']}"


def _final(found: dict[str, Any]) -> str:
    ends = found["final_usd"]
    if ends is None:
        return ""
    low, middle, high = (money(ends[name]) for name in ("low", "middle", "high"))
    return f"{middle} of machines; {found['coverage'] * 100:.0f} %: {low} to {high}"


def _used_up(item: dict[str, Any], found: dict[str, Any]) -> str:
    """Of a limit that it may come to."""
    ends, cap = found["final_usd"], item["max_cost_usd"]
    if not (ends and cap and found["used_up_at"]) or ends["high"] <= cap:
        return ""
    when = found["used_up_at"][:16].replace("T", " ")
    return f"its max_cost_usd of {money(cap)} on {when} UTC, at the present rate"


def _on_top(found: dict[str, Any]) -> str:
    beside = (found["storage_left_usd"] or 0) + (found["egress_left_usd"] or 0)
    return f"{money(beside)} of storage and egress until then" if beside else ""


def _on_demand(found: dict[str, Any]) -> str:
    other = found["on_demand"]
    if other is None:
        return ""
    best = f", {money(other['best_final_usd'])} in the cheapest" if other["best_final_usd"] else ""
    saved = f"{percent(other['saving'])} saved, {percent(other['discount'])} off"
    return f"{money(other['final_usd'])} in the same place{best}: {saved}"


def share_text(share: float) -> str:
    """In percent, never rounded up: 100 % are all."""
    return f"{math.floor(share * 10_000 + 1e-6) / 100:.2f} %"


def result_text(data: dict[str, Any]) -> str:
    """What was measured, in words."""
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
