"""The kinds of columns, each defined once, and the names of constraints."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    Text,
    TypeDecorator,
    false,
    text,
)

from spotd.base.log import redactor

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def clean(value: str) -> str:
    """Return `value` without the characters that a database cannot store: NUL and lone
    surrogates."""
    if value.isascii() and "\x00" not in value:
        return value
    return value.replace("\x00", "").encode("utf-8", "replace").decode()


class FreeText(TypeDecorator[str]):
    """Free text, cleaned when it is stored."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        del dialect
        return None if value is None else clean(value)


class RedactedText(FreeText):
    """Text from a cloud, a node or a store. Secrets in it are hidden before it is stored, since
    pages, alerts and backups show it. Nothing compares it with the original."""

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return super().process_bind_param(None if value is None else redactor.clean(value), dialect)


def key(name: str) -> Column[str]:
    """Text that spotd makes: ids, names, states, JSON."""
    return Column(name, Text, nullable=False)


def words(name: str) -> Column[str]:
    """Free text, empty by default."""
    return Column(name, FreeText, nullable=False, server_default=text("''"))


def redacted(name: str) -> Column[str]:
    """Free text from outside, without secrets, empty by default."""
    return Column(name, RedactedText, nullable=False, server_default=text("''"))


def big(name: str) -> Column[int]:
    """A number that may exceed 32 bits: microseconds, micro-USD, bytes, steps."""
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


def count(name: str) -> Column[int]:
    """A number that stays small."""
    return Column(name, Integer, nullable=False, server_default=text("0"))


def flag(name: str) -> Column[bool]:
    """A boolean, false by default."""
    return Column(name, Boolean, nullable=False, server_default=false())


def real(name: str) -> Column[float]:
    """Seconds, as a 64-bit float."""
    return Column(name, Float(53), nullable=False, server_default=text("0"))


def job() -> Column[str]:
    """The job that a row belongs to."""
    return Column("job_id", Text, ForeignKey("jobs.id"), nullable=False)


def one_of(column: str, values: Iterable[str | Enum]) -> CheckConstraint:
    """The column holds one of the values, or NULL where it may."""
    known = [value.value if isinstance(value, Enum) else value for value in values]
    listed = ", ".join(f"'{word}'" for word in known)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def where(condition: str) -> dict[str, Any]:
    """The condition of a partial index, for either database."""
    return {f"{dialect}_where": text(condition) for dialect in ("sqlite", "postgresql")}
