"""How a job goes on, in the lines of its cost."""

from __future__ import annotations

from typing import Any

from spotd.cli.text import money, percent, span

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
        ("at its end", _final(item, found)),
        ("... on demand", _on_demand(found)),
        ("by", "; ".join(found["by"])),
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
        advice = f"; try: {found['try']}" if found["try"] else ""
        return f"not known: {found['unknown']}{advice}"
    hours = {name: span(value * 3600) for name, value in found["hours"].items()}
    when = found["finish"]["middle"][:16].replace("T", " ")
    share = f"{found['coverage'] * 100:.0f} %"
    return f"in {hours['middle']}, {when} UTC; {share}: in {hours['low']} to {hours['high']}"


def _final(item: dict[str, Any], found: dict[str, Any]) -> str:
    ends = found["final_usd"]
    if ends is None:
        return ""
    share = f"{found['coverage'] * 100:.0f} %"
    low, middle, high = (money(ends[name]) for name in ("low", "middle", "high"))
    text = f"{middle} of machines ({share}: {low} to {high})"
    beside = (found["storage_left_usd"] or 0) + (found["egress_left_usd"] or 0)
    if beside:
        text += f", and {money(beside)} of storage and egress until then"
    cap = item["max_cost_usd"]
    if cap and ends["high"] > cap and found["used_up_at"]:
        when = found["used_up_at"][:16].replace("T", " ")
        text += f"; its max_cost_usd of {money(cap)} is used up on {when} UTC"
    return text


def _on_demand(found: dict[str, Any]) -> str:
    other = found["on_demand"]
    if other is None:
        return ""
    best = f", {money(other['best_final_usd'])} in the cheapest" if other["best_final_usd"] else ""
    saved = f"{percent(other['saving'])} saved ({percent(other['discount'])} off the price)"
    return f"{money(other['final_usd'])} in the same place{best}: {saved}"
