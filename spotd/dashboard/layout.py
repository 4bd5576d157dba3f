"""The frame around every page: head, navigation, notices and footer."""

from __future__ import annotations

from datetime import datetime

from spotd.base.text import span
from spotd.dashboard.api_cache import PageData
from spotd.dashboard.components import PageContext, command
from spotd.dashboard.html import Child, Html, el, join

REFRESH_S: float = 3
_LINKS = (("", "Overview"), ("jobs", "Jobs"), ("prices", "Prices"), ("events", "Events"))


def page(
    context: PageContext, title: str, here: str, about: str, page_data: PageData, *children: Child
) -> str:
    """Return a whole document.

    `here` is its link in `_LINKS`, and `about` names the daemon that it shows.
    """
    head = join(
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title} · spotd"),
        el("link", rel="stylesheet", href=context.url("static", "dash.css")),
        el("link", rel="icon", href=context.url("static", "icon.svg")),
        el("script", src=context.url("static", "dash.js"), defer=True),
        # Without scripts the whole page reloads, less often.
        el("noscript", el("meta", http_equiv="refresh", content="15")),
    )
    links = (
        el(
            "a", name, href=context.url(to), aria_current="page" if to == here else None
        )
        for to, name in _LINKS
    )  # fmt: skip
    top = el(
        "header",
        el("a", "Skip to the page", href="#main", cls="skip"),
        el("span", "spotd", cls="brand"),
        el("nav", *links, aria_label="Pages"),
        el("span", about, cls="about"),
        _clock(context.now),
        el("button", "Pause updates", type="button", id="pause", aria_pressed="false", hidden=True),
        _logout(context),
    )
    body = el(
        "body",
        top,
        # The script fills it when the server of these pages has ended.
        el("div", "", id="lost", role="alert", hidden=True),
        el("div", _away(page_data), id="state", role="status"),
        el("main", el("h1", title), _refused(page_data), *children, id="main", tabindex=-1),
        el(
            "footer",
            "" if context.visitor else "Nothing here changes anything: spotctl does. ",
            "Times are UTC, money is US dollars.",
        ),
        data_refresh_s=f"{REFRESH_S:g}",
        # Sent in replies only: a later owner of the port sees the address in requests, not this.
        data_start=context.start,
    )
    return f"<!doctype html>\n{el('html', el('head', head), body, lang='en')}\n"


def _logout(context: PageContext) -> Html | None:
    """Return who is logged in, with the button that logs out."""
    visitor = context.visitor
    if visitor is None:
        return None
    return el(
        "form",
        el("span", visitor.name, id="visitor"),
        el("input", type="hidden", name="csrf", value=visitor.csrf),
        el("button", "Log out", type="submit"),
        method="post",
        action=context.url("logout"),
        cls="logout",
    )


def _clock(now: datetime) -> Html:
    time = now.strftime("%H:%M:%S")
    return el("span", "as of ", el("time", f"{time} UTC", datetime=now.isoformat()), id="clock")


def _away(page_data: PageData) -> Html | None:
    """Return the notice that the daemon does not answer, with the age of the data shown."""
    if page_data.away is None:
        return None
    text, advice = page_data.away
    age_text = f"The figures are {span(page_data.old_s)} old." if page_data.old_s else ""
    return el(
        "div",
        el("strong", "✕ spotd does not answer."),
        f" {age_text} Jobs continue without it; the page retries automatically. ",
        el("span", text, cls="said"),
        el("span", "Try: ", command(advice), cls="try"),
        cls="away",
    )


def _refused(page_data: PageData) -> Html | None:
    if not page_data.refused:
        return None
    rows = dict.fromkeys(page_data.refused)
    return el(
        "ul",
        *(el("li", text, " - try: ", el("code", advice)) for text, advice in rows),
        cls="refused",
        role="alert",
    )
