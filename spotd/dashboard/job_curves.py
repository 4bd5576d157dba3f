"""The cards with a job's curves: loss and speed across its machines, cost over time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from spotd.base.text import clean, money
from spotd.dashboard.components import card
from spotd.dashboard.html import Child, Html, el
from spotd.plots import svg
from spotd.plots.curves import Line, chart

Data = dict[str, Any]
_COLOURS = (svg.BLUE, svg.ORANGE, svg.GREEN, svg.PINK, svg.SKY, svg.RED)


def card_of(curves: Data | None, name: str) -> Html:
    """Return loss and speed over steps, a colour for each machine that trained."""
    if curves is None:
        return card(
            "curves", "Loss and speed", el("p", "not known: there was no answer", cls="empty")
        )
    items, name = curves["items"], clean(name)
    losses = _lines(items, "loss")
    tokens = _lines(items, "tokens_per_s")
    speed = tokens or _lines(items, "steps_per_s")
    unit = "tokens per second" if tokens else "steps per second"
    empty: Child = el("p", "The program reports no loss.", cls="empty")
    pictures: list[Child] = [
        _picture("Loss", chart(f"Loss of {name} by step", losses, across="step"))
        if losses
        else empty
    ]
    if speed:
        title = f"Speed of {name}: {unit}"
        drawn = chart(title, speed, across="step", from_zero=True)
        pictures.append(_picture(f"Speed while it trains, {unit}", drawn))
    if not items:
        pictures = [el("p", "No steps were reported yet.", cls="empty")]
    note = "Each colour is one machine. A step that is drawn twice was trained again."
    return card("curves", "Loss and speed", el("div", *pictures, cls="side"),
                note=note if items else None)  # fmt: skip


def _lines(items: list[Data], what: str) -> list[Line]:
    lines = []
    for number, item in enumerate(items):
        points = [(float(step), value) for step, value in item[what]]
        if any(value is not None for _, value in points):
            where = item["where"]
            place = where["zone"] or where["region"] if where else ""
            label = clean(f"{item['generation']}: {place}")[:26]
            lines.append(Line(label, _COLOURS[number % len(_COLOURS)], points))
    return lines


def cost_card(curves: Data | None) -> Html | None:
    """Return the machines' cost over time beside its limit and the same work on demand."""
    cost = curves["cost"] if curves else []
    if len(cost) < 2 or curves is None:
        return None
    begin = datetime.fromisoformat(cost[0]["at"])
    hours = [(datetime.fromisoformat(p["at"]) - begin).total_seconds() / 3600 for p in cost]
    lines = [Line("paid", svg.BLUE, [(h, p["cost_usd"]) for h, p in zip(hours, cost, strict=True)])]
    demand = [(h, p["on_demand_usd"]) for h, p in zip(hours, cost, strict=True)]
    if any(value is not None for _, value in demand):
        lines.append(Line("same work on demand", svg.ORANGE, demand, dash="6 3"))
    if limit := curves["max_cost_usd"]:
        lines.append(Line("limit", svg.RED, [(hours[0], limit), (hours[-1], limit)], dash="2 3"))
    last = cost[-1]
    instead = last["on_demand_usd"]
    words = "not known" if instead is None else money(instead)
    limit_words = money(limit) if limit else "none is set"
    drawn = chart("Cost of machines over time", lines, across="hours", value=money, from_zero=True)
    note = (
        f"Machines only: {money(last['cost_usd'])} paid; "
        f"the same useful work on demand: {words}; limit: {limit_words}."
    )
    return card("cost-curve", "Cost over time", _picture("Dollars over hours", drawn), note=note)


def _picture(title: str, drawn: str) -> Html:
    # spotd.plots.svg escapes its input.
    return el("figure", el("figcaption", title), Html(drawn), cls="chart")
