"""Parse durations, money, sizes, accelerators and amounts of work of a job file."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from providers.cloud_facts import alternatives
from providers.clouds import STORE_OF_SCHEME

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
DURATION_PATTERN = r"(\d+(\.\d+)?(ms|s|m|h|d|w))+"
STORE_SCHEMES = ("file", *STORE_OF_SCHEME)
MAX_DURATION_S = 10 * 365 * 86_400.0
MAX_USD = 1_000_000_000
_LEAST_USD = Decimal("0.000001")
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def parse_duration_s(value: Any) -> float:
    """Parse "90s", "5m", "1h30m" or "2d" into seconds. Raises ValueError."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    text = value.replace(" ", "") if isinstance(value, str) else ""
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(f"{value!r} is not a duration; write it with a unit, like 90s, 5m or 2h")
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", text)
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{value[:40]!r} is longer than ten years; write a shorter time")
    return seconds


PRIORITIES = {"low": 250, "normal": 500, "high": 750, "critical": 1000}


def parse_priority(value: Any) -> int:
    """Parse a priority: 0 to 1000, or one of PRIORITIES by name. Raises ValueError."""
    number = PRIORITIES.get(value) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= 1000:
        names = ", ".join(PRIORITIES)
        raise ValueError(f"{value!r} is not a priority; write {names}, or a number from 0 to 1000")
    return number


def parse_moment_us(value: str, now_us: int) -> int:
    """Parse an ISO time with its zone, or a duration from now, into microseconds since the epoch.

    Raises ValueError, also for a time that has passed.
    """
    if re.fullmatch(DURATION_PATTERN, value.replace(" ", "")):
        at_us = now_us + round(parse_duration_s(value) * 1_000_000)
    else:
        at_us = _parse_time_us(value)
    if at_us <= now_us:
        raise ValueError(f"{value!r} has passed; choose a later time")
    return at_us


def _parse_time_us(value: str) -> int:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(
            f"{value!r} is not a time; write 2026-12-01T18:00:00Z, or a duration from now like 36h"
        ) from None
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone; add Z, or an offset like +02:00")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def parse_usd(value: Any) -> int:
    """Parse an amount of US dollars into micro-USD. Raises ValueError."""
    try:
        if isinstance(value, bool):
            raise InvalidOperation
        amount = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(
            f"{value!r} is not an amount; write US dollars as a number, like 25"
        ) from None
    if not amount.is_finite() or not _LEAST_USD <= amount <= MAX_USD:
        raise ValueError(
            f"{value!r} is not an amount to spend; write more than 0, and no more than {MAX_USD}"
        )
    return int(amount * 1_000_000)


def parse_disk_gib(value: Any) -> int:
    """Parse a disk size into whole GiB, rounded up. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([GT]i?B?)?", str(value).strip(), re.IGNORECASE)
    factor = 1024 if match and (match[2] or "G")[0].upper() == "T" else 1
    size_gib = float(match[1]) * factor if match else 0.0
    if isinstance(value, bool) or not 0 < size_gib <= 65_536:
        raise ValueError(f"{value!r} is not a disk size; write GiB as a number, like 200, or 1TB")
    return math.ceil(size_gib)


def check_store_url(value: Any) -> str:
    """Return an object store's URL without a trailing slash. Raises ValueError."""
    scheme, separator, rest = str(value).partition("://")
    if not separator or scheme not in STORE_SCHEMES:
        raise ValueError(
            f"{value!r} is not a store; write file:///folder, or "
            f"{alternatives([f'{scheme}://' for scheme in STORE_OF_SCHEME])}bucket"
        )
    if scheme == "file" and not rest.startswith("/"):
        raise ValueError(f"{value!r} needs an absolute path; write file:///folder")
    if not rest.isprintable():
        raise ValueError(
            f"{value!r} has characters that an address cannot have; write letters and digits"
        )
    if not rest.strip("/") or "@" in rest.split("/")[0] or "?" in rest:
        raise ValueError(f"{value!r} is not a plain address; put credentials under [stores.NAME]")
    return str(value).rstrip("/")


def parse_bytes(value: Any) -> int:
    """Parse "420GB" or "1.5TB" into bytes; the units are decimal. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT])B", str(value).strip(), re.IGNORECASE)
    size = float(match[1]) * {"M": 1e6, "G": 1e9, "T": 1e12}[match[2].upper()] if match else 0.0
    if not 0 < size <= 1e15:
        raise ValueError(f"{value!r} is not a size; write one like 420GB or 1.5TB")
    return round(size)


@dataclass(frozen=True)
class AtLeast:
    """A minimum amount, per CPU if `per_cpu` ("4x")."""

    amount: float
    per_cpu: bool = False


def parse_at_least(value: Any) -> AtLeast:
    """Parse a minimum: 8, "8", "8+", "32GB+" or "4x". Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(Gi?B?)?(x)?\+?", str(value).strip(), re.IGNORECASE)
    if isinstance(value, bool) or not match or not 0 < float(match[1]) <= 1_000_000:
        raise ValueError(f"{value!r} is not an amount; write a number, like 8 or 8+")
    return AtLeast(float(match[1]), per_cpu=match[3] is not None)


