"""Reads rows of a scenario or of a control call, and collects what is wrong with them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TypeGuard

_MICRO = 1_000_000
MOST = 10**15  # of anything: what is more is a slip of the pen


class ScenarioError(Exception):
    """Everything that is wrong, one text a mistake."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class Row:
    """One table. Every getter notes its key, so that `done` can name those nobody asked for.

    A getter without a default makes the key required. After a mistake it returns a harmless value,
    and reading goes on so that all mistakes are found at once.
    """

    def __init__(self, data: Mapping[str, object], where: str, errors: list[str]) -> None:
        self.data = data
        self.where = where
        self.errors = errors
        self._asked: list[str] = []

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        self._asked.append(key)
        return key in self.data

    def text(self, key: str, default: str | None = None) -> str:
        """A string; a required one must not be empty."""
        value = self._get(key, default)
        if isinstance(value, str) and (value or default is not None):
            return value
        self._wrong(key, value, "a text")
        return ""

    def one_of(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of a few strings."""
        value = self._get(key, default)
        if isinstance(value, str) and (value in choices or value == default):
            return value
        self._wrong(key, value, "one of " + ", ".join(choices))
        return choices[0]

    def number(self, key: str, default: Decimal | None = None) -> Decimal:
        """A number, not below zero."""
        value = self._get(key, default)
        if _is_number(value) and 0 <= value <= MOST:
            return Decimal(str(value))
        self._wrong(key, value, "a number of 0 or more")
        return Decimal(0)

    def seconds(self, key: str, default: float | None = None) -> float:
        """A duration."""
        return float(self.number(key, None if default is None else Decimal(str(default))))

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number, not below zero."""
        value = self._get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST:
            return value
        self._wrong(key, value, "a whole number of 0 or more")
        return 0

    def usd(self, key: str) -> int:
        """A price in dollars, as micro-dollars; more than nothing."""
        value = int(self.number(key) * _MICRO)
        if key in self.data and value <= 0:
            self._wrong(key, self.data[key], "a price above 0")
        return value

    def done(self) -> None:
        """Report keys that mean nothing here, with the nearest that does."""
        for key in self.data:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                self.errors.append(f"{self.where}: unknown key {key!r}{hint}")

    def _get(self, key: str, default: object) -> object:
        self._asked.append(key)
        return self.data.get(key, default)

    def _wrong(self, key: str, value: object, wanted: str) -> None:
        if value is None:
            self.errors.append(f"{self.where}: {key!r} is missing; give {wanted}")
        else:
            try:
                shown = str(value) if isinstance(value, Decimal) else repr(value)
            except ValueError:
                shown = "too much"  # Python prints no number of any size
            self.errors.append(f"{self.where}: {key!r} is {shown}; it must be {wanted}")


def _is_number(value: object) -> TypeGuard[int | float | Decimal]:
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int | float) and not isinstance(value, bool)


class Rows:
    """An array of tables below a row."""

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
