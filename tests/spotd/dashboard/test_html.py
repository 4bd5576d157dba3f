"""Markup comes from calls alone: every other text is escaped, wherever it stands."""

from __future__ import annotations

import html

from hypothesis import given, settings
from hypothesis import strategies as st

from spotd.dashboard.html import Html, el, join, lines
from tests.fixtures.examples import examples
from tests.spotd.dashboard.reading import Document


def test_texts_are_escaped_as_children_and_as_attributes() -> None:
    made = el("a", '<b> & "c"', title='"><script>', href="/x")
    assert made == (
        '<a title="&quot;&gt;&lt;script&gt;" href="/x">&lt;b&gt; &amp; &quot;c&quot;</a>'
    )


def test_markup_that_was_joined_with_text_is_text_again() -> None:
    assert el("p", f"{Html('<i>x</i>')}!") == "<p>&lt;i&gt;x&lt;/i&gt;!</p>"
    assert el("p", Html("<i>x</i>"), "!") == "<p><i>x</i>!</p>"


def test_what_is_none_or_false_is_left_out() -> None:
    made = el("td", None, [el("b", 1), [" ", "x"]], cls="number", hidden=False, data_key=None)
    assert made == '<td class="number"><b>1</b> x</td>'
    assert el("input", disabled=True) == "<input disabled>"


def test_what_steers_a_terminal_or_turns_text_around_is_shown_as_a_dot() -> None:
    assert el("p", "a\x1b[2J\u202eb") == "<p>a\u00b7[2J\u00b7b</p>"
    assert lines("a<\n\x07b") == "a&lt;\n\u00b7b"


@settings(max_examples=examples(100))
@given(st.text(), st.text())
def test_no_text_becomes_an_element_or_an_attribute(child: str, value: str) -> None:
    page = Document(str(join(el("p", child, title=value), el("pre", lines(child)))))
    assert [(tag, list(given)) for tag, given in page.tags] == [("p", ["title"]), ("pre", [])]
    assert html.escape(page.tags[0][1]["title"] or "").isprintable()
