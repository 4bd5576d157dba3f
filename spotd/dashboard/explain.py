"""Why a job is where it is, as `spotctl why` has it."""

from __future__ import annotations

from typing import Any

from spotd.base.text import money, percent, span
from spotd.dashboard.components import Column, PageContext, card, table
from spotd.dashboard.html import Child, Html, el, join, lines

Data = dict[str, Any]
_TERMS = (
    ("train", "Training", "What the rest of the work costs there"),
    ("start", "Starts", "Boots and preparations until it is done"),
    ("lost", "Lost work", "What interruptions are expected to cost"),
    ("egress", "Egress", "Bytes that leave a cloud"),
)
_PLACES = (
    Column("Place", tip="The best first"),
    Column("As"),
    *(Column(f"{title} $", number=True, tip=tip) for _, title, tip in _TERMS),
    Column("In all $", number=True),
    Column("Hours", number=True),
)


def card_of(place: PageContext, why: Data | None, name: str) -> Html:
    if why is None:
        return card("why", "Why", el("p", "not known: there was no answer", cls="empty"))
    because = [one for one in why["reasons"] if one != why["reason"]]
    parts: list[Child] = [
        el("p", why["reason"], cls="reason"),
        _list("Because", because),
        _list("Next", why["next"]),
        el("p", "Looked at again ", place.age(why["wake_at"]), ", or when something happens.")
        if why["wake_at"]
        else None,
        el("pre", lines("\n".join(why["console"])), tabindex=0) if why["console"] else None,
        _places(place, why["placement"], name),
        [_verdict(place, one) for one in why["verdicts"]],
        _use(why["use"]),
    ]
    return card("why", "Why it is where it is", *parts)


def _list(title: str, texts: list[str]) -> Html | None:
    if not texts:
        return None
    return el("div", el("h3", title), el("ul", *(el("li", text) for text in texts)))


def _places(place: PageContext, found: Data, name: str) -> Html | None:
    if not found:
        return None
    if not found["costs"]:
        text = "Its file does not say how much there is to do (spotd.work), so places are compared "
        return el("p", text, "by their price: ", place.spotctl("why", name), cls="note")
    rows: list[list[Child]] = [
        [
            f"{one['provider']}/{one['zone']} {one['instance_type']}",
            one["capacity_type"],
            *(money(one["usd"][term]) if one["usd"][term] else "-" for term, _, _ in _TERMS),
            money(one["usd"]["total"]),
            f"{one['hours']:.1f} h",
        ]
        for one in found["costs"]
    ]
    choice = found["choice"]
    chosen = el("p", el("strong", "Now: "), choice["why"]) if choice else None
    caption = "Expected cost until it is done, by place and term"
    if hours := found.get("assumed_h"):
        work = f"{hours:.0f} h of work"
        caption = f"Expected cost of {work} by place and term: how much there is to do is not known"
    return join(table(caption, _PLACES, rows), chosen, _deadline(place, found["deadline"]))


def _deadline(place: PageContext, told: Data | None) -> Html | None:
    if not told:
        return None
    if told["earliest"] is None:
        rest = "not promised: nothing on demand is permitted and sold"
    elif told["late_s"]:
        rest = f"missed by {span(told['late_s'])}"
    elif told["guarded"]:
        rest = "kept by machines on demand from now on"
    elif told["spare_s"] is None or told["spare_s"] < 0:
        rest = f"cannot be promised; the earliest is {told['earliest'][:16]} UTC"
    else:
        rest = f"on-demand is asked for in {span(told['spare_s'])} at the latest"
    return el("p", "Deadline ", place.age(told["at"]), f": {rest}.")


def _verdict(place: PageContext, one: Data) -> Html:
    rows = (("seen", one["seen"]), ("spotd", one["does"]), ("try", one["attempt"]))
    told = [el("p", el("strong", f"{name}: "), text) for name, text in rows]
    return el("div", el("h3", one["title"], " (", place.age(one["at"]), ")"), *told, cls="verdict")


def _use(use: Data | None) -> Html | None:
    if use is None:
        return None
    shares = (
        f"Over the last {span(use['measured_hours'] * 3600)}: GPUs busy {percent(use['gpu'])}, "
        f"waiting for data {percent(use['data'])}, for checkpoints {percent(use['save'])}."
    )
    idle = f" Idle: {money(use['idle_usd'])}; likely {use['cause']}." if use["cause"] else ""
    return el("p", shares, idle)
