"""The billing exports of AWS, Google Cloud and Azure, as far as they are about machines.

Rows come as maps of column to text, as a CSV reader makes them. Column names are compared without
case and punctuation, so that `lineItem/ResourceId`, `line_item_resource_id` and `resource.name` of
BigQuery are found in whatever form they were exported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation


class BillingError(Exception):
    """A file that is not what it was said to be; the text names the column and row."""


@dataclass(frozen=True)
class Entry:
    """What one machine was billed for. `key` is its id by which it is matched, `what` its type."""

    key: str
    what: str
    gpu: bool
    cost_microusd: int
    start_us: int
    end_us: int


@dataclass(frozen=True)
class Export:
    """Where an export has what: for each thing the names that its column may have."""

    machine: Sequence[str]
    cost: Sequence[str]
    start: Sequence[str]
    end: Sequence[str]
    currency: Sequence[str]
    what: Sequence[str]  # told of it, the first that is not empty
    is_machine: Callable[[str, str], bool]  # of its id and what
    is_gpu: Callable[[str], bool]
    credits: Sequence[str] = ()


_AWS_TYPE = re.compile(r"(?:^|:)((?:p|g|gr)\d[a-z0-9-]*\.[a-z0-9]+)$")
_GCP_GPU = re.compile(r"\b(gpu|a100|h100|h200|b200|l4|t4|v100|p100|a2|a3|a4|g2)\b")
_AZURE_GPU = re.compile(r"\b(?:standard_)?n[cdv][a-z]*\d")

AWS = Export(
    machine=("lineitemresourceid", "resourceid"),
    cost=("lineitemunblendedcost", "unblendedcost", "billedcost"),
    start=("lineitemusagestartdate", "chargeperiodstart"),
    end=("lineitemusageenddate", "chargeperiodend"),
    currency=("lineitemcurrencycode", "billingcurrency"),
    what=("productinstancetype", "lineitemusagetype", "skuid", "chargedescription"),
    is_machine=lambda machine, _what: machine.startswith("i-"),
    is_gpu=lambda what: bool(_AWS_TYPE.search(what.lower())),
)
GCP = Export(
    machine=("resourcename", "resourceglobalname", "resourceid"),
    cost=("cost", "billedcost"),
    start=("usagestarttime", "chargeperiodstart"),
    end=("usageendtime", "chargeperiodend"),
    currency=("currency", "billingcurrency"),
    what=("skudescription", "skuid", "chargedescription"),
    is_machine=lambda _machine, what: bool(
        re.search(r"instance (core|ram)|gpu|\bvm\b", what.lower())
    ),
    is_gpu=lambda what: bool(_GCP_GPU.search(what.lower())),
    credits=("creditsamount", "credits"),
)
AZURE = Export(
    machine=("resourceid", "instanceid", "instancename"),
    cost=("costinusd", "costinbillingcurrency", "pretaxcost", "billedcost", "cost"),
    start=("date", "usagedate", "usagedatetime", "chargeperiodstart"),
    end=("chargeperiodend",),
    currency=("billingcurrency", "billingcurrencycode", "currency"),
    what=("additionalinfo", "metersubcategory", "metername", "skuid"),
    is_machine=lambda machine, _what: "/virtualmachines/" in machine,
    is_gpu=lambda what: bool(_AZURE_GPU.search(what.lower().replace('"', " "))),
)
EXPORTS: Mapping[str, Export] = {"aws": AWS, "gcp": GCP, "azure": AZURE}


def key_of(machine: str) -> str:
    """By which a machine of the ledger and of a bill are the same: the last part of its path."""
    return machine.rstrip("/").rpartition("/")[2].lower()


def entries(cloud: str, rows: Iterable[Mapping[str, str | None]]) -> list[Entry]:
    """What each machine was billed for, in all. Raises BillingError."""
    found: dict[str, Entry] = {}
    for one in _lines(EXPORTS[cloud], rows):
        known = found.get(one.key)
        if known is None:
            found[one.key] = one
            continue
        found[one.key] = replace(
            known,
            what=one.what if one.gpu and not known.gpu else known.what,
            gpu=known.gpu or one.gpu,
            cost_microusd=known.cost_microusd + one.cost_microusd,
            start_us=min(known.start_us, one.start_us),
            end_us=max(known.end_us, one.end_us),
        )
    return list(found.values())


def _lines(export: Export, rows: Iterable[Mapping[str, str | None]]) -> Iterator[Entry]:
    names: dict[str, str] = {}
    for number, row in enumerate(rows, 2):  # 1 is the header
        if not names:
            names = {_plain(name): name for name in row if name}
            for wanted in (export.machine, export.cost, export.start):
                if not any(name in names for name in wanted):
                    raise BillingError(f"it has no column like {wanted[0]}")
        machine = _first(row, names, export.machine).lower()
        what = _first(row, names, export.what)
        if not machine or not export.is_machine(machine, what):
            continue
        currency = _first(row, names, export.currency) or "USD"
        if currency != "USD":
            raise BillingError(f"row {number}: currency {currency[:20]!r}, and only USD is known")
        cost = _amount(_first(row, names, export.cost), number)
        cost += _amount(_first(row, names, export.credits) or "0", number)
        start_us = _time(_first(row, names, export.start), number)
        ends = _first(row, names, export.end)
        end_us = _time(ends, number) if ends else start_us + int(timedelta(days=1) / _US)
        if end_us < start_us:
            raise BillingError(f"row {number}: it ends before it begins")
        micro = int((cost * 1_000_000).to_integral_value())
        yield Entry(key_of(machine), what[:200], export.is_gpu(what), micro, start_us, end_us)


_US = timedelta(microseconds=1)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _first(row: Mapping[str, str | None], names: Mapping[str, str], wanted: Sequence[str]) -> str:
    for name in wanted:
        value = row.get(names[name]) if name in names else None
        if value and value.strip():
            return value.strip()
    return ""


def _amount(text: str, number: int) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise BillingError(f"row {number}: {text[:40]!r} is no amount") from None
    if not amount.is_finite() or abs(amount) > 10**9:
        raise BillingError(f"row {number}: {text[:40]!r} is no amount")
    return amount


def _time(text: str, number: int) -> int:
    """As ISO 8601, as BigQuery writes it (`2026-11-01 00:00:00 UTC`), or as 11/01/2026; UTC."""
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
        raise BillingError(f"row {number}: {text[:40]!r} is no time") from None
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _US


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
