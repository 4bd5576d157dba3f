"""HTML from nested calls. Whatever is no `Html` is text, and is escaped: nothing that a user, a
cloud or a machine says can become markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from spotd.base.text import clean

_VOID = frozenset({"br", "hr", "input", "link", "meta"})


class Html(str):
    """Markup that is meant as such. Joined with other texts it is a text again, and is escaped."""

    __slots__ = ()


Child = Html | str | int | None | Iterable["Child"]
Value = str | int | bool | None


def el(tag: str, *children: Child, **attributes: Value) -> Html:
    """An element. `cls` is its class, `data_x` data-x; what is None or False is left out."""
    given = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{given}>")
    return Html(f"<{tag}{given}>{join(*children)}</{tag}>")


def join(*children: Child) -> Html:
    """All of them, one after the other."""
    return Html("".join(_text(child) for child in children))


def lines(text: str) -> Html:
    """Text of several lines, for `pre`."""
    return Html("\n".join(escape(clean(line)) for line in text.splitlines()))


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return str(child)
    if isinstance(child, str | int):
        return escape(clean(child))
    return str(join(*child))


def _attribute(name: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = "class" if name == "cls" else name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(clean(value))}"'
