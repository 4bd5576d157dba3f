"""What the local cloud's answers mean: rows become the port's values, or an UnknownOutcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_type_hints

from providers.base import Instance, Leftover, Notice, NoticeKind, Offer, UnknownOutcome

T = TypeVar("T")
MAX_NUMBER = 1 << 53


def rows_of(answer: Mapping[str, Any], name: str, read: Callable[[Any], T]) -> list[T]:
    """The list `name` of an answer, each row understood. Raises UnknownOutcome."""
    rows = answer.get(name)
    if not isinstance(rows, list):
        raise _unreadable(f"no list of {name}")
    return [read(row) for row in rows]


def read_offer(row: Any, provider: str) -> Offer:
    """Raises UnknownOutcome."""
    return _record(Offer, {**_mapping(row), "provider": provider})


def read_instance(row: Any) -> Instance:
    """Raises UnknownOutcome."""
    return _record(Instance, _mapping(row))


def read_leftover(row: Any) -> Leftover:
    """Raises UnknownOutcome."""
    return _record(Leftover, _mapping(row))


def read_notice(row: Any) -> tuple[int, Notice]:
    """The notice and its number in the queue. Raises UnknownOutcome."""
    row = _mapping(row)
    kind = _typed(row.get("kind"), NoticeKind)
    deadline_us = None if kind is NoticeKind.REBALANCE else _typed(row.get("deadline_us"), int)
    notice = Notice(
        notice_id=_typed(row.get("notice_id"), str),
        kind=kind,
        deadline_us=deadline_us,
        source="local cloud queue",
        instance_id=_typed(row.get("instance_id"), str),
        text=f"local cloud: {kind.value}",
    )
    return _typed(row.get("seq"), int), notice


def read_text(answer: Mapping[str, Any], name: str) -> str:
    """Raises UnknownOutcome."""
    text: str = _typed(answer.get(name), str)
    return text


def read_seconds(value: Any, default: float) -> float:
    """A time that the cloud tells, of at most a day; `default` for what is none."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return seconds if 0 <= seconds <= 86_400 else default


def _record(kind: Callable[..., T], row: Mapping[str, Any]) -> T:
    """A dataclass of the port: its fields, of their types, and what else is told is passed over."""
    hints = _hints(kind)
    given = {name: _typed(row[name], hint) for name, hint in hints.items() if name in row}
    try:
        return kind(**given)
    except TypeError as error:
        raise _unreadable(str(error)) from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def _mapping(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise _unreadable(f"{str(row)[:60]!r} is no row")
    return row


def _typed(value: Any, kind: Any) -> Any:
    """`value` if it is of the kind; numbers are those that can be counted with."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError as error:
            raise _unreadable(str(error)) from None
    plain = (int, float) if kind is float else dict if not isinstance(kind, type) else kind
    fits = isinstance(value, plain) and (kind is bool or not isinstance(value, bool))
    if fits and isinstance(value, (int, float)):
        fits = abs(value) <= MAX_NUMBER  # nan compares false
    if not fits:
        raise _unreadable(f"{str(value)[:60]!r} is no {getattr(kind, '__name__', kind)}")
    return value


def _unreadable(text: str) -> UnknownOutcome:
    return UnknownOutcome(f"the local cloud answered what cannot be read: {text}")
