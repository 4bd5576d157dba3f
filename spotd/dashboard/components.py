"""What pages are built of: tables, ages, phases, commands to copy."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spotd.api_client.client import Target
from spotd.base.text import percent, seconds_since, span
from spotd.dashboard.html import Child, Html, el

WIDE = 5  # columns; a table with more is not squeezed into a narrow page
# A sign before each word, so that no colour is needed to tell them apart.
_SIGNS = {
    "running": ("good", "●"),
    "passed": ("good", "✓"),
    "succeeded": ("good", "✓"),
    "draining": ("warn", "⇣"),
    "recovering": ("warn", "↻"),
    "waiting": ("warn", "…"),
    "launching": ("warn", "↑"),
    "booting": ("warn", "↑"),
    "cancelling": ("calm", "⇣"),
    "failed": ("bad", "✕"),
    "cancelled": ("calm", "-"),
    "paused": ("calm", "‖"),
    "error": ("bad", "✕"),
    "warning": ("warn", "!"),
    "info": ("calm", "·"),
    "terminating": ("calm", "⇣"),
    "gone": ("calm", "-"),
}


@dataclass(frozen=True)
class PageContext:
    """What a page needs to know of where it stands: the address that it lies under, the daemon's
    present time, which daemon `spotctl` has to be told, and which start of these pages it is of."""

    root: str
    now: datetime
    target: Target
    start: str = ""

    def url(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def age(self, iso: str | None, none: str = "-") -> Html:
        """How long ago, with the time itself for whoever rests on it."""
        if not iso:
            return el("span", none, cls="none")
        seconds = seconds_since(iso, self.now) or 0.0
        text = f"in {span(-seconds)}" if seconds < -1 else f"{span(seconds)} ago"
        told = f"{iso[:19].replace('T', ' ')} UTC"
        return el("time", text, datetime=iso, title=told)

    def spotctl(self, *arguments: str) -> Html:
        """A command to copy, for the daemon that is shown here."""
        more = ["--host", self.target.host] if self.target.host else []
        more += ["--socket", self.target.socket] if self.target.socket else []
        return command(shlex.join(["spotctl", *more, *arguments]))

    def job(self, job_id: str, name: str) -> Html:
        """A link to a job's page."""
        return el("a", name or job_id, href=self.url("job", job_id)) if job_id else Html("-")


@dataclass(frozen=True)
class Column:
    """`number`: to the right; `tip` says what it means."""

    title: str
    number: bool = False
    tip: str = ""


def command(text: str) -> Html:
    button = el("button", "Copy", type="button", cls="copy", hidden=True, aria_label=f"Copy {text}")
    return el("span", el("code", text), button, cls="command")


def sign(word: str) -> Html:
    """A phase, a state or a severity: a sign, a word, and a colour that adds nothing to them."""
    kind, mark = _SIGNS.get(word, ("calm", "·"))
    return el("span", el("span", mark, aria_hidden="true"), f" {word}", cls=f"sign {kind}")


def card(ident: str, title: str, *children: Child, note: Child = None) -> Html:
    """A section with its heading."""
    head = el("h2", title, id=f"{ident}-title")
    about = el("p", note, cls="note") if note else None
    return el("section", head, about, *children, cls="card", id=ident, data_key=ident)


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Child]],
    empty: Child = "none",
    keys: Sequence[str] = (),
    sums: Sequence[Child] = (),
) -> Html:
    """A table whose first column names its rows; `empty` is said where there are none. It scrolls
    by itself where the page is narrow. `keys` tell rows apart over time, `sums` is the last row."""
    if not rows:
        return el("p", empty, cls="empty")
    head = el("tr", (_heading(one) for one in columns))
    body = (
        el("tr", _cells(columns, row), data_key=key or None)
        for row, key in zip(rows, keys or [""] * len(rows), strict=True)
    )
    foot = el("tfoot", el("tr", _cells(columns, sums))) if sums else None
    wide = "wide" if len(columns) > WIDE else None
    inner = el(
        "table", el("caption", caption), el("thead", head), el("tbody", *body), foot, cls=wide
    )
    # A region that scrolls has to be reached by keys.
    return el("div", inner, cls="scroll", role="region", aria_label=caption, tabindex=0)


def _heading(column: Column) -> Html:
    return el(
        "th", column.title, scope="col", cls="number" if column.number else None,
        title=column.tip or None,
    )  # fmt: skip


def _cells(columns: Sequence[Column], row: Sequence[Child]) -> list[Html]:
    cells = []
    for number, (column, child) in enumerate(zip(columns, row, strict=True)):
        cls = "number" if column.number else None
        cells.append(el("td", child, cls=cls) if number else el("th", child, scope="row", cls=cls))
    return cells


def pairs(rows: Sequence[tuple[str, Child]]) -> Html:
    """Names with values; those without one are left out."""
    shown = [(name, value) for name, value in rows if value not in (None, "", "-")]
    return el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in shown))


def bar(value: float, most: float, label: str) -> Html:
    """A share as a bar; the figures stand beside it."""
    whole = max(most, 1e-9)
    share = percent(min(value / whole, 1.0))
    return el("progress", share, value=f"{value:.6g}", max=f"{whole:.6g}", aria_label=label)


def tile(name: str, value: Child, more: Child = None, kind: str = "") -> Html:
    """One figure to see at a glance."""
    inner = [el("dt", name), el("dd", value, cls="big"), el("dd", more, cls="more")]
    return el("div", *inner, cls=f"tile {kind}".strip(), data_key=name)


def count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def where(one: dict[str, Any]) -> str:
    """Provider and place of an orphan or offer, which may have no zone."""
    return f"{one['provider']}/{one['zone'] or one['region']}"
