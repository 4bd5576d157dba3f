"""Countries of cloud regions and home countries of cloud operators: dated data of
providers/catalogs/places.toml, each with its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from providers.catalogs.price_file import PriceFileError, read_origin, read_tables

__all__ = ["Geography", "PriceFileError", "places", "read_places"]

_ABOUT = frozenset({"dated", "source"})


@dataclass(frozen=True)
class Geography:
    """`countries` maps "cloud/region" to an ISO country code, `operators` a cloud to one, and
    `groups` a name ("EU") to country codes."""

    countries: Mapping[str, str]
    operators: Mapping[str, str]
    groups: Mapping[str, frozenset[str]]

    def members(self, name: str) -> frozenset[str]:
        """Return the countries of a group, or the one country; empty for an unknown name."""
        upper = name.upper()
        if upper in self.groups:
            return self.groups[upper]
        iso = len(upper) == 2 and upper.isascii() and upper.isalpha()
        return frozenset({upper}) if iso else frozenset()


@cache
def places() -> Geography:
    """Return the data of the packaged file. Raises PriceFileError."""
    return read_places(files("providers.catalogs").joinpath("places.toml").read_text())


def read_places(text: str) -> Geography:
    """Parse the TOML. Raises PriceFileError."""
    tables = read_tables(text, lambda _name, table: table)
    operators, groups = _string_table("operators", tables), _string_table("groups", tables)
    countries: dict[str, str] = {}
    for cloud in tables.keys() - {"operators", "groups"}:
        for country, regions in _string_table(cloud, tables).items():
            for region in regions.split():
                if f"{cloud}/{region}" in countries:
                    raise PriceFileError(
                        f"{cloud}.{country}: {region} is listed under two countries"
                    )
                countries[f"{cloud}/{region}"] = country
    known_groups: dict[str, frozenset[str]] = {}
    for name, members in groups.items():  # a group comes after the groups that it contains
        known_groups[name] = frozenset(_expand(members.split(), known_groups))
    return Geography(countries, operators, known_groups)


def _string_table(name: str, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    table = tables.get(name, {})
    read_origin(name, table, tuple(table))
    values = {key: value for key, value in table.items() if key not in _ABOUT}
    for key, value in values.items():
        if not isinstance(value, str):
            raise PriceFileError(f"{name}.{key}: {value!r} is not text")
    return values


def _expand(names: Iterable[str], known_groups: Mapping[str, frozenset[str]]) -> Iterable[str]:
    for name in names:
        yield from known_groups.get(name, (name,))