def parse_cpus(value: Any) -> AtLeast:
    """Parse a minimum number of CPUs: 8, "8" or "8+". Raises ValueError."""
    if isinstance(value, str) and not re.fullmatch(r"[\d.]+\+?", value.strip()):
        raise ValueError(f"{value!r} is not a number of CPUs; write a number, like 8 or 8+")
    return parse_at_least(value)


@dataclass(frozen=True)
class Accelerators:
    """Accepted accelerators as (name, count): in order of preference if `ordered`, else any."""

    options: tuple[tuple[str, int], ...]
    ordered: bool = False


def parse_accelerators(value: Any) -> Accelerators:
    """Parse "H100", "H100:8", {H100: 8}, {H100:8, A100:8} or [H100:8, A100:8].

    Raises ValueError.
    """
    if isinstance(value, str):
        return Accelerators((_parse_accelerator(value, None),))
    if isinstance(value, list) and value:
        return Accelerators(tuple(_parse_accelerator(item, None) for item in value), ordered=True)
    if isinstance(value, dict) and value:
        return Accelerators(tuple(_parse_accelerator(*item) for item in value.items()))
    raise ValueError("no accelerator is named; write one like H100:8")


def _parse_accelerator(name: Any, count: Any) -> tuple[str, int]:
    match = re.fullmatch(r"([A-Za-z][\w .-]*?)(?::(\d+(?:\.\d+)?))?", str(name).strip())
    if not match or (match[2] and count is not None):
        raise ValueError(f"{name!r} is not an accelerator; write one like H100:8")
    written = match[2] if count is None else count
    try:
        number = 1.0 if written is None else float(written)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if not 1 <= number <= 1024 or number != int(number):
        raise ValueError(f"{match[1]}: {written!r} is not a valid count; write 1 to 1024 a node")
    return match[1], int(number)


_DURATION_SCHEMA = {
    "anyOf": [{"type": "string", "pattern": f"^{DURATION_PATTERN}$"}, {"const": 0}],
    "examples": ["90s", "5m", "1h30m"],
}
_AMOUNT_SCHEMA = {"type": ["number", "string"], "examples": [8, "8+"]}

StoreUrl = Annotated[str, BeforeValidator(check_store_url)]
Duration = Annotated[float, BeforeValidator(parse_duration_s), WithJsonSchema(_DURATION_SCHEMA)]
Usd = Annotated[
    int,
    BeforeValidator(parse_usd),
    WithJsonSchema({"type": ["number", "string"], "exclusiveMinimum": 0, "examples": [25]}),
]
Priority = Annotated[
    int,
    BeforeValidator(parse_priority),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(PRIORITIES)},
                {"type": "integer", "minimum": 0, "maximum": 1000},
            ]
        }
    ),
]
DiskGib = Annotated[
    int,
    BeforeValidator(parse_disk_gib),
    WithJsonSchema({"type": ["integer", "string"], "examples": [200, "1TB"]}),
]
Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema({"type": "string", "examples": ["420GB", "1.5TB"]}),
]
Cpus = Annotated[AtLeast, BeforeValidator(parse_cpus), WithJsonSchema(_AMOUNT_SCHEMA)]
Memory = Annotated[AtLeast, BeforeValidator(parse_at_least), WithJsonSchema(_AMOUNT_SCHEMA)]
AcceleratorField = Annotated[
    Accelerators,
    BeforeValidator(parse_accelerators),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
            ],
            "examples": ["H100:8"],
        }
    ),
]


MAX_STEPS = 1_000_000_000_000
_STEPS = r"(\d+)\s*steps?"


@dataclass(frozen=True)
class WorkAmount:
    """An amount of work, as seconds or as steps; the other is 0."""

    seconds: float = 0.0
    steps: int = 0


def parse_work(value: Any) -> WorkAmount:
    """Parse "40h" or "100000 steps". Raises ValueError."""
    text = value.strip().lower().replace("_", "") if isinstance(value, str) else ""
    if match := re.fullmatch(_STEPS, text):
        if not 0 < int(match[1]) <= MAX_STEPS:
            raise ValueError(f"{value!r} is not a number of steps; write one like 100000 steps")
        return WorkAmount(steps=int(match[1]))
    try:
        seconds = parse_duration_s(text)
    except ValueError:
        raise ValueError(
            f"{value!r} is not an amount of work; write hours of training like 40h, or 100000 steps"
        ) from None
    if seconds < 1:
        raise ValueError(
            "is not a positive amount; write hours of training like 40h, or 100000 steps"
        )
    return WorkAmount(seconds=seconds)


WorkField = Annotated[
    WorkAmount,
    BeforeValidator(parse_work),
    WithJsonSchema({"type": "string", "pattern": rf"^({DURATION_PATTERN}|[0-9_]+ ?steps?)$"}),
]
