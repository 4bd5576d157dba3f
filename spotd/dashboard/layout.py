"""The frame around every page."""

from __future__ import annotations

from datetime import datetime

from spotd.base.text import span
from spotd.dashboard.api_cache import PageData
from spotd.dashboard.components import PageContext, command
from spotd.dashboard.html import Child, Html, el, join

REFRESH_S: float = 3
_LINKS = (("", "Overview"), ("prices", "Prices"), ("events", "Events"))


def page(
    place: PageContext, title: str, here: str, about: str, reading: PageData, *children: Child
) -> str:
    """A whole document. `here` is its link of `_LINKS`, `about` which daemon it shows."""
    head = join(
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title} · spotd"),
        el("link", rel="stylesheet", href=place.url("static", "dash.css")),
        el("link", rel="icon", href=place.url("static", "icon.svg")),
        el("script", src=place.url("static", "dash.js"), defer=True),
        # Without scripts the whole page comes anew, more seldom.
        el("noscript", el("meta", http_equiv="refresh", content="15")),
    )
    links = (
        el(
            "a", name, href=place.url(to), aria_current="page" if to == here else None
        )
        for to, name in _LINKS
    )  # fmt: skip
    top = el(
        "header",
        el("a", "Skip to the page", href="#main", cls="skip"),
        el("span", "spotd", cls="brand"),
        el("nav", *links, aria_label="Pages"),
        el("span", about, cls="about"),
        _clock(place.now),
        el("button", "Pause updates", type="button", id="pause", aria_pressed="false", hidden=True),
    )
    body = el(
        "body",
        top,
        # The script fills it when what serves these pages has ended.
        el("div", "", id="lost", role="alert", hidden=True),
        el("div", _away(reading), id="state", role="status"),
        el("main", el("h1", title), _refused(reading), *children, id="main", tabindex=-1),
        el(
            "footer",
            "Nothing here changes anything: spotctl does. Times are UTC, money is US dollars.",
        ),
        data_refresh_s=f"{REFRESH_S:g}",
        # In replies alone: whoever has the port after us knows the address, which he is asked for.
        data_start=place.start,
    )
    return f"<!doctype html>\n{el('html', el('head', head), body, lang='en')}\n"


def _clock(now: datetime) -> Html:
    told = now.strftime("%H:%M:%S")
    return el("span", "as of ", el("time", f"{told} UTC", datetime=now.isoformat()), id="clock")


def _away(reading: PageData) -> Html | None:
    """The daemon's silence, with how old what is shown is."""
    if reading.away is None:
        return None
    text, advice = reading.away
    old = f"The figures are {span(reading.old_s)} old." if reading.old_s else ""
    return el(
        "div",
        el("strong", "✕ spotd does not answer."),
        f" {old} Jobs go on without it; it is asked again by itself. ",
        el("span", text, cls="said"),
        el("span", "Try: ", command(advice), cls="try"),
        cls="away",
    )


def _refused(reading: PageData) -> Html | None:
    if not reading.refused:
        return None
    rows = dict.fromkeys(reading.refused)
    return el(
        "ul",
        *(el("li", text, " - try: ", el("code", advice)) for text, advice in rows),
        cls="refused",
        role="alert",
    )
