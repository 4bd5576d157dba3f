"""Pages as a reader of HTML has them: elements, tables by caption, all text."""

from __future__ import annotations

import http.client
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

from spotd.dashboard.html import _VOID
from tests.fixtures.waiting import LIMIT_S

_INLINE = ("a", "b", "code", "span", "strong", "time")


@dataclass
class Document(HTMLParser):
    """`tables`: caption -> rows, each a dict by the titles of columns; a title that is empty has
    none."""

    markup: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    tables: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    sums: dict[str, dict[str, str]] = field(default_factory=dict)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self._caption = ""
        self._foot = False
        self.feed(self.markup)
        assert self._open == [], "every element is closed"
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += "" if tag in _INLINE else " "
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("th", "td"):
            self._rows[-1].append("")
        elif tag == "tfoot":
            self._foot = True

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))  # of a picture

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self.text += "" if tag in _INLINE else " "
        if tag == "table":
            head, *rows = self._rows
            named = [dict(zip(head, map(str.strip, row), strict=True)) for row in rows]
            if self._foot:
                self.sums[self._caption] = named.pop()
            self._foot = False
            self.tables[self._caption] = named

    def handle_data(self, data: str) -> None:
        self.text += data
        if "progress" in self._open or not self._open:
            return
        if "caption" in self._open:
            self._caption += data
        elif self._open[-1] in ("th", "td") or {"th", "td"} & set(self._open):
            self._rows[-1][-1] += data


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    text: str


def ask(url: str, path: str = "", verb: str = "GET", **headers: str) -> Reply:
    """One request to the pages' door; names of headers have _ for -."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=LIMIT_S)
    try:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        target = path if path.startswith("/") else parts.path + path
        connection.request(verb, target, headers=told)
        reply = connection.getresponse()
        found = {name.lower(): value for name, value in reply.getheaders()}
        return Reply(reply.status, found, reply.read().decode())
    finally:
        connection.close()


def read(url: str, path: str = "") -> Document:
    """A page that has to be there."""
    reply = ask(url, path)
    assert reply.status == 200, reply
    return Document(reply.text)


def numbers(rows: list[dict[str, str]], column: str) -> list[float]:
    """Dollars of a column."""
    return [float(row[column].strip("$/h").replace(",", "")) for row in rows]


Json = dict[str, Any]
