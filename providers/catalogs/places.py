"""Where the regions of each cloud stand, and where who runs them is at home: dated data of
providers/catalogs/places.toml, each with its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from providers.catalogs.price_file import PriceFileError, read_origin, read_tables

__all__ = ["Places", "PriceFileError", "places", "read_places"]

_ABOUT = frozenset({"dated", "source"})


@dataclass(frozen=True)
class Places:
    """`countries` is "cloud/region" to an ISO country, `operators` a cloud to one, `groups` a name
    ("EU") to countries."""

    countries: Mapping[str, str]
    operators: Mapping[str, str]
    groups: Mapping[str, frozenset[str]]

    def members(self, name: str) -> frozenset[str]:
        """The countries of a group, or the one country; nothing for what is neither."""
        upper = name.upper()
        if upper in self.groups:
            return self.groups[upper]
        iso = len(upper) == 2 and upper.isascii() and upper.isalpha()
        return frozenset({upper}) if iso else frozenset()


@cache
def places() -> Places:
    """Of the file that comes with us. Raises PriceFileError."""
    return read_places(files("providers.catalogs").joinpath("places.toml").read_text())


def read_places(text: str) -> Places:
    """Raises PriceFileError."""
    tables = read_tables(text, lambda _name, table: table)
    operators, groups = _told("operators", tables), _told("groups", tables)
    countries: dict[str, str] = {}
    for cloud in tables.keys() - {"operators", "groups"}:
        for country, regions in _told(cloud, tables).items():
            for region in regions.split():
                if f"{cloud}/{region}" in countries:
                    raise PriceFileError(f"{cloud}.{country}: {region} stands in two countries")
                countries[f"{cloud}/{region}"] = country
    known: dict[str, frozenset[str]] = {}
    for name, members in groups.items():  # one that another is part of comes first
        known[name] = frozenset(_spread(members.split(), known))
    return Places(countries, operators, known)


def _told(name: str, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    table = tables.get(name, {})
    read_origin(name, table, tuple(table))
    found = {key: value for key, value in table.items() if key not in _ABOUT}
    for key, value in found.items():
        if not isinstance(value, str):
            raise PriceFileError(f"{name}.{key}: {value!r} is no text")
    return found


def _spread(names: Iterable[str], known: Mapping[str, frozenset[str]]) -> Iterable[str]:
    for name in names:
        yield from known.get(name, (name,))
