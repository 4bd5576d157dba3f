"""Machines with GPUs as a guide lists them, and as they are: dated rows of machines.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from providers.catalogs.price_file import PriceFileError, read_origin, read_tables

__all__ = ["Machine", "MachineList", "PriceFileError", "machine_lists", "read_machines"]


@dataclass(frozen=True)
class Machine:
    """`memory_gb` and `tflops` are of all its GPUs; `tflops` as somebody says, else None."""

    name: str
    accelerator: str
    gpus: int
    memory_gb: float
    usd_per_h: float
    tflops: float | None = None


@dataclass(frozen=True)
class MachineList:
    """Of one source, in its order."""

    dated: str
    source: str
    machines: tuple[Machine, ...]


@cache
def machine_lists() -> Mapping[str, MachineList]:
    """ "said" and "known", of the file that comes with us. Raises PriceFileError."""
    return read_machines(files("providers.catalogs").joinpath("machines.toml").read_text())


def read_machines(text: str) -> Mapping[str, MachineList]:
    """Raises PriceFileError."""
    found = read_tables(text, _list)
    if found.keys() != {"said", "known"}:
        raise PriceFileError(f"tables are said and known, not {', '.join(sorted(found))}")
    if [one.name for one in found["said"].machines] != [
        one.name for one in found["known"].machines
    ]:
        raise PriceFileError("known.machines: not the types of said, in their order")
    return found


def _list(name: str, table: Mapping[str, Any]) -> MachineList:
    dated, source = read_origin(name, table, ("machines",))
    rows = table.get("machines")
    if not isinstance(rows, list) or not rows:
        raise PriceFileError(f"{name}.machines: must be a list of machines")
    return MachineList(dated, source, tuple(_machine(name, row) for row in rows))


def _machine(name: str, row: Any) -> Machine:
    width = 6 if name == "said" else 5
    good = isinstance(row, list) and len(row) == width and all(isinstance(t, str) for t in row[:2])
    if not good or not all(type(value) in (int, float) and value > 0 for value in row[2:]):
        raise PriceFileError(f"{name}.machines: {row!r} is no machine")
    kind, gpu, gpus, memory_gb, *rest = row
    tflops = float(rest[0]) if name == "said" else None
    return Machine(kind, gpu, int(gpus), float(memory_gb), float(rest[-1]), tflops)
