"""Parse the machine lines of the clouds' billing exports.

Rows are maps of column to text, as a CSV reader makes them. Column names are compared without case
and punctuation, so that `lineItem/ResourceId`, `line_item_resource_id` and BigQuery's
`resource.name` are all found.

A credit (a promotion, a free trial, a refund) is not a price: a machine costs the same while
credits last. Credits are counted beside the cost, never against it, or they would hide spending and
look like a saving. Discounts are prices and stay in the cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial

from providers.bill_export import BillExport


class BillingError(Exception):
    """The file is not what it should be; the text names the column and row."""


@dataclass(frozen=True)
class Entry:
    """The bill for one machine. `key` is its id for matching, `what` its type.

    `cost_microusd` is before credits; `credit_microusd` is what they took off, 0 or less.
    """

    key: str
    what: str
    gpu: bool
    cost_microusd: int
    start_us: int
    end_us: int
    credit_microusd: int = 0


@dataclass(frozen=True)
class Bill:
    """`credits_microusd` are those of lines that name no machine with usage in this bill."""

    machines: list[Entry]
    credits_microusd: int


# Kinds of lines, and of credits in a line of usage, that are gifts and not prices.
_GIFTS = frozenset({"credit", "refund", "promotion", "freetrial"})


def key_of(machine: str) -> str:
    """Return the key that a machine has in the ledger and in a bill: the last part of its path."""
    return machine.rstrip("/").rpartition("/")[2].lower()


def bill(export: BillExport, rows: Iterable[Mapping[str, str | None]]) -> Bill:
    """Return what each machine was billed for in all. Raises BillingError."""
    by_machine: dict[str, Entry] = {}
    credits_by_machine: dict[str, int] = {}
    for line in _lines(export, rows):
        if line.credit_microusd:
            credits_by_machine[line.key] = (
                credits_by_machine.get(line.key, 0) + line.credit_microusd
            )
        if not line.end_us:  # of credits alone, which are often of a whole month
            continue
        entry = by_machine.get(line.key)
        if entry is None:
            by_machine[line.key] = line
            continue
        by_machine[line.key] = replace(
            entry,
            what=line.what if line.gpu and not entry.gpu else entry.what,
            gpu=entry.gpu or line.gpu,
            cost_microusd=entry.cost_microusd + line.cost_microusd,
            start_us=min(entry.start_us, line.start_us),
            end_us=max(entry.end_us, line.end_us),
        )
    machines = [
        replace(line, credit_microusd=credits_by_machine.pop(key, 0))
        for key, line in by_machine.items()
    ]
    return Bill(machines, sum(credits_by_machine.values()))


def _lines(export: BillExport, rows: Iterable[Mapping[str, str | None]]) -> Iterator[Entry]:
    """Yield the lines of machines, and credits without one (key ""). Credits have no times."""
    names: dict[str, str] = {}
    for number, row in enumerate(rows, 2):  # 1 is the header
        if not names:
            names = {_plain(name): name for name in row if name}
            for candidates in (export.machine, export.cost, export.start):
                if not any(name in names for name in candidates):
                    raise BillingError(f"it has no column like {candidates[0]}")
        line = _line(export, partial(_first, row, names), number)
        if line is not None:
            yield line


def _line(export: BillExport, cell: Callable[[Sequence[str]], str], number: int) -> Entry | None:
    machine, what = cell(export.machine).lower(), cell(export.what)
    kind = _plain(cell(export.kind))
    if kind not in _GIFTS and not (machine and export.is_machine(machine, what)):
        return None
    currency = cell(export.currency) or "USD"
    if currency != "USD":
        raise BillingError(f"row {number}: currency {currency[:20]!r}, and only USD is known")
    key, cost = key_of(machine), _amount(cell(export.cost), number)
    if kind in _GIFTS or (not kind and cost < 0):  # what nobody gives a name is not a price
        return Entry(key, "", False, 0, 0, 0, _micro(cost))
    off, gift = _amount(cell(export.credits) or "0", number), Decimal(0)
    if (_plain(cell(export.credits_kind)) or "credit") in _GIFTS:
        off, gift = gift, off
    start_us = _time(cell(export.start), number)
    ends = cell(export.end)
    end_us = _time(ends, number) if ends else start_us + int(timedelta(days=1) / _US)
    if end_us < start_us:
        raise BillingError(f"row {number}: it ends before it begins")
    gpu = export.is_gpu(what)
    return Entry(key, what[:200], gpu, _micro(cost + off), start_us, end_us, _micro(gift))


def _micro(usd: Decimal) -> int:
    return int((usd * 1_000_000).to_integral_value())


_US = timedelta(microseconds=1)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _first(
    row: Mapping[str, str | None], names: Mapping[str, str], candidates: Sequence[str]
) -> str:
    for name in candidates:
        value = row.get(names[name]) if name in names else None
        if value and value.strip():
            return value.strip()
    return ""


def _amount(text: str, number: int) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise BillingError(f"row {number}: {text[:40]!r} is not an amount") from None
    if not amount.is_finite() or abs(amount) > 10**9:
        raise BillingError(f"row {number}: {text[:40]!r} is not an amount")
    return amount


def _time(text: str, number: int) -> int:
    """Parse ISO 8601, BigQuery's `2026-11-01 00:00:00 UTC`, or 11/01/2026; in UTC."""
    plain = text.removesuffix(" UTC")
    try:
        if "/" in plain:
            month, day, year = (int(part) for part in plain[:10].split("/"))
            at = datetime(year, month, day, tzinfo=UTC)
        else:
            at = datetime.fromisoformat(plain)
        if not 2000 <= at.year < 2200:
            raise ValueError
    except ValueError:
        raise BillingError(f"row {number}: {text[:40]!r} is not a time") from None
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _US


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
