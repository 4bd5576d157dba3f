"""The card about a job's machines over time: the timeline, and the parts of each hand-over."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from spotd.base.text import clean, money, span
from spotd.base.text import place as place_words
from spotd.dashboard.components import Column, PageContext, bar, card, sign, table
from spotd.dashboard.html import Child, Html, el, join
from spotd.plots.attempt_timeline import Span, ribbon

Data = dict[str, Any]
MOST_SPANS = 24
_MACHINES = (
    Column("Generation", number=True),
    Column("Where"),
    Column("Machine"),
    Column("State"),
    Column("Last step", number=True, more=True),
    Column("$/h", number=True),
    Column("Requested", more=True),
    Column("Time left", number=True, tip="Of a notice, when its work was saved", more=True),
    Column("Left because", more=True),
)
_PARTS = {
    "detect_s": ("Notice", "From the notice, or the last sign of life, until spotd knew"),
    "request_s": ("Decide", "Until the next machine was requested"),
    "instance_s": ("Grant", "Until its cloud granted it"),
    "agent_s": ("Boot", "Until its agent spoke"),
    "ready_s": ("Prepare", "Until code and setup were ready"),
    "claim_s": ("Claim", "Until the job was handed over by the old machine, which saves before"),
    "first_step_s": ("Load", "Until the first step"),
}
_HAND_OVERS = (
    Column("Generations"),
    Column("Old one"),
    *(Column(name, number=True, tip=tip) for name, tip in _PARTS.values()),
    Column("Restore", number=True, tip="Of Load: until the checkpoint was read"),
    Column("In all", number=True),
    Column(""),
    Column("Steps lost", number=True),
)


def card_of(context: PageContext, job: Data) -> Html:
    nodes = job["nodes"]
    if not nodes:
        empty = el("p", "No machine was requested yet: see the reason below.", cls="empty")
        return card("timeline", "Machines", empty)
    rows = [_node_row(context, node) for node in reversed(nodes)]
    keys = [node["id"] for node in reversed(nodes)]
    return card(
        "timeline",
        "Machines",
        _picture(context, job),
        table("Machines of all generations, the newest first", _MACHINES, rows, "", keys),
        _hand_overs(job),
    )


def _picture(context: PageContext, job: Data) -> Html:
    drawn = spans(job, context.now)
    older = len(job["nodes"]) - len(drawn)
    title = f"{job['name']}: its machines over time"
    if older > 0:
        title += f" (the newest {len(drawn)})"
    # spotd.plots.svg escapes its input.
    picture = Html(ribbon(clean(title), drawn))
    return el("div", picture, cls="scroll ribbon", role="region", aria_label=title, tabindex=0)


def spans(job: Data, now: datetime) -> list[Span]:
    """Return the rows of the timeline, for the newest machines."""
    nodes = sorted(job["nodes"], key=lambda node: str(node["requested_at"]))[-MOST_SPANS:]
    begin = datetime.fromisoformat(nodes[0]["requested_at"])
    lost_steps = {row["from_generation"]: row["steps_lost"] or 0 for row in job["hand_overs"]}

    def at(iso: str | None) -> float | None:
        when = datetime.fromisoformat(iso) if iso else None
        return max(0.0, (when - begin).total_seconds()) if when else None

    saved_s: dict[int, list[float]] = {}
    for save in job["saves"]:
        saved_s.setdefault(save["generation"], []).append(at(save["at"]) or 0.0)
    return [
        _span(node, at, at(now.isoformat()) or 0.0, lost_steps, saved_s.get(node["generation"], []))
        for node in nodes
    ]


def _span(
    node: Data, at: Any, now_s: float, lost_steps: dict[int, int], saved_s: list[float]
) -> Span:
    first_s = at(node["first_step_at"])
    ended_s = at(node["gone_at"]) or now_s
    last_s = at(node["released_at"]) or at(node["exited_at"])
    if last_s is None:
        last_s = now_s if node["state"] == "running" else at(node["heard_at"])
    notices_s = [at(notice["heard_at"]) for notice in node["notices"] if not notice["withdrawn"]]
    rank = f".{node['rank']}" if node["rank"] else ""
    local, price = " (local)" if node["local"] else "", money(node["price_usd_per_h"])
    return Span(
        label=clean(f"g{node['generation']}{rank} {node['zone'] or node['region']}")[:24],
        cloud=node["provider"].removeprefix("local-"),
        asked_s=at(node["requested_at"]) or 0.0,
        first_s=first_s,
        last_s=None if first_s is None else min(max(first_s, last_s or 0.0), ended_s),
        ended_s=ended_s,
        notice_s=notices_s[0] if notices_s else None,
        died=node["leave_reason"] == "lost" and not notices_s,
        lost_steps=lost_steps.get(node["generation"], 0) if not node["rank"] else 0,
        checkpoints_s=tuple(saved_s) if not node["rank"] and first_s is not None else (),
        note=clean(f"{node['provider']}{local}, {price}/h {node['capacity_type']}"),
    )


def _node_row(context: PageContext, node: Data) -> list[Child]:
    reason = (
        node["leave_text"] or node["leave_reason"] or node["launch_error"] or node["effect_error"]
    )
    return [
        f"{node['generation']}" + (f".{node['rank']}" if node["rank"] else ""),
        place_words(node),
        context.machine(node),
        sign(node["state"]),
        f"{node['step']:,}",
        f"{money(node['price_usd_per_h'])}/h",
        context.age(node["requested_at"]),
        "-" if node["margin_s"] is None else seconds(node["margin_s"]),
        reason or "-",
    ]


def _hand_overs(job: Data) -> Html:
    hand_overs = job["hand_overs"]
    longest = max((hand_over["total_s"] for hand_over in hand_overs), default=0.0)
    rows: list[list[Child]] = [
        [
            f"{hand_over['from_generation']} → {hand_over['to_generation']}",
            (hand_over["reason"] or "-") + (" with a notice" if hand_over["noticed"] else ""),
            *(seconds(hand_over["parts"][name]) for name in _PARTS),
            "?" if hand_over["restore_s"] is None else seconds(hand_over["restore_s"]),
            seconds(hand_over["total_s"]),
            bar(
                hand_over["total_s"],
                longest,
                f"Hand-over to generation {hand_over['to_generation']}",
            ),
            "?" if hand_over["steps_lost"] is None else f"{hand_over['steps_lost']:,}",
        ]
        for hand_over in reversed(hand_overs)
    ]
    empty = "It has not gone on with another machine yet."
    hand_over_table = table("Duration of each hand-over, part by part", _HAND_OVERS, rows, empty)
    if not any(hand_over["overlap"] for hand_over in hand_overs):
        return hand_over_table
    note = "After a notice the old machine keeps training, until the new one takes over."
    return join(hand_over_table, el("p", note, cls="note"))


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else span(value)  # negative: it was too late
