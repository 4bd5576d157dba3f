"""UTF-8 in output that is sent in parts."""

from __future__ import annotations

_LONGEST = 4  # bytes of a character


def whole_characters(data: bytes | bytearray) -> int:
    """Return the length of `data` without a character that is cut off at its end."""
    for back in range(1, min(_LONGEST, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:  # a continuation: the first byte is before it
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(data) - back if back < length and byte < 0xF8 else len(data)
    return len(data)
