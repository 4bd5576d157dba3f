"""Parse the local cloud's responses into the port's types; UnknownOutcome if they are malformed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_type_hints

from providers.base import Instance, Leftover, Notice, NoticeKind, Offer, UnknownOutcome

T = TypeVar("T")
MAX_NUMBER = 1 << 53


def parse_rows(response: Mapping[str, Any], name: str, parse_row: Callable[[Any], T]) -> list[T]:
    """Parse each row of the list `name` in a response. Raises UnknownOutcome."""
    rows = response.get(name)
    if not isinstance(rows, list):
        raise _malformed(f"no list of {name}")
    return [parse_row(row) for row in rows]


def parse_offer(row: Any, provider: str) -> Offer:
    """Raises UnknownOutcome."""
    return _parse_record(Offer, {**_check_mapping(row), "provider": provider})


def parse_instance(row: Any) -> Instance:
    """Raises UnknownOutcome."""
    return _parse_record(Instance, _check_mapping(row))


def parse_leftover(row: Any) -> Leftover:
    """Raises UnknownOutcome."""
    return _parse_record(Leftover, _check_mapping(row))


def parse_notice(row: Any) -> tuple[int, Notice]:
    """The notice and its sequence number in the queue. Raises UnknownOutcome."""
    row = _check_mapping(row)
    kind = _check_type(row.get("kind"), NoticeKind)
    deadline_us = _check_type(row.get("deadline_us"), int) if kind.takes_machine else None
    notice = Notice(
        notice_id=_check_type(row.get("notice_id"), str),
        kind=kind,
        deadline_us=deadline_us,
        source="local cloud queue",
        instance_id=_check_type(row.get("instance_id"), str),
        text=f"local cloud: {kind.value}",
    )
    return _check_type(row.get("seq"), int), notice


def parse_text(response: Mapping[str, Any], name: str) -> str:
    """Raises UnknownOutcome."""
    text: str = _check_type(response.get(name), str)
    return text


def parse_seconds(value: Any, default: float) -> float:
    """A duration of at most a day; `default` if the value is not one."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return seconds if 0 <= seconds <= 86_400 else default


def _parse_record(kind: Callable[..., T], row: Mapping[str, Any]) -> T:
    """Build a dataclass of the port from a row; keys that are not fields are ignored."""
    hints = _hints(kind)
    values = {name: _check_type(row[name], hint) for name, hint in hints.items() if name in row}
    try:
        return kind(**values)
    except TypeError as error:
        raise _malformed(str(error)) from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def _check_mapping(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise _malformed(f"{str(row)[:60]!r} is not a row")
    return row


def _check_type(value: Any, kind: Any) -> Any:
    """Return `value` if it has the type `kind`. Numbers must be finite and below 2**53."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError as error:
            raise _malformed(str(error)) from None
    expected = (int, float) if kind is float else dict if not isinstance(kind, type) else kind
    valid = isinstance(value, expected) and (kind is bool or not isinstance(value, bool))
    if valid and isinstance(value, (int, float)):
        valid = abs(value) <= MAX_NUMBER  # nan compares false
    if not valid:
        raise _malformed(f"{str(value)[:60]!r} is no {getattr(kind, '__name__', kind)}")
    return value


def _malformed(text: str) -> UnknownOutcome:
    return UnknownOutcome(f"the local cloud sent an answer that cannot be read: {text}")
