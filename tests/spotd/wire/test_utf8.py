"""Characters of UTF-8 in parts of any length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotd.wire import whole_characters


@given(st.text(min_size=1), st.integers(0, 40))
def test_a_part_of_a_text_ends_with_a_whole_character(text: str, length: int) -> None:
    part = text.encode()[:length]
    whole = whole_characters(part)
    part[:whole].decode()
    assert len(part) - whole <= 3
    assert whole_characters(text.encode()) == len(text.encode())


@given(st.binary())
def test_at_most_three_bytes_of_anything_are_left_out(data: bytes) -> None:
    assert len(data) - 3 <= whole_characters(data) <= len(data)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x80\x80\x80\x80\x80", b"a\xf8\x80"])
def test_what_begins_no_character_is_not_waited_for(data: bytes) -> None:
    assert whole_characters(data) == len(data)
