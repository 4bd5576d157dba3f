"""Read fields of journal entries: each is checked and cut to the size that is stored.

A missing field, or one of another type, raises WireError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotd.base.log import redactor
from spotd.store.columns import clean
from spotd.wire import MAX_NUMBER, WireError, shown

MAX_TEXT = 4000  # in an event or a column
MAX_LOSSES = 10_000


def read_text(data: Any, name: str, default: str | None = None) -> str:
    """A name or an id, unchanged."""
    return clean(_whole(data, name, default)[:MAX_TEXT])


def read_words(data: Any, name: str, default: str | None = None) -> str:
    """Free text without secrets.

    Secrets are hidden before the text is cut: a secret that is cut in half is not recognised.
    """
    return clean(redactor.clean(_whole(data, name, default))[:MAX_TEXT])


def _whole(data: Any, name: str, default: str | None) -> str:
    value = data.get(name, default)
    if not isinstance(value, str):
        raise WireError(f"field {name!r} is {shown(value)}")
    return value


def read_int(data: Any, name: str, default: int | None = None) -> int:
    value = data.get(name, default)
    fits = isinstance(value, int) and not isinstance(value, bool)
    if not fits or not 0 <= value <= MAX_NUMBER:
        raise WireError(f"field {name!r} is {shown(value)}")
    return int(value)


def read_float(data: Any, name: str, default: float | None = None) -> float:
    value = data.get(name, default)
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not 0 <= value <= MAX_NUMBER:  # nan compares false
        raise WireError(f"field {name!r} is {shown(value)}")
    return float(value)


def read_flag(data: Any, name: str) -> bool:
    value = data.get(name, False)
    if not isinstance(value, bool):
        raise WireError(f"field {name!r} is {shown(value)}")
    return value


def read_code(data: Any, name: str) -> int | None:
    """An exit code: negative for a signal, absent if there is none."""
    value = data.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 2**31 - 1:
        raise WireError(f"field {name!r} is {shown(value)}")
    return value


def read_rest(data: Any, name: str) -> float:
    """Remaining seconds; 0 if they have passed."""
    value = data.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        return 0.0
    return read_float(data, name)


def read_losses(data: Any) -> tuple[float, ...]:
    """Read losses. NaN and infinity are retained, because they show divergence."""
    losses = data.get("losses", [])
    fits = isinstance(losses, list) and len(losses) <= MAX_LOSSES
    if not fits or any(type(loss) not in (int, float) for loss in losses):
        raise WireError("field 'losses' is not a list of numbers")
    try:
        return tuple(float(loss) for loss in losses)
    except OverflowError as error:
        raise WireError(f"field 'losses': {error}") from None


def read_items(data: Mapping[str, Any], name: str) -> list[Any]:
    items = data.get(name, [])
    if not isinstance(items, list):
        raise WireError(f"field {name!r} is {items!r}")
    return items
