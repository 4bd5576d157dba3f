"""HTML from nested calls, with escaping.

Everything that is not `Html` is text and is escaped, so that no text of a user, a cloud or a
machine can become markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from spotd.base.text import clean

_VOID = frozenset({"br", "hr", "input", "link", "meta"})


class Html(str):
    """Trusted markup. Joined with other strings it becomes a plain string, and is escaped again."""

    __slots__ = ()


Child = Html | str | int | None | Iterable["Child"]
Value = str | int | bool | None


def el(tag: str, *children: Child, **attributes: Value) -> Html:
    """Return an element.

    `cls` is its class, and `data_x` becomes data-x. Attributes that are None or False are left out.
    """
    attribute_text = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{attribute_text}>")
    return Html(f"<{tag}{attribute_text}>{join(*children)}</{tag}>")


def join(*children: Child) -> Html:
    """Return all children, one after the other."""
    return Html("".join(_text(child) for child in children))


def lines(text: str) -> Html:
    """Return text of several lines, for `pre`."""
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
