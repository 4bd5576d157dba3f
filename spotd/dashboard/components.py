"""Components of the pages: tables, ages, phases, commands to copy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from spotd.api_client.client import Target
from spotd.base.text import percent, seconds_since, span
from spotd.dashboard.html import Child, Html, el


@dataclass(frozen=True)
class Visitor:
    """A logged-in person.

    `allowed` names the actions that the API permits, and `csrf` proves that a form is from a page
    of this person's session.
    """

    name: str
    csrf: str
    allowed: frozenset[str] = frozenset()


WIDE = 5  # columns; a table with more scrolls on a narrow page
# A sign before each word, so that states can be distinguished without colour.
_SIGNS = {
    "running": ("good", "●"),
    "passed": ("good", "✓"),
    "succeeded": ("good", "✓"),
    "succeeded, nothing kept": ("warn", "!"),
    "draining": ("warn", "⇣"),
    "recovering": ("warn", "↻"),
    "waiting": ("warn", "…"),
    "launching": ("warn", "↑"),
    "booting": ("warn", "↑"),
    "cancelling": ("calm", "⇣"),
    "failed": ("bad", "✕"),
    "cancelled": ("calm", "-"),
    "paused": ("calm", "‖"),
    "paused, needs approval": ("warn", "!"),
    "within": ("good", "✓"),
    "will exceed": ("warn", "!"),
    "used up": ("bad", "✕"),
    "error": ("bad", "✕"),
    "warning": ("warn", "!"),
    "info": ("calm", "·"),
    "terminating": ("calm", "⇣"),
    "gone": ("calm", "-"),
}


@dataclass(frozen=True)
class PageContext:
    """The context of a page.

    `root` is the address that all pages are under, `now` the daemon's present time, `target` the
    daemon for `spotctl` commands, and `start` identifies this start of the server. `visitor` is the
    person who is logged in, None for the user's own `spotctl dashboard`.
    """

    root: str
    now: datetime
    target: Target
    start: str = ""
    visitor: Visitor | None = None

    def url(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def age(self, iso: str | None, none: str = "-") -> Html:
        """Return how long ago it was, with the time itself as a tooltip."""
        if not iso:
            return el("span", none, cls="none")
        seconds = seconds_since(iso, self.now) or 0.0
        text = f"in {span(-seconds)}" if seconds < -1 else f"{span(seconds)} ago"
        tooltip = f"{iso[:19].replace('T', ' ')} UTC"
        return el("time", text, datetime=iso, title=tooltip)

    def spotctl(self, *arguments: str) -> Html:
        """Return a command to copy, for the daemon that is shown here."""
        options = ["--host", self.target.host] if self.target.host else []
        options += ["--socket", self.target.socket] if self.target.socket else []
        return command(shlex.join(["spotctl", *options, *arguments]))

    def job(self, job_id: str, name: str) -> Html:
        """Return a link to a job's page."""
        return el("a", name or job_id, href=self.url("job", job_id)) if job_id else Html("-")

    def machine(self, node: Mapping[str, Any]) -> Html:
        """Return a link to a machine's page, by what it is."""
        text = f"{node['instance_type']} {node['capacity_type'].replace('_', ' ')}"
        return el("a", text, href=self.url("machine", quote(node["id"], safe="")))

    def provider(self, name: str) -> Html:
        """Return a link to a provider's page."""
        return el("a", name, href=self.url("provider", quote(name, safe="")))


@dataclass(frozen=True)
class Column:
    """A column of a table. `number`: aligned right; `tip` is a tooltip that explains it.

    `more`: left out on a narrow page, where another page shows it.
    """

    title: str
    number: bool = False
    tip: str = ""
    more: bool = False


def command(text: str) -> Html:
    button = el("button", "Copy", type="button", cls="copy", hidden=True, aria_label=f"Copy {text}")
    return el("span", el("code", text), button, cls="command")


def phase_sign(job: Mapping[str, Any]) -> Html:
    """Return a job's phase with its sign; a success that kept nothing has a warning's."""
    if job.get("approval"):
        return sign(f"{job['phase']}, needs approval")
    return sign(f"{job['phase']}, nothing kept" if job.get("kept_nothing") else job["phase"])


def sign(word: str) -> Html:
    """Return a phase, a state or a severity as a sign and a word.

    Its colour adds nothing to them.
    """
    kind, mark = _SIGNS.get(word, ("calm", "·"))
    return el("span", el("span", mark, aria_hidden="true"), f" {word}", cls=f"sign {kind}")


def card(ident: str, title: str, *children: Child, note: Child = None) -> Html:
    """Return a section with its heading."""
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
    """Return a table whose first column names its rows; `empty` is shown where there are none.

    It scrolls by itself where the page is narrow. `keys` identify rows over time, and `sums` is the
    last row.
    """
    if not rows:
        return el("p", empty, cls="empty")
    head = el("tr", (_heading(column) for column in columns))
    body = (
        el("tr", _cells(columns, row), data_key=key or None)
        for row, key in zip(rows, keys or [""] * len(rows), strict=True)
    )
    foot = el("tfoot", el("tr", _cells(columns, sums))) if sums else None
    wide = "wide" if len(columns) > WIDE else None
    inner = el(
        "table", el("caption", caption), el("thead", head), el("tbody", *body), foot, cls=wide
    )
    find = el(
        "input", type="search", cls="find", hidden=True, placeholder="Filter",
        aria_label=f"Filter: {caption}",
    )  # fmt: skip
    # A region that scrolls has to be reachable with the keyboard.
    # One element, which side by side with another is one column.
    return el(
        "div",
        find if len(rows) > 1 else None,
        el("div", inner, cls="scroll", role="region", aria_label=caption, tabindex=0),
        cls="table",
    )


def _heading(column: Column) -> Html:
    title = el("button", column.title, type="button", cls="sort") if column.title else None
    return el("th", title, scope="col", cls=_cell_class(column), title=column.tip or None)


def _cell_class(column: Column) -> str | None:
    names = ["number"] if column.number else []
    return " ".join([*names, "more"] if column.more else names) or None


def _cells(columns: Sequence[Column], row: Sequence[Child]) -> list[Html]:
    cells = []
    for number, (column, child) in enumerate(zip(columns, row, strict=True)):
        cls = _cell_class(column)
        cells.append(el("td", child, cls=cls) if number else el("th", child, scope="row", cls=cls))
    return cells


def pairs(rows: Sequence[tuple[str, Child]]) -> Html:
    """Return names with values; pairs without a value are left out."""
    shown = [(name, value) for name, value in rows if value not in (None, "", "-")]
    return el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in shown))


def bar(value: float, most: float, label: str) -> Html:
    """Return a share as a bar; the numbers are shown next to it."""
    whole = max(most, 1e-9)
    share = percent(min(value / whole, 1.0))
    return el("progress", share, value=f"{value:.6g}", max=f"{whole:.6g}", aria_label=label)


def tile(name: str, value: Child, details: Child = None, kind: str = "") -> Html:
    """Return one figure to see at a glance."""
    inner = [el("dt", name), el("dd", value, cls="big"), el("dd", details, cls="more")]
    return el("div", *inner, cls=f"tile {kind}".strip(), data_key=name)


def count(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def where(item: dict[str, Any]) -> str:
    """Return provider and place of an orphan or offer, which may have no zone."""
    return f"{item['provider']}/{item['zone'] or item['region']}"
