"""GPU machines as a guide lists them and as they are: dated rows of machines.toml."""

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
    """`memory_gb` and `tflops` are totals of all GPUs; `tflops` is the guide's figure, else
    None."""

    name: str
    accelerator: str
    gpus: int
    memory_gb: float
    usd_per_h: float
    tflops: float | None = None


@dataclass(frozen=True)
class MachineList:
    """The machines of one source, in its order."""

    dated: str
    source: str
    machines: tuple[Machine, ...]


@cache
def machine_lists() -> Mapping[str, MachineList]:
    """Return "said" (the guide) and "known" of the packaged file. Raises PriceFileError."""
    return read_machines(files("providers.catalogs").joinpath("machines.toml").read_text())


def read_machines(text: str) -> Mapping[str, MachineList]:
    """Parse the TOML. Raises PriceFileError."""
    lists = read_tables(text, _list)
    if lists.keys() != {"said", "known"}:
        raise PriceFileError(f"tables are said and known, not {', '.join(sorted(lists))}")
    if [machine.name for machine in lists["said"].machines] != [
        machine.name for machine in lists["known"].machines
    ]:
        raise PriceFileError("known.machines: not the types of said, in their order")
    return lists


def _list(name: str, table: Mapping[str, Any]) -> MachineList:
    dated, source = read_origin(name, table, ("machines",))
    rows = table.get("machines")
    if not isinstance(rows, list) or not rows:
        raise PriceFileError(f"{name}.machines: must be a list of machines")
    return MachineList(dated, source, tuple(_machine(name, row) for row in rows))


def _machine(name: str, row: Any) -> Machine:
    columns = 6 if name == "said" else 5
    valid = (
        isinstance(row, list) and len(row) == columns and all(isinstance(t, str) for t in row[:2])
    )
    if not valid or not all(type(value) in (int, float) and value > 0 for value in row[2:]):
        raise PriceFileError(f"{name}.machines: {row!r} is not a valid machine")
    instance_type, gpu, gpus, memory_gb, *rest = row
    tflops = float(rest[0]) if name == "said" else None
    return Machine(instance_type, gpu, int(gpus), float(memory_gb), float(rest[-1]), tflops)
