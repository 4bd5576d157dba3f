"""Read and validate rows of a scenario or of a control request, collecting all errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TypeGuard

_MICRO = 1_000_000
MAX_NUMBER = 10**15  # anything above is a typing error


class ScenarioError(Exception):
    """All errors found, one message each in `mistakes`."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class Row:
    """A table of values, read by typed getters.

    A getter without a default makes its key required. For an invalid value it records an error and
    returns a harmless value, so that all errors are found at once. `where` names the table in error
    messages.
    """

    def __init__(self, data: Mapping[str, object], where: str, errors: list[str]) -> None:
        self.data = data
        self.where = where
        self.errors = errors
        self._known_keys: list[str] = []

    def has(self, key: str) -> bool:
        """Whether the table has the key."""
        self._known_keys.append(key)
        return key in self.data

    def text(self, key: str, default: str | None = None) -> str:
        """A string, not empty if required."""
        value = self._get(key, default)
        if isinstance(value, str) and (value or default is not None):
            return value
        self._add_error(key, value, "a text")
        return ""

    def one_of(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of the strings in `choices`."""
        value = self._get(key, default)
        if isinstance(value, str) and (value in choices or value == default):
            return value
        self._add_error(key, value, "one of " + ", ".join(choices))
        return choices[0]

    def number(self, key: str, default: Decimal | None = None) -> Decimal:
        """A number of at least 0."""
        value = self._get(key, default)
        if _is_number(value) and 0 <= value <= MAX_NUMBER:
            return Decimal(str(value))
        self._add_error(key, value, "a number of 0 or more")
        return Decimal(0)

    def seconds(self, key: str, default: float | None = None) -> float:
        """A duration in seconds."""
        return float(self.number(key, None if default is None else Decimal(str(default))))

    def count(self, key: str, default: int | None = None) -> int:
        """An integer of at least 0."""
        value = self._get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER:
            return value
        self._add_error(key, value, "a whole number of 0 or more")
        return 0

    def usd(self, key: str) -> int:
        """A price above 0 in dollars, returned in micro-dollars."""
        value = int(self.number(key) * _MICRO)
        if key in self.data and value <= 0:
            self._add_error(key, self.data[key], "a price above 0")
        return value

    def check_unknown_keys(self) -> None:
        """Record an error for each key that no getter read, with the closest known key."""
        for key in self.data:
            if key not in self._known_keys:
                matches = difflib.get_close_matches(key, self._known_keys, 1)
                hint = f"; did you mean {matches[0]!r}?" if matches else ""
                self.errors.append(f"{self.where}: unknown key {key!r}{hint}")

    def _get(self, key: str, default: object) -> object:
        self._known_keys.append(key)
        return self.data.get(key, default)

    def _add_error(self, key: str, value: object, expected: str) -> None:
        if value is None:
            self.errors.append(f"{self.where}: {key!r} is missing; give {expected}")
        else:
            try:
                shown = str(value) if isinstance(value, Decimal) else repr(value)
            except ValueError:
                shown = "too much"  # Python limits the digits of integers it prints
            self.errors.append(f"{self.where}: {key!r} is {shown}; it must be {expected}")


def _is_number(value: object) -> TypeGuard[int | float | Decimal]:
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int | float) and not isinstance(value, bool)


class Rows:
    """The array of tables `key` in a row, as an iterable of rows."""

    def __init__(self, parent: Row, key: str) -> None:
        parent.has(key)
        self._parent = parent
        self._key = key

    def __iter__(self) -> Iterator[Row]:
        parent, value = self._parent, self._parent.data.get(self._key, [])
        if not isinstance(value, list):
            parent.errors.append(
                f"{parent.where}: {self._key!r} must be written as [[{self._key}]] tables"
            )
            return
        for index, row in enumerate(value):
            where = f"{parent.where}: {self._key}[{index}]"
            if isinstance(row, dict):
                yield Row(row, where, parent.errors)
            else:
                parent.errors.append(f"{where} is not a table; write it as [[{self._key}]]")
