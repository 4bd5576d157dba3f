"""The card that explains why a job is where it is, as `spotctl why` does."""

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


def card_of(context: PageContext, why: Data | None, name: str) -> Html:
    if why is None:
        return card("why", "Why", el("p", "not known: there was no answer", cls="empty"))
    reasons = [reason for reason in why["reasons"] if reason != why["reason"]]
    parts: list[Child] = [
        el("p", why["reason"], cls="reason"),
        _list("Because", reasons),
        _list("Next", why["next"]),
        el("p", "Looked at again ", context.age(why["wake_at"]), ", or when something happens.")
        if why["wake_at"]
        else None,
        el("pre", lines("\n".join(why["console"])), tabindex=0) if why["console"] else None,
        _places(context, why["placement"], name),
        [_verdict(context, verdict) for verdict in why["verdicts"]],
        _use(why["use"]),
    ]
    return card("why", "Why it is where it is", *parts)


def _list(title: str, texts: list[str]) -> Html | None:
    if not texts:
        return None
    return el("div", el("h3", title), el("ul", *(el("li", text) for text in texts)))


def _places(context: PageContext, placement: Data, name: str) -> Html | None:
    if not placement:
        return None
    if not placement["costs"]:
        text = (
            "How much work there is is not known (spotd.work, run.steps), so places are compared "
        )
        return el("p", text, "by their price: ", context.spotctl("why", name), cls="note")
    rows: list[list[Child]] = [
        [
            f"{cost['provider']}/{cost['zone']} {cost['instance_type']}",
            cost["capacity_type"],
            *(money(cost["usd"][term]) if cost["usd"][term] else "-" for term, _, _ in _TERMS),
            money(cost["usd"]["total"]),
            f"{cost['hours']:.1f} h",
        ]
        for cost in placement["costs"]
    ]
    choice = placement["choice"]
    chosen = el("p", el("strong", "Now: "), choice["why"]) if choice else None
    caption = "Expected cost until it is done, by place and term"
    if hours := placement.get("assumed_h"):
        work = f"{hours:.0f} h of work"
        caption = f"Expected cost of {work} by place and term: the amount of work is not known"
    return join(table(caption, _PLACES, rows), chosen, _deadline(context, placement["deadline"]))


def _deadline(context: PageContext, deadline: Data | None) -> Html | None:
    if not deadline:
        return None
    if deadline["earliest"] is None:
        status = "not promised: nothing on demand is permitted and sold"
    elif deadline["late_s"]:
        status = f"missed by {span(deadline['late_s'])}"
    elif deadline["guarded"]:
        status = "met by on-demand machines from now on"
    elif deadline["spare_s"] is None or deadline["spare_s"] < 0:
        status = f"cannot be promised; the earliest is {deadline['earliest'][:16]} UTC"
    else:
        status = f"on-demand is requested in {span(deadline['spare_s'])} at the latest"
    return el("p", "Deadline ", context.age(deadline["at"]), f": {status}.")


def _verdict(context: PageContext, verdict: Data) -> Html:
    rows = (("seen", verdict["seen"]), ("spotd", verdict["does"]), ("try", verdict["attempt"]))
    paragraphs = [el("p", el("strong", f"{name}: "), text) for name, text in rows]
    return el(
        "div",
        el("h3", verdict["title"], " (", context.age(verdict["at"]), ")"),
        *paragraphs,
        cls="verdict",
    )


def _use(use: Data | None) -> Html | None:
    if use is None:
        return None
    shares = (
        f"Over the last {span(use['measured_hours'] * 3600)}: GPUs busy {percent(use['gpu'])}, "
        f"waiting for data {percent(use['data'])}, for checkpoints {percent(use['save'])}."
    )
    idle = f" Idle: {money(use['idle_usd'])}; likely {use['cause']}." if use["cause"] else ""
    return el("p", shares, idle)
